"""ExportAsk: the question of `meshwise export`."""

from typing import ClassVar

from meshwise.plan.fields import TEXT, Ask, asked, question, whole


@question
class ExportAsk(Ask):
    """A plan as the files of another program: `meshwise export`."""

    verb: ClassVar[str] = "export"

    plan: str = asked(
        default="", converter=TEXT, kw_only=False,
        help="A plan.json of 'meshwise plan' or 'meshwise serve'; - reads one from standard input.",
    )  # fmt: skip
    to: str = asked(
        default="", converter=TEXT,
        help="Program: megatron, megatron-deepspeed, torchtitan, deepspeed, accelerate, nanotron, maxtext, vllm, ... (--list).",
    )  # fmt: skip
    launcher: str = asked(
        default="", converter=TEXT, flag="--with", shown="torchrun",
        help="Launcher: torchrun, slurm, jobset, trainjob, leaderworkerset, skypilot, ray.",
    )  # fmt: skip
    row: int = asked(default=1, converter=whole(1, 1000), help="Row of the plan's table.", shown="1, the best")
