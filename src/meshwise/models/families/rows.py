"""Constructors of Ops for the rows of an architecture file: "attention.gate" = "column(heads * head_dim, hidden)"."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwise.models.op import Op, Part, Shard, norm, vector

PARTS: dict[str, Part] = {
    "attention": "attention", "index": "attention", "embedding": "vocabulary", "head": "vocabulary",
    "positions": "positions", "ffw": "ffw", "shared": "ffw", "experts": "experts", "router": "router", "ssm": "ssm",
    "delta": "linear attention", "linear": "linear attention", "layer": "norms", "mixing": "ffw",
}  # fmt: skip
"""The part that the first word of an Op's name belongs to."""


class SizeError(Exception):
    """A size that is no whole number from 1 on: the reader says which key it comes from."""


def named(name: str, value: Any) -> list[Op]:
    """Return the Op of a row, under its name; nothing where the value is none, false or 0."""
    if not value:
        return []
    part = PARTS[name.partition(".")[0]]
    op: Op = value
    return [replace(op, name=name, part=op.part if op.kind == "norm" else part)]


def _sized(*sizes: Any) -> None:
    if any(type(size) is not int or size < 1 for size in sizes):
        raise SizeError


def _linear(shard: Shard) -> Callable[..., Op]:
    def linear(n: int, k: int, bias: Any = False) -> Op:
        _sized(n, k)
        return Op(name="", part="ffw", kind="matmul", n=n, k=k, params=n * k + n * bool(bias), shard=shard)

    return linear


def attend(
    heads: int, key: int, value: int, cache: int, window: Any = 0, chunked: Any = False, selected: Any = 0, every: int = 1
) -> Op:
    """Return softmax attention; `cache` is the number of elements of a cached key and value."""
    _sized(heads, key, value, every)
    return Op(
        name="", part="attention", kind="attention", m=heads, n=value, k=key, shard="heads", cache=cache,
        window=window or 0, chunked=bool(chunked and window), selected=selected or 0, every=every,
    )  # fmt: skip


def conv(channels: int, kernel: int, bias: Any = False, state: Any = None, inputs: int = 1) -> Op:
    """Return a causal convolution over time; it keeps as many inputs as the kernel is wide."""
    _sized(channels, kernel, inputs)
    params = channels * (kernel * inputs + bool(bias))
    kept = channels * kernel if state is None else state
    return Op(name="", part="ssm", kind="conv", n=channels, k=kernel * inputs, params=params, shard="column", state=kept)


def scan(times: int, n: int, k: int, state: int = 0, params: int = 0) -> Op:
    """Return `times` products n x k per token inside a recurrence."""
    _sized(times, n, k)
    return Op(name="", part="ssm", kind="scan", m=times, n=n, k=k, shard="heads", state=state, params=params)


def lookup(n: int, k: int) -> Op:
    _sized(n, k)
    return Op(name="", part="vocabulary", kind="lookup", n=n, k=k, params=n * k, shard="vocab")


def positions(n: int, k: int) -> Op:
    return replace(lookup(n, k), shard="")


def gain(width: int, bias: Any = False) -> Op:
    _sized(width)
    return norm("", width, bias=bool(bias))


def weights(size: int, shard: Shard = "") -> Op:
    """Return parameters that only scale or shift."""
    _sized(size)
    return vector("", "ffw", size, shard)


def expert(op: Op, number: int, active: int) -> Op:
    """Return one of `number` experts, of which a token uses `active`."""
    _sized(number, active)
    if active > number:
        raise SizeError
    return replace(op, m=active / number, count=number, expert=True)


def times(op: Op, count: int) -> Op:
    _sized(count)
    return replace(op, count=count)


def stored_elsewhere(op: Op) -> Op:
    """Return the Op without parameters: it uses those of another layer."""
    return replace(op, params=0)


def state(op: Op, elements: int) -> Op:
    """Return the Op with elements that are kept per sequence."""
    return replace(op, state=elements)


CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "column": _linear("column"), "row": _linear("row"), "kv": _linear("kv"), "whole": _linear(""),
    "vocab_linear": _linear("vocab"), "attend": attend, "conv": conv, "scan": scan, "lookup": lookup, "table": positions,
    "norm": gain, "vector": weights, "expert": expert, "times": times, "stored_elsewhere": stored_elsewhere, "state": state,
}  # fmt: skip
