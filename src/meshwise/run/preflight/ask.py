"""PreflightAsk: which machines to look at, and how, in the words of the command line."""

from typing import ClassVar

from meshwise.plan.fields import FLAG, TEXT, Ask, asked, choice, number, optional, question, whole


@question
class PreflightAsk(Ask):
    """Look at a cluster before a run: `meshwise preflight`."""

    verb: ClassVar[str] = "preflight"

    # fmt: off
    seconds: float = asked(default=40.0, converter=number(5, 3600))
    device: str = asked(default="", converter=choice("cpu", "cuda"))
    ranks: int | None = asked(default=None, converter=optional(whole(1, 1024)))
    on: str = asked(default="", converter=TEXT)
    out: str = asked(default="preflight", converter=TEXT)
    facts: bool = asked(default=False, converter=FLAG)
    read: str = asked(default="", converter=TEXT)

    launcher: str = asked(default="", converter=choice("", "slurm", "kubernetes"))
    nodes: int | None = asked(default=None, converter=optional(whole(1, 100000)))
    node_rank: int | None = asked(default=None, converter=optional(whole(0)))
    rendezvous: str = asked(default="", converter=TEXT)
    partition: str = asked(default="", converter=TEXT)
    # fmt: on
