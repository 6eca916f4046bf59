"""TrainAsk, ServeAsk, ShapeAsk: a question in the words of the command line. The two `lookup.py` look up what it names."""

from typing import Any, ClassVar

from meshwise import units
from meshwise.catalogue.frameworks import ELEMENT_BYTES, GRAPHS, KERNELS, LOSSES
from meshwise.catalogue.power import intensity
from meshwise.cost import axes, finetune
from meshwise.cost.axes import Bounds
from meshwise.cost.precision import PRECISIONS
from meshwise.cost.work import ACCEPTED_RANGES, OBJECTIVES, OPTIMIZER_BYTES, Train, parse_batch
from meshwise.errors import UserError, quoted
from meshwise.plan.fields import (
    FLAG,
    LENGTH,
    PRICE,
    RATE,
    SECONDS,
    SHARE,
    TEXT,
    TEXTS,
    Ask,
    Kind,
    asked,
    choice,
    number,
    optional,
    quantity,
    question,
    whole,
)
from meshwise.plan.rl_fields import RolloutFields

QUANTILES = ("p50", "p95", "p99")


def _lengths(value: "str | list[int] | tuple[int, ...]") -> tuple[int, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(units.whole_length(word) if isinstance(word, str) else word for word in words if word)


def _parameters(value: str | float) -> float:
    number = units.parse(value, "count") if value else 0.0
    if value and not 1e6 <= number <= 1e13:
        raise UserError(f"{quoted(value)}: expected a million to ten trillion parameters, such as 176B")
    return number


def _batch(value: str | int) -> str | int:
    """Return the text unparsed: the meaning of '4M' depends on the sequence length, which the text may contain ('2048x4096')."""
    return value if not value or (isinstance(value, int) and value > 0) else str(value)


def _mean_length(value: str | int) -> str | int:
    """Return a length as a number of tokens; '2k:0.5', a mean with a spread, as text, which `ServeAsk` takes apart."""
    if isinstance(value, str) and ":" in value:
        return value
    return units.whole_length(value) if value else 0


def _request_rate(value: str | float) -> float:
    """Return requests per second: '12/s', '30/min', or a number."""
    if value in ("", 0, 0.0):
        return 0.0
    number, _, unit = str(value).strip().replace(" ", "").partition("/")
    seconds = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}.get(unit.lower())
    try:
        rate = float(number) / seconds if seconds else 0.0
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise UserError(f"{quoted(value)}: expected requests per second, such as 12/s or 90/min")
    return rate


def _exact_rate(value: float) -> str:
    """Return requests per second as text that reads back as the same number."""
    short = f"{value:g}"
    return f"{short if float(short) == value else repr(value)}/s"


def _target(value: str | float) -> str:
    """Return a latency target as text: seconds, and the quantile it holds for."""
    if value in ("", 0, 0.0):
        return ""
    text, _, quantile = str(value).strip().partition("@")
    quantile = quantile.lower()
    seconds = float(value) if isinstance(value, int | float) else units.parse(text, "seconds")
    if not seconds > 0:
        raise UserError(f"{quoted(value)}: expected more than 0, such as 1s or 1s@p95")
    if quantile not in ("", "mean", *QUANTILES):
        raise UserError(f"{quoted(value)}: expected @{', @'.join(QUANTILES)} or @mean after the time")
    return f"{units.exactly(seconds, 'seconds')}@{quantile or 'p95'}"


def _adapters(value: str) -> str:
    """Return a number of LoRA adapters and their rank as '8:16'; '' for none."""
    text = str(value or "").strip()
    number, colon, rank = text.partition(":")
    if not text:
        return ""
    valid = colon and number.isdecimal() and rank.isdecimal() and 0 < int(number[:6]) < 100_000 and 0 < int(rank[:6]) <= 1024
    if not valid or len(number) > 5 or len(rank) > 4:
        raise UserError(f"--lora {quoted(value)}: expected a number of adapters and their rank, at most 1,024, such as 8:16")
    return f"{int(number)}:{int(rank)}"


