"""One question about serving, asked at many points: the best way at each, and what the row of them teaches."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.model import Model
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.choice import ServeChoice, choice, on_cards, refuse
from meshwise.plan.serve.explain import lesson
from meshwise.plan.serve.search import Found, Option, largest_context, search
from meshwise.plan.vary import Value, Variant
from meshwise.units import GIB

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ServePoint:
    """What one point of a table answers."""

    values: dict[str, Value]
    labels: tuple[str, ...]
    ask: ServeAsk | None
    refusal: str = ""
    """Why nothing answers it, in a few words."""
    notes: tuple[str, ...] = ()
    choice: ServeChoice | None = None
    layered: Option | None = None
    """A layer split over every card, where the engine has one and it fits."""
    longest: int = 0
    """The longest context that fits in that way, or in a layer split over every card."""

    def row(self) -> dict[str, Any]:
        """The point as plain data."""
        row: dict[str, Any] = {**self.values, "cluster": self.ask.cluster if self.ask else None}
        row |= {"fits": self.choice is not None, "refusal": self.refusal, "longest_context": self.longest}
        row |= {"layer_split": self.layered.per_user if self.layered else None}
        return row | {"choice": asdict(self.choice) if self.choice else None}


def answer(variant: Variant[ServeAsk], model: Model | None, whole: bool) -> tuple[ServePoint, Model | None]:
    """The best way at one point; with `whole`, the best that uses every card there is, if one does."""
    point = ServePoint(values=variant.values, labels=variant.labels, ask=variant.ask, refusal=variant.refusal)
    if variant.ask is None:
        return point, model
    try:
        q = variant.ask.question(model)
    except UserError as error:
        return replace(point, refusal=str(error)), model
    found = search(q)
    if not found.options:
        return replace(point, refusal=_short(q, found)), q.model
    best = _chosen(found, len(q.cards) if whole else 0)
    layered = next((one for one in found.options if _spans(one, len(q.cards)) and one.layout.split == "layer"), None)
    longest = max(largest_context(q, one) for one in (best, layered) if one)
    point = replace(point, choice=choice(q, best), longest=longest, notes=(*q.model.notes, *q.cluster.notes))
    return replace(point, layered=layered), q.model


def _chosen(found: Found, cards: int) -> Option:
    return next((one for one in found.options if _spans(one, cards)), found.options[0])


def _spans(option: Option, cards: int) -> bool:
    return option.layout.devices == cards and on_cards(option)


def _short(q: ServeQuestion, found: Found) -> str:
    if not found.misses:
        return str(refuse(q, found))
    near = found.misses[0]
    return f"does not fit: {near.layout.name} lacks {-near.spare / GIB:.1f} GiB on its fullest card"


def answers(variants: Sequence[Variant[ServeAsk]], whole: bool) -> list[ServePoint]:
    points: list[ServePoint] = []
    model = None
    for variant in variants:
        point, model = answer(variant, model, whole)
        points.append(point)
    return points


def check(points: Sequence[ServePoint]) -> None:
    """A table in which nothing works is one line."""
    if not any(point.choice for point in points):
        why = dict.fromkeys(f"{' '.join(point.labels)}: {point.refusal}" for point in points)
        raise DoesNotFit(f"none of {len(points)} points works; " + ", ".join(list(why)[:3]) + (", ..." if len(why) > 3 else ""))


def lessons(axes: Sequence[str], points: Sequence[ServePoint]) -> list[str]:
    """What the table says in words."""
    if list(axes) != ["gpus"]:
        return []
    said = lesson([(int(point.values["gpus"]), point.layered) for point in points if point.layered])
    return [said] if said else []


def to_json(ask: ServeAsk, vary: Sequence[str], points: Sequence[ServePoint]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": "serve",
        "ask": asdict(ask),
        "vary": list(vary),
        "points": [point.row() for point in points],
    }
