"""Op: one distinct operation of a model, with all that counting and pricing need to know of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["matmul", "attention", "scan", "conv", "norm", "lookup", "vector"]
"""`scan` is a matmul inside a recurrence (SSM, linear attention, TTT): same FLOPs, but on a serial chain."""

Part = Literal["vocabulary", "positions", "attention", "ffw", "experts", "router", "ssm", "linear attention", "ttt", "norms"]
"""The rows of every table of parameters."""

Shard = Literal["", "column", "row", "kv", "heads", "vocab"]
"""How tensor parallelism cuts it: output features, input features, KV heads, heads, vocabulary; '' is a full copy each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """`count` instances of one operation; its FLOPs per token are 2 m n k each.

    matmul     m rows per token (1; top_k / experts for one expert), n outputs, k inputs
    attention  m heads, k = size of a query and key, n = size of a value; multiplied by the keys a token looks at
    lookup, norm, vector: no matrix product, n and k say the shape
    """

    name: str
    part: Part
    kind: Kind
    n: int
    k: int
    m: float = 1
    count: int = 1
    params: int = 0
    shard: Shard = ""
    expert: bool = False
    """One of many experts: cut over `ep`, and used by m of the tokens."""
    cache: int = 0
    """Elements kept per token of context (keys and values)."""
    state: int = 0
    """Elements kept per sequence, whatever its length."""
    serial: int = 0
    """Tokens of one step of a chain that is walked step by step (TTT's mini-batch); 0 where a scan runs in parallel."""
    window: int = 0
    """Keys a token can look back on; 0 is all of them."""
    chunked: bool = False
    """The window is a fixed chunk of the sequence (Llama 4), not the last `window` tokens."""

    def keys(self, seq: int, causal: bool = True) -> float:
        """How many keys a token looks at on average over a sequence; the whole of it where masks are not skipped.

        Worked: seq 4, causal, no window: (1 + 2 + 3 + 4) / 4 = 2.5; window 2: (1 + 2 + 2 + 2) / 4 = 1.75;
        chunks of 3: (1 + 2 + 3 + 1) / 4 = 1.75.
        """
        if not causal:
            return float(seq)
        reach = min(self.window or seq, seq)
        if self.chunked:
            whole, rest = divmod(seq, reach)
            return (whole * reach * (reach + 1) + rest * (rest + 1)) / 2 / seq
        return reach - reach * (reach - 1) / 2 / seq

    def flops(self, seq: int, causal: bool = True) -> float:
        """Forward FLOPs per token of all instances, a multiply and an add counted as two."""
        if self.kind == "attention":
            return 2 * self.m * (self.n + self.k) * self.keys(seq, causal) * self.count
        if self.kind in ("matmul", "scan", "conv"):
            return 2 * self.m * self.n * self.k * self.count
        return 0.0

    def cached(self, context: int) -> int:
        """Elements kept for one sequence of `context` tokens, all instances together."""
        return self.count * (self.cache * min(context, self.window or context) + self.state)


CUT = ("column", "kv", "heads")
"""How tensor parallelism cuts outputs."""


def together(ops: Iterable[Op]) -> list[list[Op]]:
    """The matrix products of a block as a program computes them that joins those of one input: the same part, cut alike by outputs."""
    found: list[list[Op]] = []
    for op in ops:
        if op.kind == "matmul":
            if found and _reads_as(found[-1][-1], op):
                found[-1].append(op)
            else:
                found.append([op])
    return found


def _reads_as(one: Op, other: Op) -> bool:
    if one.shard not in CUT or other.shard not in CUT or one.part != other.part:
        return False
    # a stack of shapes has arrays for numbers
    same: list[Any] = [one.k == other.k, one.count == other.count, one.m == other.m]
    return all(each.all() if hasattr(each, "all") else each for each in same)


def linear(name: str, part: Part, n: int, k: int, shard: Shard, *, bias: bool = False) -> Op:
    """y = W x (+ b): n outputs, k inputs."""
    return Op(name=name, part=part, kind="matmul", n=n, k=k, params=n * k + n * bias, shard=shard)


def norm(name: str, width: int, *, bias: bool = False, part: Part = "norms", copies: int = 1) -> Op:
    """RMSNorm (a gain) or LayerNorm (a gain and a bias) over `width`."""
    return Op(name=name, part=part, kind="norm", n=width, k=1, params=width * (1 + bias) * copies)


def vector(name: str, part: Part, size: int, shard: Shard = "") -> Op:
    """Parameters that scale or shift and multiply nothing."""
    return Op(name=name, part=part, kind="vector", n=size, k=1, params=size, shard=shard)
