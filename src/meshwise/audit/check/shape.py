"""The model of a launch file in one line: '175B parameters, the shape of gpt3-175b'."""

from functools import cache
from typing import cast

from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.runs.run import Run
from meshwise.units import show

WIDTHS, DEPTHS = ("hidden_size", "n_embd", "d_model", "dim"), ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
MAX_DIFFERENCE = 0.06  # share of the parameters by which a model may differ from another of its shape: another vocabulary


def described(model: Model, facts: Run) -> str:
    """Return what was built from the flags of a file, or the named model: its parameters, and the known model of the same shape."""
    active = f", {_count(model.active_params)} active" if model.active_params < 0.97 * model.params else ""
    size = f"{_count(model.params)} parameters{active}"
    if find.named(facts.text("model")) is model or facts.text("model") == model.name:
        return f"{facts.text('model')}: {size}"
    d = model.decoder
    built = f"{size}: {d.layers} layers of width {d.hidden:,}, {d.heads} heads, vocabulary {d.vocab:,}"
    twin = same_shape(model)
    return f"{built}; the shape of {twin}" if twin else built


def _count(number: float) -> str:
    return show(float(number), "count", digits=3)


def same_shape(model: Model) -> str:
    """Return the known model with the same layers, width and heads, and about as many parameters; '' where there is none."""
    d, found = model.decoder, dict[str, tuple[bool, float, int, int]]()
    for number, name in enumerate(_shapes().get((d.hidden, d.layers, d.heads), ())):
        try:
            known = find.find_model(name)
        except UserError:
            continue
        same = (known.decoder.ffn, known.decoder.kv_heads) == (d.ffn, d.kv_heads) or any(op.expert for op in model.ops)
        away = abs(known.params / model.params - 1)
        if same and away < MAX_DIFFERENCE:
            found[name] = (known.decoder.vocab != d.vocab, round(away, 3), len(name), number)
    return min(found, key=lambda name: found[name], default="")


@cache
def _shapes() -> dict[tuple[int, int, int], tuple[str, ...]]:
    """Return the presets by width, layers and heads, as their configs state them."""
    found: dict[tuple[int, int, int], tuple[str, ...]] = {}
    for name, path in find.presets().items():
        try:
            values = find.values_of(path)
        except UserError:
            continue
        inner = values.get("text_config")
        values = cast(dict[str, object], inner) if isinstance(inner, dict) else values
        sizes = [next((values[key] for key in keys if isinstance(values.get(key), int)), 0) for keys in (WIDTHS, DEPTHS, HEADS)]
        key = cast(tuple[int, int, int], tuple(int(cast(int, size)) for size in sizes))
        found[key] = (*found.get(key, ()), name)
    return found
