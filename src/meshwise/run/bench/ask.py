"""BenchAsk: the settings at which to measure an engine, in the words of the command line."""

from typing import ClassVar

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import REQUEST_RATE, TARGET
from meshwise.plan.fields import FLAG, SHARE, TEXT, Ask, Kind, asked, number, quantity, question, whole

MAX_TOKENS = 2**24
TIME = quantity("seconds", positive=True)

Numbers = tuple[int, ...]


def numbers(value: "str | int | list[int] | Numbers") -> Numbers:
    """Read '1,2,4..64': whole numbers, and ranges that double, as --vary has them."""
    if isinstance(value, int):
        return (value,) if value else ()
    if not isinstance(value, str):
        return tuple(value)
    values: list[int] = []
    for piece in value.split(",") if value else ():
        low, dots, high = (word.strip() for word in piece.partition(".."))
        try:
            first = units.whole_length(low)
            last = units.whole_length(high) if dots else first
        except UserError:
            first, last = 0, 0
        if not 0 < first <= last or last > MAX_TOKENS:
            raise UserError(f"{quoted(value)}: expected whole numbers such as 1,2,4..64")
        while first <= last:
            values.append(first)
            first *= 2
    return tuple(dict.fromkeys(values))


NUMBERS: "Kind[str | int | list[int] | Numbers, Numbers]" = Kind(
    numbers, lambda value: ",".join(map(str, value)), "N,N,...", ordered=True
)


def _checked_addresses(value: str) -> str:
    addresses(value)
    return value


def addresses(text: str) -> dict[str, str]:
    """Read 'host1=10.0.0.5,host2=loopback': the address of each host of a plan."""
    by_host: dict[str, str] = {}
    for piece in filter(None, (word.strip() for word in text.split(","))):
        host, equals, address = piece.partition("=")
        if not equals or not address:
            raise UserError(
                f"{quoted(piece)}: expected a host of the plan and its address, such as host1=10.0.0.5 or host1=loopback"
            )
        by_host[host] = address
    return by_host


ADDRESSES: Kind[str, str] = Kind(_checked_addresses, str, "HOST=ADDRESS")


@question
class BenchAsk(Ask):
    """How fast an engine serves: `meshwise bench`. Tokens and seconds."""

    verb: ClassVar[str] = "bench"

    # fmt: off
    what: str = asked(default="", converter=TEXT, kw_only=False)
    prompt: Numbers = asked(default=(), converter=NUMBERS)
    output: Numbers = asked(default=(), converter=NUMBERS)
    users: Numbers = asked(default=(), converter=NUMBERS)
    repeats: int = asked(default=3, converter=whole(1, 1000))
    rate: float = asked(default=0.0, converter=REQUEST_RATE)
    requests: int = asked(default=100, converter=whole(2, 10**6))
    ramp: bool = asked(default=False, converter=FLAG)
    burst: float = asked(default=1.0, converter=number(0.1, 10))
    prefix: float = asked(default=0.0, converter=SHARE)
    lengths: str = asked(default="", converter=TEXT)
    ttft: str = asked(default="", converter=TARGET)
    tpot: str = asked(default="", converter=TARGET)
    e2e: str = asked(default="", converter=TARGET)
    trace: str = asked(default="", converter=TEXT)
    read: str = asked(default="", converter=TEXT)
    speed: float = asked(default=1.0, converter=number(0.001, 1000))
    scale_users: float = asked(default=1.0, converter=number(0.001, 1000))
    window: str = asked(default="", converter=TEXT)
    within: float = asked(default="1h", converter=TIME)
    at_once: int = asked(default=256, converter=whole(1, 10**4))
    against: str = asked(default="", converter=TEXT)
    plan: str = asked(default="", converter=TEXT)
    model: str = asked(default="", converter=TEXT)
    key_env: str = asked(default="", converter=TEXT)
    patience: float = asked(default="10min", converter=TIME)
    seed: int = asked(default=0, converter=whole(0, 10**10))
    on: str = asked(default="", converter=TEXT)
    engine: str = asked(default="", converter=TEXT)
    engine_path: str = asked(default="", converter=TEXT)
    model_file: str = asked(default="", converter=TEXT)
    rpc: str = asked(default="", converter=ADDRESSES)
    threads: int = asked(default=0, converter=whole(0, 10**5))
    start_within: float = asked(default="600s", converter=TIME)
    engine_flags: str = asked(default="", converter=TEXT)
    vary: str = asked(default="", converter=TEXT)
    llama_bench: bool = asked(default=False, converter=FLAG)
    # fmt: on
