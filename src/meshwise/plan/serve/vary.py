"""A serving question at many points: the best layout at each, and a sentence that sums up the table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from meshwise.catalogue.engines import find_engine
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models.formats import FORMATS, split_model_name, weights
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.axes import SERVE_AXES
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import ServeChoice, choice, on_cards
from meshwise.plan.serve.explain import layer_split_lesson
from meshwise.plan.serve.refusal import missing, refuse
from meshwise.plan.serve.search import Found, Option, largest_context, search
from meshwise.plan.vary import Answer, Points, Variant, check_any_fits, first_values, parse, variants
from meshwise.units import GIB


@dataclass(frozen=True, kw_only=True)
class ServePoint(Answer[ServeAsk, ServeChoice]):
    """The best layout at one point, or why there is none."""

    notes: tuple[str, ...] = ()
    weights: str = ""  # the format of its weights
    layered: Option | None = None  # a layer split over every device, where the engine has one and it fits
    longest: int = 0  # the longest context that fits with this layout, or in a layer split over every device

    def more(self) -> dict[str, Any]:
        return {"longest_context": self.longest, "layer_split": self.layered.per_user if self.layered else None}


class ServePoints(Points[ServeAsk, ServePoint]):
    """The answers to a serving question at every point of a grid."""

    kind: ClassVar[str] = "serve"
    hidden: ClassVar[tuple[str, ...]] = ("devices",)

    @property
    def lessons(self) -> list[str]:
        """Sentences that sum up the table."""
        if list(self.axes) != ["gpus"]:
            return []
        sentence = layer_split_lesson([(int(point.values["gpus"]), point.layered) for point in self.points if point.layered])
        return [sentence] if sentence else []


def answer(ask: ServeAsk, texts: Sequence[str]) -> ServePoints:
    """Answer a question at every point of the grid that `--vary` describes."""
    if ask.measured:
        raise UserError("--measured needs a single plan; drop --vary")
    first = first_values(texts, SERVE_AXES)
    ask = replace(ask, kv=first.get("kv", ask.kv))
    varied = parse(texts, SERVE_AXES, ask)
    names = tuple(along.axis.name for along in varied)
    grid = variants(ask, varied, SERVE_AXES)
    points = answers(_alike(grid) if "engine" in names else grid, "gpus" in names)
    check_any_fits(points)
    return ServePoints(ask=ask, vary=tuple(texts), axes=names, points=tuple(points))


def _alike(grid: Sequence[Variant[ServeAsk]]) -> list[Variant[ServeAsk]]:
    """Return the points with weights of about the width that the first one has, unless a format was asked for: an engine whose default has
    4 bits beside one with 16 would compare formats."""
    first = next((variant.ask for variant in grid if variant.ask), None)
    if first is None or split_model_name(first.model)[1]:
        return list(grid)
    q = lookup.question(first)
    alike: list[Variant[ServeAsk]] = []
    for variant in grid:
        engine = find_engine(variant.ask.engine) if variant.ask else q.engine
        if variant.ask and engine.name != q.engine.name and not q.model.tensors:
            sizes = {name: weights(q.model, FORMATS[name]).bytes for name in engine.common_formats}
            near = min(sizes, key=lambda name: abs(math.log(sizes[name] / q.weights.bytes)))
            variant = replace(variant, ask=replace(variant.ask, model=f"{variant.ask.model}:{near.lower()}"))
        alike.append(variant)
    return alike


def answer_point(variant: Variant[ServeAsk], model: Model | None, whole: bool) -> tuple[ServePoint, Model | None]:
    """Return the best layout at one point (with `whole`, the best that uses every device, if one does), and the model for the next."""
    point = ServePoint(values=variant.values, labels=variant.labels, ask=variant.ask, refusal=variant.refusal)
    if variant.ask is None:
        return point, model
    try:
        q = lookup.question(variant.ask, model)
    except UserError as error:
        return replace(point, refusal=str(error)), model
    found = search(q)
    if not found.options:
        return replace(point, refusal=_refusal(q, found)), q.model
    spanning = [option for option in found.options if option.layout.devices == len(q.cards) and on_cards(option)]
    best = spanning[0] if whole and spanning else found.options[0]
    layered = next((option for option in spanning if option.layout.split == "layer"), None)
    longest = max(largest_context(q, option) for option in (best, layered) if option)
    point = replace(
        point, choice=choice(q, best), longest=longest, notes=(*q.model.notes, *q.cluster.notes), weights=q.weights.format
    )
    return replace(point, layered=layered), q.model


def _refusal(q: ServeQuestion, found: Found) -> str:
    """Return in a few words why no layout fits."""
    if not found.misses:
        return str(refuse(q, found))
    near = found.misses[0]
    if near.spare >= 0:
        return f"does not fit: {near.layout.name} needs {missing(q, near)}"
    return f"does not fit: {near.layout.name} lacks {-near.spare / GIB:.1f} GiB on its fullest {near.layout.unit}"


def answers(variants: Sequence[Variant[ServeAsk]], whole: bool) -> list[ServePoint]:
    """Answer every point; the model is looked up once."""
    points: list[ServePoint] = []
    model = None
    for variant in variants:
        point, model = answer_point(variant, model, whole)
        points.append(point)
    return points
