"""PickAsk: which model to run on a machine, in the words of the command line."""

from typing import ClassVar

from meshwise import units
from meshwise.catalogue.releases import USES
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.fields import LENGTH, PRICE, TEXT, TEXTS, Kind, asked, choice, quantity, question, whole

DEFAULT_CONTEXT = {"agents": 32768, "code": 32768, "reasoning": 16384, "embedding": 2048}
"""Tokens of a request by use; 8k for others: an agent reads files, and a chain of thought is long."""
MAX_DOLLARS = 1e9
DEFAULT_SPEED = 10.0  # tokens per second below which people who read along wait: about twice the speed of reading


def _dollars(value: str | float) -> float:
    """Return dollars: 2000, '2000', '$2k'."""
    text = str(value).strip()
    if text in ("", "0", "0.0"):
        return 0.0
    amount = units.parse(text if text.startswith("$") else f"${text}", "dollars")
    if not 0 < amount < MAX_DOLLARS:
        raise UserError(f"{quoted(value)}: expected an amount of dollars, such as 2000")
    return amount


_DOLLARS: Kind[str | float, float] = Kind(_dollars, lambda value: f"{value:g}", "DOLLARS", ordered=True, whole=False)


@question
class PickAsk(EnergyAsk):
    """Which open model to run: `meshwise pick`."""

    verb: ClassVar[str] = "pick"

    on: str = asked(default="", converter=TEXT)
    purpose: str = asked(default="chat", converter=choice(*USES))
    context: int = asked(default=0, converter=LENGTH)
    tokens_per_second: float = asked(default=0.0, converter=quantity("count", positive=True, metavar="RATE"))
    users: int = asked(default=1, converter=whole(1, 9999))
    engine: str = asked(default="", converter=TEXT)
    model: tuple[str, ...] = asked(default=(), converter=TEXTS)
    top: int = asked(default=8, converter=whole(1, 100))
    buy: float = asked(default=0.0, converter=_DOLLARS)
    rent: float = asked(default=0.0, converter=PRICE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buy and self.rent:
            raise UserError("--buy and --rent are two questions; give one of them")
        if self.on and (self.buy or self.rent):
            raise UserError("--buy and --rent search machines; leave out --on")

    @property
    def tokens(self) -> int:
        """The context asked for, or the usual one of the use."""
        return self.context or DEFAULT_CONTEXT.get(self.purpose, 8192)

    @property
    def speed(self) -> float:
        """Tokens per second asked for, or those that a reader needs; embeddings are not read along."""
        return self.tokens_per_second or (0.0 if self.purpose == "embedding" else DEFAULT_SPEED)
