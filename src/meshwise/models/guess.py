"""The last resort: a type that nobody has described, with its weights at hand, counted from its tensors and planned as the nearest type."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from meshwise.errors import UserError, quoted
from meshwise.models.families.blocks import EMBEDDING
from meshwise.models.families.description import Types, describe
from meshwise.models.model import Model, build
from meshwise.models.op import Op

EXPLAINED = 0.9
"""The share of the parameters that the nearest type must account for."""
FAMILIES = frozenset({"dense", "decoder", "moe", "mla", "ssm", "linear_attention", "conv"})
"""Kinds of described types that an unknown one may be like: decoders of text."""


def nearest(values: Mapping[str, object], elements: int, name: str, source: str) -> Model | None:
    """Return the described type whose parameters for these keys come closest to `elements` without exceeding them; None if none fits.

    What is left is added as parameters that multiply nothing, so that the count is that of the tensors, and is noted.
    """
    stated = str(values.get("model_type") or "none")
    best = min(
        _fitting(values, elements, name, source), key=lambda model: (elements - model.params, model.model_type), default=None
    )
    if best is None or best.params < EXPLAINED * elements:
        return None
    rest = elements - best.params
    other = Op(name="embedding.other", part="ffw", kind="vector", n=rest, k=1, params=rest)
    placed = (*best.placed, (EMBEDDING, other)) if rest else best.placed
    note = (
        f"model_type {quoted(stated)} is not described: its {elements:,} parameters are counted from its tensors, and it is planned "
        f"as {best.model_type}, which has {best.params:,} of them"
    )
    return replace(best, placed=placed, notes=(*best.notes, note))


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