_EXACT_COUNT = quantity("count").write
_TOKENS: Kind[str | float, float] = Kind(
    lambda value: units.training_tokens(value) if value else 0.0, _EXACT_COUNT, "COUNT", ordered=True, whole=False
)
_LENGTHS: "Kind[str | list[int] | tuple[int, ...], tuple[int, ...]]" = Kind(
    _lengths, lambda value: ",".join(map(str, value)), "N,N,..."
)
_PARAMETERS: Kind[str | float, float] = Kind(_parameters, _EXACT_COUNT, "COUNT")
_BATCH: "Kind[str | int, Any]" = Kind(_batch, str, "BATCH", ordered=True)
_FINETUNE: Kind[str, str] = Kind(lambda value: finetune.parse(value).write() if value else "", str, "METHOD[:RANK[:TARGETS]]")
_BASE: Kind[str, str] = Kind(lambda value: finetune.parse_base(value) if value else "", str, "FORMAT")
_TOP = whole(1, 1000)
_MEAN_LENGTH: "Kind[str | int, Any]" = Kind(_mean_length, LENGTH.write, "TOKENS", ordered=True)
REQUEST_RATE: Kind[str | float, float] = Kind(_request_rate, _exact_rate, "RATE", ordered=True, whole=False)
TARGET: Kind[str | float, str] = Kind(_target, str, "TIME[@p95]")
_ACCEPTED_SHARE = number(0, 0.99)
ADAPTERS: Kind[str, str] = Kind(_adapters, str, "N:RANK")


def _grid(value: str) -> str:
    intensity(value)
    return value


_GRID: Kind[str, str] = Kind(_grid, str)


@question
class EnergyAsk(Ask):
    """What a question says about power: a limit of each device, and what a kWh costs in dollars and carbon."""

    power_limit: float = asked(default=0.0, converter=quantity("watts", positive=True, metavar="WATTS"))
    grid: str = asked(default="", converter=_GRID)
    energy_price: float = asked(default=0.0, converter=number(0, 100))
    pue: float = asked(default=1.0, converter=number(1, 5))


@question
class TrainAsk(EnergyAsk, RolloutFields):
    """How to train a model: `meshwise plan`. Seconds, bytes/s, tokens and dollars per second."""

    verb: ClassVar[str] = "plan"

    model: str = asked(default="", converter=TEXT, kw_only=False)
    on: str = asked(default="", converter=TEXT)
    batch: int = asked(default=0, converter=_BATCH)
    seq: int = asked(default="4k", converter=LENGTH)
    tokens: float = asked(default=0.0, converter=_TOKENS)
    framework: str = asked(default="", converter=TEXT)
    precision: str = asked(default="bf16", converter=choice(*PRECISIONS))
    optimizer: str = asked(default="adamw", converter=choice(*OPTIMIZER_BYTES))
    finetune: str = asked(default="", converter=_FINETUNE)
    base: str = asked(default="", converter=_BASE)
    in_backward: bool = asked(default=False, converter=FLAG)
    objective: str = asked(default="sft", converter=choice(*OBJECTIVES))
    tower: str = asked(default="", converter=choice("frozen", "trained"))
    images: int = asked(default=1, converter=whole(1, 10_000))
    data: str = asked(default="", converter=TEXT)
    epochs: int = asked(default=1, converter=whole(1, 10_000))
    packing: bool = asked(default=True, converter=FLAG)
    ram: float = asked(default=0.0, converter=quantity("bytes", positive=True))
    loss: str = asked(default="", converter=choice(*LOSSES))
    release: str = asked(default="", converter=TEXT)
    attention: str = asked(default="", converter=choice(*KERNELS))
    overlap: str = asked(default="", converter=TEXT)
    graphs: str = asked(default="", converter=choice(*GRAPHS))
    gradients: str = asked(default="", converter=choice(*ELEMENT_BYTES))
    compile: bool = asked(default=False, converter=FLAG)
    top: int = asked(default=10, converter=_TOP)
    fix: tuple[str, ...] = asked(default=(), converter=TEXTS)
    allow: tuple[str, ...] = asked(default=(), converter=TEXTS)
    at_most: str = asked(default="", converter=TEXT)
    imbalance: float = asked(default=Train.imbalance, converter=number(1, 100))
    risk: float = asked(default=Train.risk, converter=SHARE)
    ramp: tuple[int, ...] = asked(default=(), converter=_LENGTHS)
    within: float = asked(default=0.0, converter=quantity("seconds", positive=True))
    price: float = asked(default=0.0, converter=PRICE)
    provider: str = asked(default="", converter=TEXT)
    link: float = asked(default=0.0, converter=RATE)
    calibration: str = asked(default="", converter=TEXT)
    mtbf: float | None = asked(default=None, converter=optional(SECONDS))
    checkpoint_bandwidth: float | None = asked(default=None, converter=optional(RATE))
    checkpoint_every: float | None = asked(default=None, converter=optional(SECONDS))
    async_checkpoint: bool = asked(default=False, converter=FLAG)
    restart: float | None = asked(default=None, converter=optional(SECONDS))
    repair: float | None = asked(default=None, converter=optional(SECONDS))
    spares: int | None = asked(default=None, converter=optional(whole(0, 10**5)))
    straggler: float | None = asked(default=None, converter=optional(SHARE))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seq:
            raise UserError("--seq '' is no sequence length: expected a whole number of tokens, such as 4096 or 128k")
        if isinstance(self.batch, str) and self.batch:  # still text: its meaning depends on the sequence length
            batch, seq = parse_batch(self.batch, self.seq)
            object.__setattr__(self, "batch", batch)
            object.__setattr__(self, "seq", seq)

    def words(self) -> list[str]:
        """Return the command-line arguments, the batch with its sequence length, so that neither depends on a default."""
        arguments = super().words()
        if self.model in arguments:  # what is meant comes first
            arguments.remove(self.model)
            arguments.insert(0, self.model)
        if not self.batch:
            return arguments
        for flag, value in (("--seq", ""), ("--batch", f"{self.batch}x{self.seq}")):
            if flag in arguments:
                at = arguments.index(flag)
                arguments[at : at + 2] = [flag, value] if value else []
        return arguments

    @property
    def bounds(self) -> Bounds:
        """The bounds on the layout's axes from `--fix` and `--allow`."""
        return axes.parse(",".join((*self.fix, *self.allow)))

    @property
    def failures(self) -> dict[str, Any]:
        """The assumptions about failures that were given, by field of Reliability."""
        fields = {name: getattr(self, name) for name in (*ACCEPTED_RANGES, "async_checkpoint")}
        return {name: value for name, value in fields.items() if value is not None and value is not False}


