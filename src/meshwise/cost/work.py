"""Train and Serve: the question, apart from the model and the machine it is asked of."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from meshwise import units
from meshwise.cost.reliability import Reliability
from meshwise.errors import UserError, quoted

if TYPE_CHECKING:  # the fields of questions come from here, and help should not wait for the rest
    from meshwise.catalogue.frameworks import Framework
    from meshwise.cost.layout import Ints

Precision = Literal["bf16", "fp16", "fp8"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

OPTIMIZER_BYTES: dict[str, float] = {
    "adamw": 12.0,
    "adamw-8bit": 6.0,
    "muon": 8.0,
    "adafactor": 4.0,
    "sgd": 4.0,
    "sgd-momentum": 8.0,
}
"""Bytes kept per parameter beside the weights and gradients: a float32 master copy, and the moments of each method."""

RELIABLE = Reliability()
MOST_TOKENS = 1e15
"""Tokens of a batch, at most."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train on `batch` sequences of `seq` tokens a step."""

    batch: "int | Ints"
    """Sequences a step; an array where each layout of a table of measurements had its own."""
    seq: int
    framework: "Framework"
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    tokens: float = 0.0
    """How many to train on in all; 0 where the question is the step alone."""
    ramp: tuple[int, ...] = ()
    """Batch sizes, in sequences, that the run passes on its way up to `batch`."""
    imbalance: float = 1.1
    """Tokens on the busiest device of an expert-parallel group over the mean: routers balance in the long run, not in every layer."""
    reserve: float = 0.04
    """Share of a device's memory that is left free: fragmentation takes it before a run would."""
    reliability: Reliability = RELIABLE

    @property
    def batch_tokens(self) -> "int | Ints":
        return self.batch * self.seq

    def checkpoint_bytes(self, params: float) -> float:
        """What a run needs to go on, stored once however often it is replicated: weights and optimizer state."""
        return params * (self.framework.weight_bytes + OPTIMIZER_BYTES[self.optimizer])


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Answer `users` at once, each with `prompt` tokens in and `output` tokens out."""

    prompt: int
    output: int
    users: int = 1
    """Sequences at once."""
    context: int
    """Tokens that the cache of one sequence has room for."""
    kv: str = "f16"
    flash: bool | None = None
    """Flash attention; the engine's own default where nothing is said."""

    def __post_init__(self) -> None:
        if self.prompt < 0 or self.output < 0 or self.prompt + self.output < 1 or self.users < 1:
            raise UserError(
                f"nothing to serve: {self.prompt} tokens of prompt, {self.output} of output, {self.users} users; "
                "expected at least one token and one user"
            )
        if self.context < self.prompt + self.output:
            raise UserError(
                f"a context of {self.context:,} does not hold a prompt of {self.prompt:,} and an output of {self.output:,}; "
                f"give at least {self.prompt + self.output:,}"
            )

    @property
    def mean_context(self) -> int:
        """Tokens behind a sequence on average while it generates."""
        return max(1, self.prompt + self.output // 2)


def batch_tokens(text: str, seq: int) -> tuple[float, int]:
    """Tokens of a batch that need not be whole sequences, for arithmetic without a layout, and the length of a sequence: '4M', '4e6',
    1024 sequences, or 1024x8192."""
    cleaned = text.strip().lower().replace("×", "x")
    if "x" in cleaned or re.fullmatch(r"\d+", cleaned):
        sequences, length = parse_batch(text, seq)
        return float(sequences * length), length
    tokens = units.parse(text, "length")
    if not 1 <= tokens <= 2**50:
        raise UserError(f"{quoted(text)} is not a batch: expected sequences (1024) or tokens (4M)")
    return tokens, seq


def parse_batch(text: str, seq: int) -> tuple[int, int]:
    """Sequences a step and their length: '2048x4096', '2048' sequences, or '4M' tokens, in 1024s as sequence lengths are."""
    cleaned = text.strip().lower().replace("×", "x")
    if "x" in cleaned:
        number, _, length = cleaned.partition("x")
        return _positive(number, text), units.whole_length(length)
    if re.fullmatch(r"\d+", cleaned):
        return _positive(cleaned, text), seq
    tokens = units.parse(text, "length")
    if tokens > MOST_TOKENS:
        raise UserError(f"{quoted(text)} is too large a batch: expected at most {MOST_TOKENS:.0e} tokens")
    if tokens < seq or tokens % seq:
        whole = max(1, round(tokens / seq))
        raise UserError(
            f"a batch of {text} is no whole number of sequences of {seq:,} tokens; {whole} of them are {whole * seq:,} tokens"
        )
    return int(tokens) // seq, seq


def _positive(digits: str, text: str) -> int:
    value = units.parse(digits, "length")
    if value != int(value) or not 1 <= value <= 2**40:
        raise UserError(
            f"{quoted(text)} is not a batch: expected sequences (2048), sequences x length (2048x4096) or tokens (4M)"
        )
    return int(value)
