"""Assembly of a described model: the standard blocks that an architecture file can call, and layers between embedding and head."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from meshwise.errors import UserError, quoted
from meshwise.models.config import Config, as_list
from meshwise.models.families import blocks
from meshwise.models.families.blocks import Block, Body, Decoder
from meshwise.models.families.description import Description
from meshwise.models.families.keys import Keys
from meshwise.models.families.rows import SizeError
from meshwise.models.op import Op

FLAGS = frozenset(field.name for field in fields(Decoder) if field.type in ("bool", bool))


class Names(Protocol):
    """The part of a Reader that builders of blocks use."""

    description: Description
    config: Config
    keys: Keys

    def __getitem__(self, name: str) -> Any: ...
    def from_rows(self, name: str, rows: Mapping[str, Any]) -> Block: ...


def flag(name: str, value: Any) -> Any:
    """Return a flag of Decoder as true or false: a config may have null for it."""
    return bool(value) if name in FLAGS else value


def _sizes_now(reader: Names) -> Decoder:
    """Return the sizes and variants that blocks of the current layer are built from."""
    names = (
        "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "qkv_bias", "out_bias", "ffn_bias", "norm_bias",
        "qk_norm",
    )  # fmt: skip
    values: dict[str, Any] = {name: flag(name, reader[name]) for name in names}
    return Decoder(layers=1, vocab=1, **values)


def _require(*sizes: Any) -> None:
    if any(type(size) is not int or size < 1 for size in sizes):
        raise SizeError


def _attention(reader: Names) -> Callable[..., Block]:
    def build(**sizes: Any) -> Block:
        given = {key: sizes.pop(key, reader[key]) for key in ("window", "chunked", "sinks", "value_dim")}
        d = replace(_sizes_now(reader), **sizes)
        _require(d.hidden, d.heads, d.kv_heads, d.head_dim)
        window = given["window"] or 0
        chunked = bool(given["chunked"] and window)
        return blocks.attention(d, window, chunked=chunked, sinks=bool(given["sinks"]), value_dim=given["value_dim"] or 0)

    return build


def _mlp(reader: Names) -> Callable[..., Block]:
    def build(ffn: Any = None) -> Block:
        width = reader["ffn"] if ffn is None else ffn
        _require(width)
        return blocks.mlp(_sizes_now(reader), width)

    return build


def _experts(reader: Names) -> Callable[..., Block]:
    def build(number: Any, active: Any, width: Any, **options: Any) -> Block:
        _require(number, active, width)
        if active > number:
            raise SizeError
        return blocks.experts(_sizes_now(reader), number, active, width, **options)

    return build


def _again(reader: Names) -> Callable[[str], Block]:
    """Return the builder of a block that runs once more with the weights of another one, which are stored there."""

    def build(name: str) -> Block:
        block = reader.from_rows(name, reader.description.blocks[name])
        return Block(f"{name}_again", tuple(replace(op, params=0) for op in block.ops))

    return build


def _stated(reader: Names) -> Callable[[str], bool]:
    return lambda name: reader.config.values.get(name) is not None


def _key(reader: Names) -> Callable[[str], Any]:
    return reader.keys.read


def _numbers(reader: Names) -> Callable[[str], frozenset[int]]:
    """Return the reader of a list of layer numbers that is written as a list or as text: '3,4,5'."""

    def numbers(name: str) -> frozenset[int]:
        value = reader.config.values.get(name)
        items: list[Any] = [*value.split(",")] if isinstance(value, str) else as_list(value)
        if not all(type(item) is int or (isinstance(item, str) and item.strip().isdigit()) for item in items):
            raise UserError(f"{reader.config.where}: '{name}' is {quoted(value)}; expected layer numbers such as '3,4,5'")
        return frozenset(int(item) for item in items)

    return numbers


BUILDERS: dict[str, Callable[[Names], Any]] = {
    "attention": _attention, "mlp": _mlp, "experts_of": _experts, "again": _again, "stated": _stated, "key": _key,
    "numbers": _numbers,
}  # fmt: skip
"""Functions of an expression that depend on the model: standard blocks, and access to keys."""


@dataclass(frozen=True)
class Ends:
    """The Ops of a description before and after the layers; they take the place of usual ones of the same name."""

    embedding: list[Op]
    head: list[Op]
    names: frozenset[str]

    def around(self, d: Decoder) -> tuple[list[tuple[str, Op]], list[tuple[str, Op]]]:
        before = [pair for pair in blocks.embedding_ops(d) if pair[1].name not in self.names]
        after = [pair for pair in blocks.head_ops(d) if pair[1].name not in self.names]
        return before + [(blocks.EMBEDDING, op) for op in self.embedding], [(blocks.HEAD, op) for op in self.head] + after


def is_plain(body: Body) -> bool:
    """Return whether the Decoder describes the whole model, so that other sizes can be built from it."""
    d = body.decoder
    plain = blocks.assemble(d, blocks.attentions(d), [blocks.mlp(d, d.ffn)] * d.layers)
    return frozenset(plain.ops) == frozenset(body.ops)


def assemble_layers(d: Decoder, stack: Sequence[Sequence[Block]], ends: Ends, shown: tuple[tuple[str, int], ...]) -> Body:
    """Assemble layers of any number of blocks between the embedding and the head. A layer's norms are counted with its first block."""
    layers = tuple(tuple(block.name for block in layer) for layer in stack)
    by_name = {block.name: block for layer in stack for block in layer}
    times = Counter(name for layer in layers for name in layer)
    inner = [(name, replace(op, count=op.count * times[name])) for name, block in by_name.items() for op in block.ops]
    if d.norms and d.affine:
        first = Counter(layer[0] for layer in layers if layer)
        inner += [(name, replace(blocks.layer_norm(d), count=d.norms * n)) for name, n in first.items()]
    before, after = ends.around(d)
    return Body(decoder=d, layers=layers, ops=(*before, *inner, *after), extra=shown)
