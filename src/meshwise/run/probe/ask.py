"""ProbeAsk: how to measure this machine, in the words of the command line."""

from typing import ClassVar

from meshwise.plan.fields import FLAG, TEXT, Ask, asked, choice, number, optional, question, whole


@question
class ProbeAsk(Ask):
    """Measure this machine: `meshwise probe`."""

    verb: ClassVar[str] = "probe"

    seconds: float = asked(default=60.0, converter=number(2, 3600))
    device: str = asked(default="", converter=choice("cpu", "cuda"))
    ranks: int | None = asked(default=None, converter=optional(whole(1, 1024)))
    show: bool = asked(default=False, converter=FLAG)
    read: str = asked(default="", converter=TEXT)
