"""Train and Serve: the task, without the model and the machine."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwise import units
from meshwise.cost.finetune import FULL, Finetune
from meshwise.cost.objective import SFT, Objective
from meshwise.cost.precision import RECIPES, Precision, Recipe
from meshwise.cost.reliability import Reliability
from meshwise.errors import UserError, quoted

if TYPE_CHECKING:  # --help reads the fields of these classes and should not import numpy
    from meshwise.catalogue.frameworks import Framework
    from meshwise.cost.layout import Ints

OPTIMIZER_BYTES: dict[str, float] = {
    "adamw": 12.0, "adamw-8bit": 6.0, "adamw-bf16": 8.0, "adamw-paged": 12.0, "adamw-paged-8bit": 6.0, "muon": 8.0,
    "adafactor": 4.0, "galore": 6.5, "sgd": 4.0, "sgd-momentum": 8.0, "lomo": 0.0,
}  # fmt: skip
"""Bytes per parameter besides weights and gradients: a float32 master copy, and the moments of each optimizer, float32 or in the format
that its name states (bf16: arXiv:2412.19437, section 3.3). GaLore's moments have a quarter of the rank of its matrices (arXiv:2403.03507,
section 5.1), and a projector of about half a byte per weight; LOMO has neither moments nor a master copy."""
MASTER_BYTES = 4.0
"""Bytes of the float32 master copy in OPTIMIZER_BYTES."""
WEIGHT_DTYPE_OPTIMIZERS = ("adamw", "muon", "sgd-momentum", "galore")
"""Optimizers whose moments have the dtype of the weights: half of the float32 bytes above where weights have 16 bits."""
PAGED_BYTES = {"adamw-paged": 8.0, "adamw-paged-8bit": 2.0}
"""Bytes of OPTIMIZER_BYTES that a paged optimizer moves to host memory when the device is full (bitsandbytes, CUDA unified memory)."""
SHORT_MOMENTS = "adamw-bf16"
FUSED_UPDATE = "lomo"
"""The optimizer that updates each weight as soon as its gradient exists, so that gradients are never all in memory (arXiv:2306.09782)."""

DEFAULT_RELIABILITY = Reliability()
MAX_BATCH_TOKENS = 1e15
"""Largest batch in tokens."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train on `batch` sequences of `seq` tokens per step."""

    batch: "int | Ints"
    """Sequences per step; an array where each row of a table of measurements has its own."""
    seq: int
    framework: "Framework"
    precision: Precision = "bf16"
    loss: str = ""
    """How the loss is computed, one of LOSSES; '': as the framework does."""
    compiled: bool = False
    """Whether the layers are compiled (torch.compile); only frameworks with `compiled` differ."""
    optimizer: str = "adamw"
    finetune: Finetune = FULL
    """Which parameters are trained."""
    objective: Objective = SFT
    tokens: float = 0.0
    """Tokens of the whole run; 0 where only the step matters."""
    ramp: tuple[int, ...] = ()
    """Smaller batch sizes, in sequences, that the run starts with before it reaches `batch`."""
    imbalance: float = 1.1
    """Tokens on the busiest device of an expert-parallel group over the mean: routers balance in the long run, not in every layer."""
    reserve: float = 0.04
    """Share of a device's memory that is left free for fragmentation."""
    reliability: Reliability = DEFAULT_RELIABILITY

    @property
    def recipe(self) -> Recipe:
        """How the products of the layers are computed."""
        return RECIPES[self.precision]

    @property
    def loss_kind(self) -> str:
        return self.loss or self.framework.loss

    @property
    def batch_tokens(self) -> "int | Ints":
        return self.batch * self.seq

    def checkpoint_bytes(self, params: float) -> float:
        """Return the bytes of a checkpoint: weights and optimizer state, stored once however often they are replicated."""
        copy = 0 if self.framework.shards_master else self.framework.weight_bytes
        return params * (copy + OPTIMIZER_BYTES[self.optimizer])


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Answer `users` concurrent requests, each with `prompt` tokens in and `output` tokens out."""

    prompt: int
    output: int
    users: int = 1
    """Concurrent requests."""
    context: int
    """Tokens that the cache of one request holds."""
    kv: str = "f16"
    """KV cache type."""
    flash: bool | None = None
    """Flash attention; None: the engine's default."""
    depth: int = 0
    """Tokens in the cache before the prompt: earlier turns of a chat."""
    adapters: int = 0
    """LoRA adapters that requests choose from."""
    rank: int = 0
    """Rank of the adapters."""

    def __post_init__(self) -> None:
        if self.prompt < 0 or self.output < 0 or self.prompt + self.output < 1 or self.users < 1:
            raise UserError(
                f"nothing to serve: {self.prompt} prompt tokens, {self.output} output tokens, {self.users} concurrent requests; "
                "expected at least one token and one request"
            )
        needed = self.depth + self.prompt + self.output
        if self.context < needed:
            before = f"{self.depth:,} earlier tokens, " if self.depth else ""
            raise UserError(
                f"a context of {self.context:,} does not hold {before}a prompt of {self.prompt:,} and an output of {self.output:,}; "
                f"give at least {needed:,}"
            )

    @property
    def mean_context(self) -> int:
        """Mean context of a sequence while it generates, without `depth`."""
        return max(1, self.prompt + self.output // 2)


def batch_tokens(text: str, seq: int) -> tuple[float, int]:
    """Parse a batch that need not be a whole number of sequences into its tokens and the sequence length: '4M', '4e6', 1024 sequences, or
    1024x8192."""
    cleaned = text.strip().lower().replace("×", "x")
    if "x" in cleaned or re.fullmatch(r"\d+", cleaned):
        sequences, length = parse_batch(text, seq)
        return float(sequences * length), length
    tokens = units.parse(text, "length")
    if not 1 <= tokens <= 2**50:
        raise UserError(f"{quoted(text)} is not a batch: expected sequences (1024) or tokens (4M)")
    return tokens, seq


def parse_batch(text: str, seq: int) -> tuple[int, int]:
    """Parse a batch into sequences per step and their length: '2048x4096', '2048' sequences, or '4M' tokens, where 4M is 4 x 1024 x
    1024."""
    cleaned = text.strip().lower().replace("×", "x")
    if "x" in cleaned:
        number, _, length = cleaned.partition("x")
        return _positive(number, text), units.whole_length(length)
    if re.fullmatch(r"\d+", cleaned):
        return _positive(cleaned, text), seq
    try:
        tokens = units.parse(text, "length")
    except UserError:
        raise _not_a_batch(text) from None
    if tokens > MAX_BATCH_TOKENS:
        raise UserError(f"a batch of {quoted(text)} is too large: expected at most {MAX_BATCH_TOKENS:.0e} tokens")
    if tokens < seq or tokens % seq:
        whole = max(1, round(tokens / seq))
        nearest = f"{whole} sequence{'s are' if whole > 1 else ' is'} {whole * seq:,} tokens"
        raise UserError(f"a batch of {text} is not a whole number of sequences of {seq:,} tokens; {nearest}")
    return int(tokens) // seq, seq


def _positive(digits: str, text: str) -> int:
    value = units.parse(digits, "length")
    if value != int(value) or not 1 <= value <= 2**40:
        raise _not_a_batch(text)
    return int(value)


def _not_a_batch(text: str) -> UserError:
    return UserError(f"{quoted(text)} is not a batch: expected sequences (2048), sequences x length (2048x4096) or tokens (4M)")
