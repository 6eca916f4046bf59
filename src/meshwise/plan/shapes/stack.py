"""Shapes of a model (hidden x layers x heads x FFW width) near a parameter count, stacked so that all are evaluated together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from meshwise.cost.layout import Floats, Ints
from meshwise.errors import UserError, quoted
from meshwise.models.config import MAX_LAYERS, MAX_SIZE
from meshwise.models.families.blocks import Decoder, assemble, attentions, mlp
from meshwise.models.model import Model
from meshwise.models.op import Op

WIDTH_STEP = 128  # step of the widths to try: the largest size of matrix tiles
ASPECT = (64.0, 256.0)  # hidden units per layer: GPT-3 has 128, Llama 3 70B 102, PaLM 156, BLOOM 205
HEAD_SIZES = (64, 256)
FFW_RATIOS = (0.875, 0.9375, 1.0, 1.0625, 1.125)  # FFW widths to try, relative to the base model scaled to the same hidden size
SIZE_TOLERANCE = 0.02  # largest relative difference between the parameters of a shape and the requested number


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Struct of arrays: one row per shape."""

    hidden: Ints
    layers: Ints
    heads: Ints
    kv_heads: Ints
    ffn: Ints

    def __len__(self) -> int:
        return len(self.hidden)

    def take(self, rows: Any) -> "Shapes":
        return Shapes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def row(self, i: int) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)[i]) for f in fields(self)}


