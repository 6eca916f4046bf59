"""Op: one distinct operation of a model, with everything that counts and cost formulas need."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["matmul", "attention", "scan", "conv", "norm", "lookup", "vector"]
"""`scan` is a matmul inside a recurrence (SSM, linear attention, TTT): the same FLOPs, but on a serial chain."""

Part = Literal["vocabulary", "positions", "attention", "ffw", "experts", "router", "ssm", "linear attention", "ttt", "norms"]
"""The rows of every table of parameters."""

Shard = Literal["", "column", "row", "kv", "heads", "vocab"]
"""How tensor parallelism shards it: output features, input features, KV heads, heads, vocabulary; '' is a full copy on each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """`count` instances of one operation; its FLOPs per token are 2 m n k each. matmul m rows per token (1; top_k / experts for one
    expert), n outputs, k inputs attention m heads, k = size of a query and key, n = size of a value; multiplied by the keys that a token
    attends to lookup, norm, vector: no matrix product; n and k are the shape"""

    name: str
    part: Part
    kind: Kind
    n: int
    k: int
    m: float = 1
    count: int = 1
    params: int = 0
    shard: Shard = ""
    expert: bool = False  # one of many experts: sharded over `ep`, and used by the fraction m of the tokens
    cache: int = 0  # elements of KV cache per token of context
    state: int = 0  # elements of state per sequence, independent of its length
    serial: int = 0  # tokens per step of a serial chain (TTT's mini-batch); 0 if a scan runs in parallel
    window: int = 0  # sliding window in tokens; 0: full attention
    chunked: bool = False  # the window is a fixed chunk of the sequence (Llama 4), not the last `window` tokens
    selected: int = 0
    """Keys that a token attends to at most, chosen by an index among all that are cached (DeepSeek V3.2); 0: no limit."""
    every: int = 1  # tokens that share one cached key (the compressed attention of DeepSeek V4)

    def keys(self, seq: int, causal: bool = True) -> float:
        """Return the keys that a token attends to, on average over a sequence; all of them if masked ones are not skipped. Worked: seq 4,
        causal, no window: (1 + 2 + 3 + 4) / 4 = 2.5; window 2: (1 + 2 + 2 + 2) / 4 = 1.75; chunks of 3: (1 + 2 + 3 + 1) / 4 = 1.75."""
        if self.selected or self.every > 1:
            return self._selected(seq, causal)
        if not causal:
            return float(seq)
        reach = min(self.window or seq, seq)
        if self.chunked:
            whole, rest = divmod(seq, reach)
            return (whole * reach * (reach + 1) + rest * (rest + 1)) / 2 / seq
        return reach - reach * (reach - 1) / 2 / seq

    def _selected(self, seq: int, causal: bool) -> float:
        """Return the keys where several tokens share one, or where only some are selected. Worked: seq 8, causal, 4 selected: (1 + 2 + 3
        + 4 x 5) / 8 = 3.25; one key per 4 tokens, none selected: (4 x 1 + 1 x 2) / 8 = 0.75, since a key is complete with its fourth
        token."""
        most = self.selected or seq
        if not causal:
            return float(min(seq // self.every, most))
        whole = seq // self.every
        # `every` positions in a row see the same number of complete keys: 0 for the first every - 1, then 1, and so on
        limited = min(whole, most)
        below = limited * (limited - 1) / 2 * self.every  # positions that see 1 ... limited - 1 keys
        at_limit = (seq - limited * self.every + 1) * limited if limited else 0
        return (below + at_limit) / seq

    def kept(self, context: int) -> int:
        """Return the keys in the cache of one layer after `context` tokens."""
        return min(context, self.window or context) // self.every

    def flops(self, seq: int, causal: bool = True) -> float:
        """Return the forward FLOPs per token of all instances; a multiply and an add count as two."""
        if self.kind == "attention":
            return 2 * self.m * (self.n + self.k) * self.keys(seq, causal) * self.count
        if self.kind in ("matmul", "scan", "conv"):
            return 2 * self.m * self.n * self.k * self.count
        return 0.0

    def cached(self, context: int) -> int:
        """Return the elements of KV cache and state for one sequence of `context` tokens, all instances together."""
        return self.count * (self.cache * self.kept(context) + self.state)


FROZEN_TOWER, TRAINED_TOWER = "tower.frozen", "tower.trained"
"""Names of the Op that stands for a tower beside the language model: m patches per sequence, k elements of width in all its layers."""
ALL_LINEAR = "all-linear"  # PEFT's word for every linear layer except the output head
BY_OUTPUT = ("column", "kv", "heads")  # values of `shard` that divide the outputs of a product


def fusable_groups(ops: Iterable[Op]) -> list[list[Op]]:
    """Group the matrix products of a block that a program can fuse: same input, same part, sharded by outputs."""
    groups: list[list[Op]] = []
    for op in ops:
        if op.kind == "matmul":
            if groups and _same_input(groups[-1][-1], op):
                groups[-1].append(op)
            else:
                groups.append([op])
    return groups


def _same_input(a: Op, b: Op) -> bool:
    if a.shard not in BY_OUTPUT or b.shard not in BY_OUTPUT or a.part != b.part:
        return False
    # in a stack of shapes these are arrays
    same: list[Any] = [a.k == b.k, a.count == b.count, a.m == b.m]
    return all(each.all() if hasattr(each, "all") else each for each in same)


def linear(name: str, part: Part, n: int, k: int, shard: Shard, *, bias: bool = False) -> Op:
    """Return the Op of y = W x (+ b), with n outputs and k inputs."""
    return Op(name=name, part=part, kind="matmul", n=n, k=k, params=n * k + n * bias, shard=shard)


def norm(name: str, width: int, *, bias: bool = False, part: Part = "norms", copies: int = 1) -> Op:
    """Return the Op of an RMSNorm (a gain) or LayerNorm (a gain and a bias) over `width`."""
    return Op(name=name, part=part, kind="norm", n=width, k=1, params=width * (1 + bias) * copies)


def vector(name: str, part: Part, size: int, shard: Shard = "") -> Op:
    """Return the Op of parameters that only scale or shift, without a matrix product."""
    return Op(name=name, part=part, kind="vector", n=size, k=1, params=size, shard=shard)
