"""ProbeAsk: how to measure this machine, in the words of the command line."""

from typing import ClassVar

from meshwise.plan.fields import FLAG, TEXT, Ask, asked, choice, number, optional, question, whole


@question
class ProbeAsk(Ask):
    """Measure this machine: `meshwise probe`."""

    verb: ClassVar[str] = "probe"

    seconds: float = asked(default=60.0, converter=number(2, 3600), help="Time to take, approximately, in seconds.")
    device: str = asked(default="", converter=choice("cpu", "cuda"), help="Device.", shown="cuda if there is a GPU")
    ranks: int | None = asked(
        default=None, converter=optional(whole(1, 1024)), help="GPUs, or processes on a CPU.", shown="all GPUs; 2 processes"
    )
    show: bool = asked(default=False, converter=FLAG, help="Draw the curves of the last probe; measure nothing.")
    read: str = asked(
        default="", converter=TEXT,
        help="Install rows that were measured elsewhere: torchrun ... -m meshwise.workers.probe rows.jsonl 60",
    )  # fmt: skip