class Stack(Model):
    """Many models like `base`, one per layout: every size that differs is an array over layouts."""

    def __init__(self, base: Model, shapes: Shapes, variant: Ints | None = None) -> None:
        super().__init__(base.name, base.family, base.model_type, base.source, base.decoder, (), ())
        vars(self).update(base=base, shapes=shapes, chosen=np.arange(len(shapes)) if variant is None else variant)
        del vars(self)["decoder"], vars(self)["placed"]  # cached properties below

    base: Model
    shapes: Shapes
    chosen: Ints

    @property
    def variant(self) -> Ints:
        return self.chosen

    def take(self, rows: Any) -> "Stack":
        return Stack(self.base, self.shapes, self.chosen[rows])

    @cached_property
    def decoder(self) -> Decoder:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _decoder(self.base, self.shapes.take(self.chosen))

    @cached_property
    def times(self) -> Any:
        return dict.fromkeys(self.base.layers[0], self.decoder.layers)

    @cached_property
    def placed(self) -> tuple[tuple[str, Op], ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The Ops of one layer, each counted once per layer of the shape, and the Ops outside layers."""
        single = replace(self.decoder, layers=1, windows=self.decoder.windows[:1])
        body = assemble(single, attentions(single), [mlp(single, single.ffn)])
        inner = set(body.layers[0])
        return tuple(
            (block, replace(op, count=op.count * self.decoder.layers) if block in inner else op) for block, op in body.ops
        )

    @cached_property
    def params(self) -> Any:
        return sum(op.params * op.count for op in self.ops)


def _decoder(base: Model, s: Shapes) -> Decoder:
    sizes: dict[str, Any] = {f.name: getattr(s, f.name) for f in fields(Shapes)}
    return replace(base.decoder, **sizes, head_dim=s.hidden // s.heads)


def base_of(base: Model, vocab: int) -> Model:
    """Return the base model of a stack with another vocabulary (0 keeps its own). UserError where its layers differ."""
    if base.family != "dense" or len(set(base.layers)) > 1:
        raise UserError(
            f"--like takes a dense model whose layers are all alike, such as bloom-176b or llama-3-70b; not {quoted(base.name)}"
        )
    return replace(base, decoder=replace(base.decoder, vocab=vocab or base.decoder.vocab, embedded=0))


def one_model(base: Model, shapes: Shapes, i: int) -> Model:
    """Return the i-th shape as a model."""
    sizes: dict[str, Any] = shapes.row(i)
    windows = base.decoder.windows[:1] * sizes["layers"]
    d = replace(base.decoder, **sizes, head_dim=sizes["hidden"] // sizes["heads"], windows=windows)
    body = assemble(d, attentions(d), [mlp(d, d.ffn)] * d.layers)
    name = "x".join(str(sizes[axis]) for axis in ("hidden", "layers", "heads"))
    return Model(name, base.family, base.model_type, f"like {base.name}", body.decoder, body.layers, body.ops)


def near(base: Model, params: float) -> Shapes:
    """Return every shape with about this many parameters."""
    widths, ffw, heads, kv = _widths(base, params)
    layer, rest = _sizes(base, widths, ffw, heads, kv)
    # the range of layer counts that keeps both the parameters and the aspect ratio within bounds
    least = np.ceil(np.maximum((params * (1 - SIZE_TOLERANCE) - rest) / layer, np.maximum(1, widths / ASPECT[1])))
    most = np.floor(np.minimum((params * (1 + SIZE_TOLERANCE) - rest) / layer, np.minimum(MAX_LAYERS, widths / ASPECT[0])))
    number = np.maximum(0, most - least + 1).astype(np.int64)
    which = np.repeat(np.arange(len(number)), number)
    layers = least[which].astype(np.int64) + np.arange(len(which)) - np.repeat(np.cumsum(number) - number, number)
    shapes = Shapes(hidden=widths[which], layers=layers, heads=heads[which], kv_heads=kv[which], ffn=ffw[which])
    if not len(shapes):
        raise UserError(
            f"no shape like {base.name} has {params:.3g} parameters: widths are multiples of {WIDTH_STEP}, "
            f"{ASPECT[0]:g} to {ASPECT[1]:g} per layer, and the vocabulary has {base.decoder.vocab:,}"
        )
    return shapes


def _widths(base: Model, params: float) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the combinations of hidden size, FFW width, heads and KV heads, for any number of layers."""
    d = base.decoder
    most = min(float(MAX_SIZE), (params * ASPECT[1] / 4) ** (1 / 3)) + WIDTH_STEP  # a layer has at least 4 hidden^2 parameters
    hidden = np.arange(WIDTH_STEP, most, WIDTH_STEP, dtype=np.int64)
    sizes = np.arange(HEAD_SIZES[0], HEAD_SIZES[1] + 1, 8, dtype=np.int64)
    h, size, ratio = (axis.ravel() for axis in np.meshgrid(hidden, sizes, np.array(FFW_RATIOS), indexing="ij"))
    ffw = np.rint(h * d.ffn / d.hidden * ratio / WIDTH_STEP).astype(np.int64) * WIDTH_STEP
    heads = h // size
    kv = heads if d.kv_heads == d.heads else np.full_like(heads, d.kv_heads)
    fits = (h % size == 0) & (ffw > 0) & (heads >= 1) & (heads % np.maximum(kv, 1) == 0)
    return h[fits], ffw[fits], heads[fits], kv[fits]


def _sizes(base: Model, hidden: Ints, ffw: Ints, heads: Ints, kv: Ints) -> tuple[Floats, Floats]:
    """Return the parameters of one layer, and of everything outside layers."""
    stack = Stack(base, Shapes(hidden=hidden, layers=np.ones_like(hidden), heads=heads, kv_heads=kv, ffn=ffw))
    inner = set(stack.times)
    layer = sum(op.params * op.count for block, op in stack.placed if block in inner)
    return cast(Floats, layer), cast(Floats, stack.params - layer)


def parse(base: Model, texts: tuple[str, ...]) -> Shapes:
    """Parse '14336x70x112' as hidden x layers x heads, with an optional fourth number for the FFW width."""
    rows: list[dict[str, int]] = []
    for text in texts:
        numbers = text.lower().replace("×", "x").split("x")
        if len(numbers) not in (3, 4) or not all(n.strip().isdecimal() and len(n.strip()) < 9 for n in numbers):
            raise UserError(
                f"{quoted(text)} is not a shape: expected hidden x layers x heads [x FFW width], such as 14336x70x112"
            )
        hidden, layers, heads = map(int, numbers[:3])
        ffn = int(numbers[3]) if len(numbers) == 4 else round(hidden * base.decoder.ffn / base.decoder.hidden)
        if not (0 < heads <= hidden <= MAX_SIZE and 0 < layers <= MAX_LAYERS and 0 < ffn <= MAX_SIZE):
            raise UserError(f"{quoted(text)}: hidden, layers, heads and the FFW width must be from 1 to {MAX_SIZE:,}")
        if hidden % heads:
            raise UserError(f"{quoted(text)}: {heads} heads do not divide {hidden}")
        grouped = base.decoder.kv_heads != base.decoder.heads
        if grouped and heads % base.decoder.kv_heads:
            raise UserError(
                f"{quoted(text)}: {heads} heads are not a multiple of the {base.decoder.kv_heads} KV heads of {base.name}"
            )
        kv = base.decoder.kv_heads if grouped else heads
        rows.append({"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv, "ffn": ffn})
    return shapes_of(rows)


def shapes_of(rows: Sequence[Mapping[str, int]]) -> Shapes:
    """Return rows of sizes as arrays."""
    return Shapes(**{f.name: np.array([row[f.name] for row in rows], dtype=np.int64) for f in fields(Shapes)})