@question
class ShapeAsk(TrainAsk):
    """How to train a model whose shape is open: `meshwise plan --params 176B`. `like` names a model with the same kind of layers."""

    params: float = asked(default=0.0, converter=_PARAMETERS)
    vocab: int = asked(default=0, converter=whole(1, 2**24))
    like: str = asked(default="", converter=TEXT)
    shape: tuple[str, ...] = asked(default=(), converter=TEXTS)


@question
class ServeAsk(EnergyAsk):
    """How to serve a model: `meshwise serve`. Tokens, seconds, bytes/s and dollars per second."""

    verb: ClassVar[str] = "serve"

    model: str = asked(default="", converter=TEXT, kw_only=False)
    on: str = asked(default="", converter=TEXT)
    users: int = asked(default=1, converter=whole(1, 999_999))
    context: int = asked(default=0, converter=LENGTH)
    prompt: int = asked(default=512, converter=_MEAN_LENGTH)
    output: int = asked(default=128, converter=_MEAN_LENGTH)
    rate: float = asked(default=0.0, converter=REQUEST_RATE)
    burst: float = asked(default=1.0, converter=number(0.1, 10))
    prompt_spread: float = asked(default=0.0, converter=number(0, 5))
    output_spread: float = asked(default=0.0, converter=number(0, 5))
    lengths: str = asked(default="", converter=TEXT)
    depth: int = asked(default=0, converter=LENGTH)
    prefix: float = asked(default=0.0, converter=SHARE)
    draft: int = asked(default=0, converter=whole(0, 999))
    accept: float = asked(default=0.0, converter=_ACCEPTED_SHARE)
    lora: str = asked(default="", converter=ADAPTERS)
    engine: str = asked(default="", converter=TEXT)
    kv: str = asked(default="f16", converter=TEXT)
    top: int = asked(default=10, converter=_TOP)
    ttft: str = asked(default="", converter=TARGET)
    tpot: str = asked(default="", converter=TARGET)
    e2e: str = asked(default="", converter=TARGET)
    per_user: float = asked(default=0.0, converter=quantity("count", positive=True, metavar="RATE"))
    measured: float = asked(default=0.0, converter=quantity("count", positive=True, metavar="RATE"))
    measured_of: str = asked(default="each", converter=choice("each", "all"))
    fix: tuple[str, ...] = asked(default=(), converter=TEXTS)
    cheapest: bool = asked(default=False, converter=FLAG)
    price: float = asked(default=0.0, converter=PRICE)
    provider: str = asked(default="", converter=TEXT)
    ram: float = asked(default=0.0, converter=quantity("bytes", positive=True))
    link: float = asked(default=0.0, converter=RATE)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prompt", "output"):
            text = getattr(self, name)
            if isinstance(text, str):  # a mean and a spread
                mean, _, spread = text.partition(":")
                try:
                    object.__setattr__(self, name, units.whole_length(mean))
                    object.__setattr__(self, f"{name}_spread", number(0, 5)(spread))
                except UserError as error:
                    raise UserError(f"--{name} {quoted(text)}: a mean and its spread, such as 2k:0.5; {error}") from None
