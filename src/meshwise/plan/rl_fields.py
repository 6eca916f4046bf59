"""RolloutFields: what a question about training on generated answers states beside those of training. `TrainAsk` has these fields too."""

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.plan.fields import FLAG, LENGTH, TEXT, Ask, Kind, asked, choice, number, question, whole

ROLLOUT = "Training on generated answers"
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

    answers: int = asked(
        default=8, converter=whole(1, 4096), help="Answers generated per prompt (ppo, grpo, ...).", group=ROLLOUT
    )
    prompt: int = asked(
        default=512, converter=LENGTH, help="Prompt tokens; an answer has at most the rest of --seq.", group=ROLLOUT
    )
    answer: str = asked(
        default="", converter=_ANSWER, shown="all as long as --seq allows", group=ROLLOUT,
        help="Tokens of an answer: the mean, and the longest of a step: 900:4k.",
    )  # fmt: skip
    lengths: str = asked(
        default="", converter=TEXT, help="File of measured answer lengths: a number or a JSONL row each.", group=ROLLOUT
    )
    mode: str = asked(
        default="", converter=choice("colocated", "split", "async"), shown="all that the program has", group=ROLLOUT,
        help="Devices train and generate in turn, or some generate for the next step, or without waiting for the longest answer.",
    )  # fmt: skip
    partial: bool = asked(default=False, converter=FLAG, help="Unfinished answers are continued in the next step.", group=ROLLOUT)
    rows: str = asked(
        default="", converter=choice("packed", "padded", "longest"), shown="as the program", group=ROLLOUT,
        help="How answers fill a micro-batch: packed, padded to its longest, or to --seq.",
    )  # fmt: skip
    updates: int = asked(
        default=1, converter=whole(1, 1024), help="Optimizer updates per step, each on a part of the answers.", group=ROLLOUT
    )
    critic: str = asked(
        default="", converter=TEXT, help="Value model (ppo).", shown="as the policy", complete="models", group=ROLLOUT
    )
    reward: str = asked(
        default="", converter=TEXT, shown="as the policy with ppo, else a function", complete="models", group=ROLLOUT,
        help="Reward model; 'function' where a program or a rule scores answers.",
    )  # fmt: skip
    reference: bool = asked(
        default=True,
        converter=FLAG,
        help="Answers are compared with a frozen reference, where the objective has one.",
        group=ROLLOUT,
    )
    teacher: str = asked(default="", converter=TEXT, help="Teacher (gkd).", complete="models", group=ROLLOUT)
    eager: bool = asked(default=False, converter=FLAG, help="The engine runs without CUDA graphs.", group=ROLLOUT)
    engine_memory: float = asked(
        default=0.0, converter=number(0, 1), help="Share of a device's memory that the engine takes: 0.5.", shown="as the program",
        group=ROLLOUT,
    )  # fmt: skip
    engine_tp: int = asked(
        default=0, converter=whole(0, 64), help="Tensor parallelism of the engine.", shown="the fastest", group=ROLLOUT
    )
    rollout_devices: int = asked(
        default=0, converter=whole(0, 2**20), help="Devices that only generate.", shown="the fastest", group=ROLLOUT
    )
