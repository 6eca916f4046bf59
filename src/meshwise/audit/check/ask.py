"""CheckAsk: the question of `meshwise check`."""

from typing import ClassVar

from meshwise.errors import UserError, quoted
from meshwise.plan.fields import PRICE, TEXT, TEXTS, Ask, asked, question


@question
class CheckAsk(Ask):
    """Is a launch file right? `meshwise check`."""

    verb: ClassVar[str] = "check"

    on: str = asked(
        default="", converter=TEXT, complete="clusters",
        help="Cluster that it will run on: jean-zay:48, 48x8xa100-80gb; a chip alone takes the nodes from the file.",
    )  # fmt: skip
    set: tuple[str, ...] = asked(
        default=(), converter=TEXTS, help="Answer what the file leaves open: a variable of a script (TP=8) or a fact (seq=4096)."
    )
    model: str = asked(default="", converter=TEXT, help="Model, where the file does not state it.", complete="models")
    price: float = asked(default=0.0, converter=PRICE, help="Price of one device: $2.50/h.", shown="list price")

    @property
    def answers(self) -> dict[str, str]:
        """The values of `--set` by name."""
        pairs = [text.partition("=") for text in self.set]
        for name, equals, _ in pairs:
            if not equals or not name.strip():
                raise UserError(f"--set {quoted(name)}: expected NAME=VALUE, such as TP=8")
        return {name.strip(): value.strip() for name, _, value in pairs}
