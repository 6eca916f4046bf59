"""CheckAsk: the question of `meshwise check`."""

from typing import ClassVar

from meshwise.errors import UserError, quoted
from meshwise.plan.fields import PRICE, TEXT, TEXTS, Ask, asked, question


@question
class CheckAsk(Ask):
    """Is a launch file right? `meshwise check`."""

    verb: ClassVar[str] = "check"

    on: str = asked(default="", converter=TEXT)
    set: tuple[str, ...] = asked(default=(), converter=TEXTS)
    model: str = asked(default="", converter=TEXT)
    price: float = asked(default=0.0, converter=PRICE)

    @property
    def answers(self) -> dict[str, str]:
        """The values of `--set` by name."""
        pairs = [text.partition("=") for text in self.set]
        for name, equals, _ in pairs:
            if not equals or not name.strip():
                raise UserError(f"--set {quoted(name)}: expected NAME=VALUE, such as TP=8")
        return {name.strip(): value.strip() for name, _, value in pairs}
