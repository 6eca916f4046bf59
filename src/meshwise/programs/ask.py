"""ExportAsk: the question of `meshwise export`."""

from typing import ClassVar

from meshwise.plan.fields import FLAG, TEXT, Ask, asked, question, whole


@question
class ExportAsk(Ask):
    """A plan as the files of another program: `meshwise export`."""

    verb: ClassVar[str] = "export"

    plan: str = asked(default="", converter=TEXT, kw_only=False)
    to: str = asked(default="", converter=TEXT)
    launcher: str = asked(default="", converter=TEXT)
    preflight: bool = asked(default=False, converter=FLAG)
    row: int = asked(default=1, converter=whole(1, 1000))
