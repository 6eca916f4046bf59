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

LAYOUT = "Layout"
RECIPE = "Recipe of the program"
MACHINE = "Machine and price"
FINETUNE = "Fine-tuning"
FAILURES = "Failures (with --tokens)"
SHAPE = "Model shape (instead of MODEL)"
TARGETS = "Latency targets"
ENERGY = "Power and energy"
LOAD = "Load"
QUANTILES = ("p50", "p95", "p99")

_MODEL = "Preset, Hugging Face id, config.json or its folder, or .gguf."


def _tokens(value: str | float) -> float:
    return units.training_tokens(value) if value else 0.0


def _lengths(value: "str | list[int] | tuple[int, ...]") -> tuple[int, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(units.whole_length(word) if isinstance(word, str) else word for word in words if word)


def _parameters(value: str | float) -> float:
    number = units.parse(value, "count") if value else 0.0
    if value and not 1e6 <= number <= 1e13:
        raise UserError(f"{quoted(value)}: expected a million to ten trillion parameters, such as 176B")
    return number


def _finetune(value: str) -> str:
    return finetune.parse(value).write() if value else ""


def _base(value: str) -> str:
    return finetune.parse_base(value) if value else ""


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
_TOKENS: Kind[str | float, float] = Kind(_tokens, _EXACT_COUNT, "COUNT", ordered=True, whole=False)
_LENGTHS: "Kind[str | list[int] | tuple[int, ...], tuple[int, ...]]" = Kind(
    _lengths, lambda value: ",".join(map(str, value)), "N,N,..."
)
_PARAMETERS: Kind[str | float, float] = Kind(_parameters, _EXACT_COUNT, "COUNT")
_BATCH: "Kind[str | int, Any]" = Kind(_batch, str, "BATCH", ordered=True)
_FINETUNE: Kind[str, str] = Kind(_finetune, str, "METHOD[:RANK[:TARGETS]]")
_BASE: Kind[str, str] = Kind(_base, str, "FORMAT")
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

    power_limit: float = asked(
        default=0.0, converter=quantity("watts", positive=True, metavar="WATTS"), help="Power limit of one device: 300W.",
        shown="the chip's", group=ENERGY,
    )  # fmt: skip
    grid: str = asked(
        default="", converter=_GRID, help="Grams of CO2 per kWh: a country, 240, or 24 numbers by hour.", group=ENERGY
    )
    energy_price: float = asked(default=0.0, converter=number(0, 100), help="Dollars per kWh: 0.15.", group=ENERGY)
    pue: float = asked(
        default=1.0, converter=number(1, 5), help="Power of the building over that of its computers.", group=ENERGY
    )


@question
class TrainAsk(EnergyAsk, RolloutFields):
    """How to train a model: `meshwise plan`. Seconds, bytes/s, tokens and dollars per second."""

    verb: ClassVar[str] = "plan"

    model: str = asked(default="", converter=TEXT, help=_MODEL, complete="models", kw_only=False)
    on: str = asked(
        default="", converter=TEXT, help="Cluster: jean-zay:48, 48x8xa100-80gb, tpu-v5p:16x20x28.", complete="clusters"
    )
    batch: int = asked(
        default=0, converter=_BATCH, help="Global batch: sequences (2048), sequences x length (2048x4096) or tokens (4M).",
        vary="1M..16M",
    )  # fmt: skip
    seq: int = asked(default="4k", converter=LENGTH, help="Sequence length.", vary="4k..128k")
    tokens: float = asked(default=0.0, converter=_TOKENS, help="Tokens to train on (15T); adds days, cost and energy.")
    framework: str = asked(
        default="", converter=TEXT, complete="frameworks", vary="megatron,torchtitan", shown="by machine: accelerate, fsdp, megatron",
        help="megatron, megatron-bridge, torchtitan, fsdp, deepspeed, nanotron, maxtext, ... (meshwise show frameworks)."
    )  # fmt: skip
    precision: str = asked(default="bf16", converter=choice(*PRECISIONS), help="Precision of matrix products.", vary="bf16,fp8")
    optimizer: str = asked(default="adamw", converter=choice(*OPTIMIZER_BYTES), help="Optimizer.", vary="adamw,muon")
    finetune: str = asked(
        default="", converter=_FINETUNE, shown="full", vary="lora:8,lora:64", group=FINETUNE,
        help="What is trained: full, lora:RANK[:TARGETS], dora:16, qlora:16:q_proj,v_proj, freeze:LAYERS.",
    )  # fmt: skip
    base: str = asked(
        default="", converter=_BASE, shown="16 bits, or nf4 for qlora", vary="nf4,int8", group=FINETUNE,
        help="Format of the frozen base under adapters: nf4, nf4-single, int8, gptq, awq.",
    )  # fmt: skip
    in_backward: bool = asked(
        default=False, converter=FLAG, group=FINETUNE,
        help="Each weight is updated in the backward pass, as soon as its gradient exists (torchtune's optimizer_in_bwd).",
    )  # fmt: skip
    objective: str = asked(
        default="sft", converter=choice(*OBJECTIVES), help="Loss: pairs, a reference model or generated answers add work.",
        group=FINETUNE,
    )  # fmt: skip
    tower: str = asked(
        default="", converter=choice("frozen", "trained"), shown="not counted", group=FINETUNE,
        help="Count the tower for pictures beside the language model.",
    )  # fmt: skip
    images: int = asked(default=1, converter=whole(1, 10_000), help="Pictures per sequence (with --tower).", group=FINETUNE)
    data: str = asked(default="", converter=TEXT, help="Rows to train on, as JSONL: adds hours and cost.", group=FINETUNE)
    epochs: int = asked(default=1, converter=whole(1, 10_000), help="Passes over --data.", group=FINETUNE)
    packing: bool = asked(
        default=True, converter=FLAG, help="Rows of --data are packed into whole sequences, instead of padded.", group=FINETUNE
    )
    ram: float = asked(
        default=0.0, converter=quantity("bytes", positive=True), help="Memory of each host, for offload: 64GB.", shown="the cluster's",
        group=MACHINE,
    )  # fmt: skip
    loss: str = asked(
        default="", converter=choice(*LOSSES), shown="as the release", vary="materialised,kernel,chunked,fused", group=RECIPE,
        help="How the loss is computed: all logits (eager, compiled, or by a kernel), in chunks, or fused with the head.",
    )  # fmt: skip
    release: str = asked(
        default="", converter=TEXT, help="Release of the framework, or a day: 26.06, 2025-06 (meshwise show frameworks NAME).",
        shown="the newest", group=RECIPE, vary="2024-12,2025-06",
    )  # fmt: skip
    attention: str = asked(
        default="", converter=choice(*KERNELS), help="Attention kernel.", shown="as the release on this chip", group=RECIPE,
        vary="fa2,fa3",
    )  # fmt: skip
    overlap: str = asked(
        default="", converter=TEXT, help="Communication hidden behind compute: ep,tp, no-dp; what is not named is as the release does.",
        shown="as the release", group=RECIPE,
    )  # fmt: skip
    graphs: str = asked(
        default="", converter=choice(*GRAPHS), help="CUDA graphs: of layers (partial), or of whole steps.",
        shown="as the release", group=RECIPE, vary="none,full",
    )  # fmt: skip
    gradients: str = asked(
        default="", converter=choice(*ELEMENT_BYTES), help="Dtype in which gradients are summed and reduced.",
        shown="as the release", group=RECIPE, vary="fp32,bf16",
    )  # fmt: skip
    compile: bool = asked(default=False, converter=FLAG, help="Layers are compiled (torch.compile), where the framework can.")
    top: int = asked(default=10, converter=_TOP, help="Layouts to list.")
    fix: tuple[str, ...] = asked(default=(), converter=TEXTS, help="Fix axes of the layout: tp=8,recompute=full.", group=LAYOUT)
    allow: tuple[str, ...] = asked(default=(), converter=TEXTS, help="Bound axes of the layout: pp=1..12.", group=LAYOUT)
    at_most: str = asked(default="", converter=TEXT, help="Also try fewer nodes, up to this many: '48 nodes'.", group=LAYOUT)
    imbalance: float = asked(
        default=Train.imbalance, converter=number(1, 100), group=LAYOUT,
        help="Experts: tokens on the busiest expert-parallel rank over the mean.",
    )  # fmt: skip
    ramp: tuple[int, ...] = asked(
        default=(), converter=_LENGTHS, help="Batch sizes of a ramp-up, in sequences: 32,64,128.", group=LAYOUT
    )
    within: float = asked(
        default=0.0, converter=quantity("seconds", positive=True), help="Deadline for --tokens: 30d.", group=MACHINE
    )
    price: float = asked(default=0.0, converter=PRICE, help="Price of one device: $2.50/h.", shown="list price", group=MACHINE)
    link: float = asked(
        default=0.0, converter=RATE, help="Bandwidth between the devices of a node: 450GB/s.", shown="the chip's", group=MACHINE,
        vary="64GB/s..900GB/s",
    )  # fmt: skip
    calibration: str = asked(
        default="", converter=TEXT, help="Calibration by name, or a .toml file.", shown="by chip and framework", group=MACHINE
    )
    mtbf: float | None = asked(
        default=None, converter=optional(SECONDS), help="Mean time between failures of one device.", shown="50,677h, Llama 3's",
        group=FAILURES,
    )  # fmt: skip
    checkpoint_bandwidth: float | None = asked(
        default=None, converter=optional(RATE), help="Bandwidth of the cluster to storage: 100GB/s.",
        shown="122 MB/s per device", group=FAILURES,
    )  # fmt: skip
    checkpoint_every: float | None = asked(
        default=None, converter=optional(SECONDS), help="Time between checkpoints: 3h.", shown="the optimum", group=FAILURES
    )
    async_checkpoint: bool = asked(
        default=False, converter=FLAG, help="Training continues while a checkpoint is written.", group=FAILURES
    )
    restart: float | None = asked(
        default=None, converter=optional(SECONDS), help="Time from a failure until steps run again.", shown="10min",
        group=FAILURES,
    )  # fmt: skip
    repair: float | None = asked(
        default=None, converter=optional(SECONDS), help="Time until a failed node is back.", shown="1d", group=FAILURES
    )
    spares: int | None = asked(
        default=None, converter=optional(whole(0, 10**5)), help="Spare nodes.", shown="as many as pay off", group=FAILURES
    )
    straggler: float | None = asked(
        default=None, converter=optional(SHARE), help="Spread of step times between devices.", shown="0.5%", group=FAILURES
    )

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

    params: float = asked(
        default=0.0, converter=_PARAMETERS, help="Search the shape near this many parameters: 176B.", group=SHAPE
    )
    vocab: int = asked(default=0, converter=whole(1, 2**24), help="Vocabulary size: 250880.", shown="that of --like", group=SHAPE)
    like: str = asked(
        default="", converter=TEXT, help="Model with the same kind of layers.", shown="bloom-176b", complete="models", group=SHAPE
    )
    shape: tuple[str, ...] = asked(
        default=(), converter=TEXTS, help="One shape: hidden x layers x heads [x FFW], 14336x70x112.", group=SHAPE
    )


@question
class ServeAsk(EnergyAsk):
    """How to serve a model: `meshwise serve`. Tokens, seconds, bytes/s and dollars per second."""

    verb: ClassVar[str] = "serve"

    model: str = asked(
        default="", converter=TEXT, help=f"{_MODEL} With a format: llama-3.3-70b:q4_k_m.", complete="models", kw_only=False
    )
    on: str = asked(
        default="", converter=TEXT, help="Devices: 4xrtx4060ti-16gb, 2x(2xrtx3090)@10Gbps, 8xh100-sxm.", complete="clusters"
    )
    users: int = asked(
        default=1, converter=whole(1, 999_999), vary="1..64", help="Users who each wait for an answer before they ask again."
    )
    context: int = asked(
        default=0, converter=LENGTH, help="Longest context of one request, prompt and output.", shown="8k", vary="4k..128k"
    )
    prompt: int = asked(
        default=512, converter=_MEAN_LENGTH, help="Prompt tokens; 2k:0.5 is a mean and its spread.", vary="512..32k"
    )
    output: int = asked(default=128, converter=_MEAN_LENGTH, help="Output tokens; 500:1 is a mean and its spread.")
    rate: float = asked(
        default=0.0, converter=REQUEST_RATE, help="Requests that arrive at random, instead of --users: 12/s.", group=LOAD,
        vary="1/s..64/s",
    )  # fmt: skip
    burst: float = asked(
        default=1.0, converter=number(0.1, 10), help="Deviation of the time between arrivals over its mean; more than 1 are bursts.",
        group=LOAD,
    )  # fmt: skip
    prompt_spread: float = asked(
        default=0.0, converter=number(0, 5), help="Standard deviation of prompt lengths over their mean.", group=LOAD
    )
    output_spread: float = asked(
        default=0.0, converter=number(0, 5), help="Standard deviation of output lengths over their mean.", group=LOAD
    )
    lengths: str = asked(
        default="", converter=TEXT, help="JSONL of request lengths ('prompt' and 'output') instead of --prompt and --output.",
        group=LOAD,
    )  # fmt: skip
    depth: int = asked(
        default=0, converter=LENGTH, help="Cached tokens before the prompt, such as earlier turns.", group=LOAD, vary="1k..32k"
    )
    prefix: float = asked(default=0.0, converter=SHARE, help="Share of the prompt that is found in the cache: 60%.", group=LOAD)
    draft: int = asked(default=0, converter=whole(0, 999), help="Tokens that speculative decoding proposes per step.", group=LOAD)
    accept: float = asked(
        default=0.0, converter=_ACCEPTED_SHARE, help="Share of proposed tokens that are accepted: 0.7.", group=LOAD
    )
    lora: str = asked(
        default="", converter=ADAPTERS, help="LoRA adapters that requests choose from: 8:16 is eight of rank 16.", group=LOAD
    )
    engine: str = asked(
        default="", converter=TEXT, help="llama.cpp, vllm, sglang, tensorrt-llm, mlx, ollama, transformers, ...",
        shown="by format and chip", complete="engines", vary="llama.cpp,vllm",
    )  # fmt: skip
    kv: str = asked(default="f16", converter=TEXT, help="KV cache type: f16, q8_0, q4_0, fp8.", vary="f16,q8_0,q4_0")
    top: int = asked(default=10, converter=_TOP, help="Layouts to list.")
    ttft: str = asked(default="", converter=TARGET, help="Time to first token, at most: 1s@p95.", group=TARGETS)
    tpot: str = asked(default="", converter=TARGET, help="Time per output token after the first, at most: 40ms.", group=TARGETS)
    e2e: str = asked(default="", converter=TARGET, help="Time of a whole request, at most: 20s@p99.", group=TARGETS)
    per_user: float = asked(
        default=0.0, converter=quantity("count", positive=True, metavar="RATE"), help="Tokens/s of each request, at least: 15.",
        group=TARGETS,
    )  # fmt: skip
    measured: float = asked(
        default=0.0,
        converter=quantity("count", positive=True, metavar="RATE"),
        help="Tokens/s of one request that you measured: is it normal? With --measured-of all, of all requests together.",
        group=TARGETS,
    )
    measured_of: str = asked(
        default="each", converter=choice("each", "all"), help="What --measured counts: each request, or all together.",
        group=TARGETS,
    )  # fmt: skip
    fix: tuple[str, ...] = asked(default=(), converter=TEXTS, help="Fix the layout: split=row,cards=3 or tp=4.", group=LAYOUT)
    cheapest: bool = asked(
        default=False, converter=FLAG, help="Find the fewest and cheapest devices; --on lists chips, or is left out.",
        group=MACHINE,
    )  # fmt: skip
    price: float = asked(default=0.0, converter=PRICE, help="Price of one device: $0.40/h.", shown="list price", group=MACHINE)
    ram: float = asked(
        default=0.0, converter=quantity("bytes", positive=True), help="Memory of each host, for layers that stay there: 64GB.",
        shown="not limited", group=MACHINE,
    )  # fmt: skip
    link: float = asked(
        default=0.0, converter=RATE, help="Bandwidth between the devices of a host: 16GB/s.", shown="the chip's", group=MACHINE,
        vary="2GB/s,16GB/s,450GB/s",
    )  # fmt: skip

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
