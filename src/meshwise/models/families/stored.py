"""How llama.cpp stores described types: data/gguf/ARCHITECTURE.toml as an Architecture.

types = ["llama", "mistral"]   model types stored under this name; a file is read as the first
experts = "mixtral"            the type that a file is read as where it has experts
readable = false               whether a model can be built from the metadata of a file (true)
writable = true                whether `make-gguf` writes it (false)
norms = ["attn_norm", ...]     names of a layer's norms of hidden width, in order
fused_qkv, fused_gate = true   queries, keys and values, or gate and up, are one tensor
splits = ["kv_up"]             Ops that the converter splits
[keys]                         metadata: HF's names for it, beyond those that all architectures share
[config]                       keys of config.json as expressions: meta('rope.dimension_count'), has('blk.0.attn_q.bias'), size(...)
[names]                        llama.cpp's names for Ops, where they differ from the usual ones
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.models.architecture import Architecture, Metadata, rename
from meshwise.models.families.expression import CONSTANTS, FUNCTIONS, parse
from meshwise.models.op import Op

FOLDER = "gguf"
Shapes = Mapping[str, Sequence[int]]


@files.cached
def load(name: str) -> tuple[Architecture, ...]:
    """Return the architecture of llama.cpp with this name: two where files with experts are another type, none if it is unknown."""
    path = files.files(FOLDER, ".toml").get(name)
    if path is None:
        return ()
    table: dict[str, Any] = files.table_of(path)
    config = _config(table.get("keys", {}), table.get("config", {}), name)
    one = Architecture(
        name=name, model_types=tuple(table["types"]), readable=table.get("readable", True),
        writable=table.get("writable", False), norms=tuple(table.get("norms", Architecture.norms)),
        fused_qkv=table.get("fused_qkv", False), fused_gate=table.get("fused_gate", False),
        fused_experts=table.get("fused_experts", False), expert_name=table.get("expert_name", ""),
        split=_split([SPLITS[split] for split in table.get("splits", ())]), names=_names(table.get("names", {})),
        config=config,
    )  # fmt: skip
    if "experts" not in table:
        return (one,)
    return (replace(one, model_types=(table["experts"],), requires="expert_count"), one)


def every() -> tuple[Architecture, ...]:
    """Return all architectures that are described."""
    return tuple(architecture for name in files.files(FOLDER, ".toml") for architecture in load(name))


def _names(table: Mapping[str, Any]) -> dict[str, str | tuple[str, ...]]:
    return {op: names if isinstance(names, str) else tuple(map(str, names)) for op, names in table.items()}


def _config(keys: Mapping[str, Any], rows: Mapping[str, Any], where: str) -> Callable[[Metadata, Shapes], dict[str, object]]:
    names = {key: (value,) if isinstance(value, str) else tuple(value) for key, value in keys.items()}

    def config(metadata: Metadata, shapes: Shapes) -> dict[str, object]:
        scope: dict[str, Any] = {
            **CONSTANTS,
            **FUNCTIONS,
            "meta": metadata.get,
            "has": shapes.__contains__,
            "size": lambda name, axis=0: _size(shapes, name, axis),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
            "largest": _largest,
            "kinds": lambda tensor, yes, no: _kinds(metadata, shapes, tensor, yes, no),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        }
        found: dict[str, object] = {}
        for key, row in rows.items():
            try:
                value = parse(row, where).value(scope) if isinstance(row, str) else row
            except (ArithmeticError, TypeError, ValueError, LookupError):
                raise UserError(f"{where}: the metadata that '{key}' comes from is missing or of another kind ({row})") from None
            if value is not None:
                found[key] = value
        return rename(metadata, names) | found

    return config


def _size(shapes: Shapes, name: str, axis: int) -> int | None:
    """Return one dimension of a tensor: its rows, or with axis 1 its columns; None where the file has no such tensor."""
    return shapes[name][-1 - axis] if name in shapes else None


def _largest(value: Any) -> Any:
    """Return the largest number of a list with one per layer; a single number as it is."""
    numbers: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
    return max(numbers, default=None)


def _kinds(metadata: Metadata, shapes: Shapes, tensor: str, yes: str, no: str) -> list[str]:
    """Return one word per layer: `yes` where the file has the tensor 'blk.N.(tensor)', else `no`."""
    layers = metadata.get("block_count")
    return [yes if f"blk.{i}.{tensor}" in shapes else no for i in range(layers if isinstance(layers, int) else 0)]


Split = Callable[[Op, Sequence[Op]], list[Op]]


def _split(splits: Sequence[Split]) -> Split:
    def split(op: Op, ops: Sequence[Op]) -> list[Op]:
        for one in splits:
            parts = one(op, ops)
            if parts != [op]:
                return parts
        return [op]

    return split


def split_kv_up(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split the up projection of a latent into keys and values, with one matrix per head, as the converter does."""
    if op.name != "attention.kv_up":
        return [op]
    scores = next(other for other in ops if other.name == "attention.scores")
    heads, rank, value = int(scores.m), op.k, scores.n
    nope = op.n // heads - value
    half = replace(op, shard="heads", count=heads)
    return [
        replace(half, name="attention.k_up", n=rank, k=nope, params=rank * nope),
        replace(half, name="attention.v_up", n=value, k=rank, params=value * rank),
    ]


def split_gate(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split the gate of a delta net from the queries, keys and values, which pass through the convolution."""
    if op.name != "delta.qkvz":
        return [op]
    (conv,) = (other for other in ops if other.name == "delta.conv")
    gate = op.n - conv.n
    return [
        replace(op, name="delta.qkv", n=conv.n, params=conv.n * op.k),
        replace(op, name="delta.gate", n=gate, params=gate * op.k),
    ]


def split_beta_decay(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split the two projections of a delta net's decay and step."""
    if op.name != "delta.beta_decay":
        return [op]
    half = replace(op, n=op.n // 2, params=op.params // 2)
    return [replace(half, name="delta.beta"), replace(half, name="delta.alpha")]


def split_qkv_convs(op: Op, ops: Sequence[Op]) -> list[Op]:
    """Split queries, keys and values of Kimi's delta attention and their convolutions into three."""
    if op.name not in ("delta.qkv", "delta.conv"):
        return [op]
    third = replace(op, n=op.n // 3, params=op.params // 3)
    stem = "delta." if op.name == "delta.qkv" else "delta.conv_"
    return [replace(third, name=f"{stem}{part}") for part in "qkv"]


SPLITS: dict[str, Split] = {
    "kv_up": split_kv_up,
    "gate": split_gate,
    "beta_decay": split_beta_decay,
    "qkv_convs": split_qkv_convs,
}
