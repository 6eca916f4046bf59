"""RolloutFields: what a question about training on generated answers states beside those of training. `TrainAsk` has these fields too."""

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.plan.fields import FLAG, LENGTH, TEXT, Ask, Kind, asked, choice, number, question, whole

NO_MODEL = ("none", "function")


def _answer(value: str | int) -> str:
    """Return 'MEAN' or 'MEAN:LONGEST' in tokens; '' for none."""
    if value in ("", 0):
        return ""
    mean, colon, longest = str(value).strip().partition(":")
    sizes = [units.whole_length(mean), *([units.whole_length(longest)] if colon else [])]
    if colon and sizes[1] < sizes[0]:
        raise UserError(
            f"--answer {quoted(value)}: the longest answer is shorter than the mean; expected MEAN:LONGEST, such as 900:4k"
        )
    return ":".join(map(str, sizes))


_ANSWER: "Kind[str | int, str]" = Kind(_answer, str, "MEAN[:LONGEST]")


@question
class RolloutFields(Ask):
    """Prompts and answers of a step, the engine, the other models, and how devices are shared."""

    answers: int = asked(default=8, converter=whole(1, 4096))
    prompt: int = asked(default=512, converter=LENGTH)
    answer: str = asked(default="", converter=_ANSWER)
    lengths: str = asked(default="", converter=TEXT)
    mode: str = asked(default="", converter=choice("colocated", "split", "async"))
    partial: bool = asked(default=False, converter=FLAG)
    rows: str = asked(default="", converter=choice("packed", "padded", "longest"))
    updates: int = asked(default=1, converter=whole(1, 1024))
    critic: str = asked(default="", converter=TEXT)
    reward: str = asked(default="", converter=TEXT)
    reference: bool = asked(default=True, converter=FLAG)
    teacher: str = asked(default="", converter=TEXT)
    eager: bool = asked(default=False, converter=FLAG)
    engine_memory: float = asked(default=0.0, converter=number(0, 1))
    engine_tp: int = asked(default=0, converter=whole(0, 64))
    rollout_devices: int = asked(default=0, converter=whole(0, 2**20))
