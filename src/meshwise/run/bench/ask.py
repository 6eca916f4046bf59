"""BenchAsk: the settings at which to measure an engine, in the words of the command line."""

from typing import ClassVar

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import REQUEST_RATE, TARGET
from meshwise.plan.fields import FLAG, SHARE, TEXT, Ask, Kind, asked, number, quantity, question, whole

ENDPOINT = "With a URL"
OPEN_LOOP = "Open loop (with a URL)"
TRACE = "A trace (with a URL)"
ENGINE = "With an engine that bench starts"
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
    what: str = asked(default="", converter=TEXT, help="URL of an endpoint, a plan.json, a .gguf, or a model.", complete="models",
                      kw_only=False)
    prompt: Numbers = asked(default=(), converter=NUMBERS, help="Prompt tokens: 512, or several: 128,2k.",
                            shown="the plan's, 512")
    output: Numbers = asked(default=(), converter=NUMBERS, help="Tokens to generate.", shown="the plan's, 128")
    users: Numbers = asked(default=(), converter=NUMBERS, help="Concurrent requests: 1, or several: 1,2,4..64.",
                           shown="the plan's, 1")
    repeats: int = asked(default=3, converter=whole(1, 1000), help="Repeats of every setting, after a warm-up.")
    rate: float = asked(default=0.0, converter=REQUEST_RATE, help="Requests that arrive at random, instead of --users: 4/s.",
                        group=OPEN_LOOP)
    requests: int = asked(default=100, converter=whole(2, 10**6), help="Requests at each rate, or of --trace.", group=OPEN_LOOP)
    ramp: bool = asked(default=False, converter=FLAG, help="Double the rate until the goodput falls behind.", group=OPEN_LOOP)
    burst: float = asked(default=1.0, converter=number(0.1, 10), help="Deviation of the time between arrivals over its mean.",
                         group=OPEN_LOOP)
    prefix: float = asked(default=0.0, converter=SHARE, help="Share of every prompt that all requests have in common.",
                          group=OPEN_LOOP)
    lengths: str = asked(default="", converter=TEXT, help="JSONL of request lengths ('prompt' and 'output').", group=OPEN_LOOP)
    ttft: str = asked(default="", converter=TARGET, help="Goodput counts requests with a first token within 1s.", group=OPEN_LOOP)
    tpot: str = asked(default="", converter=TARGET, help="And a time per output token of at most 40ms.", group=OPEN_LOOP)
    e2e: str = asked(default="", converter=TARGET, help="And done within 20s.", group=OPEN_LOOP)
    trace: str = asked(default="", converter=TEXT, help="Timed requests, sent as they came; --plan puts the simulation beside them.",
                       group=TRACE)
    read: str = asked(default="", converter=TEXT, help="Pattern of an access log (meshwise replay).", group=TRACE)
    speed: float = asked(default=1.0, converter=number(0.001, 1000), help="Times as fast as they came.", group=TRACE)
    scale_users: float = asked(default=1.0, converter=number(0.001, 1000), help="Times as many users.", group=TRACE)
    window: str = asked(default="", converter=TEXT, help="Part of the trace: 10min..40min.", group=TRACE)
    within: float = asked(default="1h", converter=TIME, help="Send for this long, at most.", group=TRACE)
    at_once: int = asked(default=256, converter=whole(1, 10**4), help="Requests open at once; further ones are not sent.", group=TRACE)
    against: str = asked(default="", converter=TEXT,
                         help="Compare with the --out of an earlier bench: is the difference more than noise?")
    plan: str = asked(default="", converter=TEXT, help="The plan.json that the endpoint runs, to show its prediction.",
                      group=ENDPOINT)
    model: str = asked(default="", converter=TEXT, help="Model to ask for.", shown="the first it lists", group=ENDPOINT)
    key_env: str = asked(default="", converter=TEXT, help="Environment variable that holds its API key.", group=ENDPOINT)
    patience: float = asked(default="10min", converter=TIME, help="Give up on a request after this long.")
    seed: int = asked(default=0, converter=whole(0, 10**10), help="Seed of the prompts.")
    on: str = asked(default="", converter=TEXT, help="This machine as a cluster: 2xrtx3090.", shown="detected",
                    complete="clusters", group=ENGINE)
    engine: str = asked(default="", converter=TEXT, help="llama.cpp, vllm or transformers.", shown="by format and chip",
                        complete="engines", group=ENGINE)
    engine_path: str = asked(default="", converter=TEXT, help="Folder of its programs, or xllamacpp.", shown="PATH", group=ENGINE)
    model_file: str = asked(default="", converter=TEXT, help="The .gguf, or the folder of weights.", group=ENGINE)
    rpc: str = asked(default="", converter=ADDRESSES, help="Address of each RPC host; host1=loopback starts it here.",
                     group=ENGINE)
    threads: int = asked(default=0, converter=whole(0, 10**5), help="CPU threads.", shown="the engine's", group=ENGINE)
    start_within: float = asked(default="600s", converter=TIME, help="Time to load, at most.", group=ENGINE)
    engine_flags: str = asked(default="", converter=TEXT,
                              help="Further flags for its server, after the plan's: '--ubatch-size 1024'.", group=ENGINE)
    vary: str = asked(default="", converter=TEXT, help="gpus=1..4: start it on each number of GPUs.", group=ENGINE)
    llama_bench: bool = asked(default=False, converter=FLAG,
                              help="Time one request with llama.cpp's llama-bench, without a server.", group=ENGINE)
    # fmt: on
