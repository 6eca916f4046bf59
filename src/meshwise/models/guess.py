"""The last resort: a type that nobody has described, with its weights at hand, counted from its tensors and planned as the nearest type."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from meshwise.errors import UserError, quoted
from meshwise.models.families.blocks import EMBEDDING
from meshwise.models.families.description import Types, describe
from meshwise.models.model import Model, build
from meshwise.models.op import Op
from meshwise.models.tensors import slots

MIN_EXPLAINED_SHARE = 0.9  # the share of the parameters that the nearest type must account for
FAMILIES = frozenset({"dense", "decoder", "moe", "mla", "ssm", "linear_attention", "conv"})
"""Kinds of described types that an unknown one may be like: decoders of text."""


def nearest(values: Mapping[str, object], tensors: Collection[int], name: str, source: str) -> Model | None:
    """Return the described type that has most of these tensors (given as their elements) for these keys; None if none comes near. What is
    left is added as parameters that multiply nothing, so that the count is that of the tensors, and is noted."""
    elements, sizes = sum(tensors), Counter(tensors)
    ranked = ((_matched(model, sizes), -(elements - model.params), model) for model in _fitting(values, elements, name, source))
    matched, _, best = max(ranked, key=lambda entry: (*entry[:2], entry[2].model_type), default=(0, 0, None))
    if best is None or best.params < MIN_EXPLAINED_SHARE * elements or matched < elements / 2:
        return None
    rest = elements - best.params
    other = Op(name="embedding.other", part="ffw", kind="vector", n=rest, k=1, params=rest)
    placed = (*best.placed, (EMBEDDING, other)) if rest else best.placed
    note = (
        f"model_type {quoted(str(values.get('model_type') or 'none'))} is not described: its {elements:,} parameters are counted from "
        f"its tensors, and it is planned as {best.model_type}, which has {best.params:,} of them"
    )
    return replace(best, placed=placed, notes=(*best.notes, note))


def _matched(model: Model, sizes: Counter[int]) -> int:
    """Return the elements of the tensors that a model has in common with a checkpoint; experts count whole or one by one."""
    own: Counter[int] = Counter()
    for slot in slots(model, gguf=False):
        if slot.stored:
            whole = slot.copies == 1 or slot.elements in sizes
            own[slot.elements if whole else slot.elements // slot.copies] += 1 if whole else slot.copies
    return sum(size * count for size, count in (own & sizes).items())


def _fitting(values: Mapping[str, object], elements: int, name: str, source: str) -> Iterator[Model]:
    """Yield the models of every described type that these keys make, with at most as many parameters."""
    for kind in Types():
        description = describe(kind)
        if description.refusal or "text" in description.words or description.family not in FAMILIES:
            continue
        try:
            model = build({**values, "model_type": kind}, name, source)
        except UserError:
            continue
        if model.params <= elements:
            yield model
