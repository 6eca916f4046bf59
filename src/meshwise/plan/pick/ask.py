"""PickAsk: which model to run on a machine, in the words of the command line."""

from typing import ClassVar

from meshwise import units
from meshwise.catalogue.releases import USES
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.fields import LENGTH, PRICE, TEXT, TEXTS, Kind, asked, choice, quantity, question, whole

MACHINES = "Other machines"
DEFAULT_CONTEXT = {"agents": 32768, "code": 32768, "reasoning": 16384, "embedding": 2048}
"""Tokens of a request by use; 8k for others: an agent reads files, and a chain of thought is long."""
MAX_DOLLARS = 1e9
DEFAULT_SPEED = 10.0
"""Tokens per second below which people who read along wait: about twice the speed of reading."""


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

    on: str = asked(
        default="", converter=TEXT, help="Devices: 2xrtx3090, m4-max:64GB, 1xrtx4090+cpu:64GB.", shown="this machine",
        complete="clusters",
    )  # fmt: skip
    purpose: str = asked(default="chat", converter=choice(*USES), help="What it is for.", flag="--for")
    context: int = asked(
        default=0, converter=LENGTH, help="Longest context of one request.", shown="8k; 16k to 32k for reasoning, code and agents"
    )
    tokens_per_second: float = asked(
        default=0.0, converter=quantity("count", positive=True, metavar="RATE"), help="Tokens/s of each request, at least.",
        shown="10",
    )  # fmt: skip
    users: int = asked(default=1, converter=whole(1, 9999), help="Users who each wait for an answer before they ask again.")
    engine: str = asked(
        default="", converter=TEXT, help="Only this one: llama.cpp, ollama, vllm, sglang, mlx.", shown="those that run there",
        complete="engines",
    )  # fmt: skip
    model: tuple[str, ...] = asked(
        default=(), converter=TEXTS, help="Also a model of yours: a config.json, a folder, a .gguf or an id.", complete="models"
    )
    top: int = asked(default=8, converter=whole(1, 100), help="Models to list.")
    buy: float = asked(default=0.0, converter=_DOLLARS, help="What could be bought for this many dollars: 2000.", group=MACHINES)
    rent: float = asked(default=0.0, converter=PRICE, help="What could be rented for this: $2.50/h.", group=MACHINES)

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
