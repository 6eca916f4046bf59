"""A training question at many points: the best layout at each, and why it differs from the point before."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.cost.axes import AXES, BY_NAME, DATA, VALUES, Row, index
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_WORDS
from meshwise.cost.train.question import Question
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.model import Model
from meshwise.plan.ask import TrainAsk
from meshwise.plan.axes import TRAIN_AXES, with_one_seller
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import TIE_SHARE, Choice, choice, differences
from meshwise.plan.train.rules import broken
from meshwise.plan.train.search import Found, search
from meshwise.plan.vary import Answer, Points, Variant, check_any_fits, first_values, parse, variants
from meshwise.units import GIB

DAY_SECONDS = 86400.0
_KEPT_AXES = tuple(axis.name for axis in AXES if axis.name not in DATA)


@dataclass(frozen=True, kw_only=True)
class Point(Answer[TrainAsk, Choice]):
    """The best layout at one point, or why there is none."""

    question: Question | None = None
    why: str = ""  # why its layout differs from the point before; '' where it does not

    def meets(self, within: float) -> bool:
        """Return whether training ends within this many seconds; 0 means no deadline."""
        days = self.choice.total_days if self.choice else None
        return days is not None and (not within or days * DAY_SECONDS <= within)

    def more(self) -> dict[str, Any]:
        within = self.ask.within if self.ask else 0.0
        return {"why": self.why, **({"within": self.meets(within)} if within else {})}


class TrainPoints(Points[TrainAsk, Point]):
    """The answers to a training question at every point of a grid."""


def starting_ask(ask: TrainAsk, texts: Sequence[str]) -> TrainAsk:
    """Return the question to start from: its own cluster and batch, or the first values of the axes that vary them."""
    first = first_values(texts, TRAIN_AXES)
    counted = "nodes" in first or "devices" in first
    on = ask.on or (first.get("chip", "") if counted else "")
    return replace(ask, on=on, batch=ask.batch or first.get("batch", 0))


def answer(ask: TrainAsk, texts: Sequence[str]) -> TrainPoints:
    """Answer a question at every point of the grid that `--vary` describes."""
    if ask.within and not ask.tokens:
        raise UserError("--within needs --tokens: how many to train on, such as --tokens 15T")
    ask = starting_ask(ask, texts)
    varied = parse(texts, TRAIN_AXES, ask)
    names = tuple(along.axis.name for along in varied)
    if ask.at_most and {"nodes", "devices"} & {*names}:
        raise UserError("--vary nodes or devices and --at-most both set the number of devices; give only one")
    if not ask.on:
        lookup.question(ask)  # raises the error for a missing --on
    if {"nodes", "devices"} & {*names}:
        ask = lookup.with_one_framework(ask, [point.ask.on for point in variants(ask, varied, TRAIN_AXES) if point.ask])
    if "chip" in names and ask.tokens:
        ask = with_one_seller(ask, [point.ask.on for point in variants(ask, varied, TRAIN_AXES) if point.ask])
    points = answers(variants(ask, varied, TRAIN_AXES), len(varied[-1].values))
    check(points, ask.within)
    return TrainPoints(ask=ask, vary=tuple(texts), axes=names, points=tuple(points))


def answer_point(variant: Variant[TrainAsk], model: Model | None = None) -> Point:
    """Return the fastest layout at one point, or a short reason why there is none. `model`: the model, if it was looked up already."""
    point = Point(values=variant.values, labels=variant.labels, ask=variant.ask, refusal=variant.refusal)
    if variant.ask is None:
        return point
    q = lookup.question(variant.ask, model)
    found = search(q, bounds=variant.ask.bounds, top=1, nodes=lookup.node_counts(variant.ask, q))
    if not len(found.layouts):
        return replace(point, question=q, refusal=_refusal(q, found))
    return replace(point, question=q, choice=choice(q, found.layouts, found.cost, 0))


def _refusal(q: Question, found: Found) -> str:
    """Return in a few words why no layout was found."""
    if math.isfinite(found.smallest):
        return f"does not fit: {_memory_needed(q, found)}"
    most = sorted(found.rejected, key=lambda rule: -found.rejected[rule])[:2]
    return f"no layout for {q.cluster.devices:,} devices: " + "; ".join(most)


def _memory_needed(q: Question, found: Found) -> str:
    free = q.chip.memory * (1 - q.work.reserve)
    return f"needs {found.smallest / GIB:.1f} GiB, only {free / GIB:.1f} are free"


def answers(variants: Sequence[Variant[TrainAsk]], inner: int) -> list[Point]:
    """Answer every point, and compare each with the previous one along the last axis, which has `inner` values."""
    points: list[Point] = []
    model = None
    for i, variant in enumerate(variants):
        point = answer_point(variant, model)
        model = point.question.model if point.question else model
        row = points[i - i % inner : i] if i % inner else points[max(0, i - inner) : max(0, i - inner) + 1]
        before = next((other for other in reversed(row) if other.choice), None)
        points.append(replace(point, why=why(before, point)) if before else point)
    return points


# Why the layout changes.


def why(before: Point, point: Point) -> str:
    """Explain why another layout wins at `point` than at `before`: the previous layout cannot run here, the new one could not run there,
    or which part of the step the new one saves. The same cut on more devices counts as the same layout: only data parallelism grows."""
    if before.choice is None or point.choice is None or before.question is None or point.question is None:
        return ""
    old, new = before.choice.layout, point.choice.layout
    change = _change(old, new)
    if not change:
        return ""
    old_here = _same_cut(point.question, old, point.choice.devices)
    if isinstance(old_here, str):
        return f"{change}: here the previous layout {old_here}"
    slower = old_here.step / point.choice.step - 1
    if slower <= TIE_SHARE:
        return f"{change}: a tie, the previous layout would be {100 * slower:.1f}% slower"
    new_before = _same_cut(before.question, new, before.choice.devices)
    faster = f"{change}: {100 * slower:.0f}% faster than the previous layout"
    if isinstance(new_before, str):
        return f"{faster}; at the previous point it {new_before}"
    return f"{faster}, {_decisive_part(point.choice, old_here, new_before, before.choice)}"


def _decisive_part(won: Choice, lost: Choice, won_before: Choice, lost_before: Choice) -> str:
    """Name the part of the step whose difference between the two layouts changed most since the previous point."""
    gains = {row.part: row.gained / won.step for row in differences(won, lost)}
    before = {row.part: row.gained / won_before.step for row in differences(won_before, lost_before)}
    known = [part for part in TRAIN_WORDS if part in gains or part in before]
    part = max(known, key=lambda part: gains.get(part, 0.0) - before.get(part, 0.0))
    now, then = _saved_or_lost(gains.get(part, 0.0)), _saved_or_lost(before.get(part, 0.0))
    return f"mainly because of {TRAIN_WORDS[part]}: {now} of a step here, {then} at the previous point"


def _saved_or_lost(gained: float) -> str:
    return f"{'saves' if gained > 0 else 'costs'} {100 * abs(gained):.1f}%"


def _change(old: Row, new: Row) -> str:
    """Return the axes that differ, except data parallelism: 'pp4 to pp8, none to full recompute'."""
    differ = [axis for axis in _KEPT_AXES if old[axis] != new[axis]]
    if not (old["zero"] and new["zero"]):  # the first replica brings a ZeRO stage with it
        differ = [axis for axis in differ if axis != "zero"]
    if "vpp" in differ or "pp" in differ:  # they imply the schedule
        differ = [axis for axis in differ if axis != "schedule"]
    words = [
        " to ".join((BY_NAME[axis].shown if axis in VALUES else axis + "{}").format(row[axis]) for row in (old, new))
        for axis in differ
    ]
    return ", ".join(words).replace("sp1 to sp0", "no sp").replace("sp0 to sp1", "sp")


def _same_cut(q: Question, layout: Row, devices: int) -> Choice | str:
    """Evaluate a cut on this many devices of another question, with the best data parallelism; or return why it cannot run there."""
    numbers = {axis: index(axis, layout[axis]) for axis in _KEPT_AXES}
    cut = numbers["tp"] * numbers["pp"] * numbers["cp"]
    name = " x ".join(f"{axis}{layout[axis]}" for axis in ("tp", "pp", "cp") if int(layout[axis]) > 1)
    if devices % cut:
        return f"does not divide {devices:,} devices by {name}"
    sharded = numbers["zero"] > 0 and devices > cut
    bounds = {axis: (value, value) for axis, value in numbers.items() if axis != "zero" or sharded}
    found = search(q, bounds=bounds, top=1, nodes=(devices // q.cluster.node.devices,))
    if len(found.layouts):
        own = choice(q, found.layouts, found.cost, 0)
        return own if found.safe else f"needs {own.needs / GIB:.1f} of {own.capacity / GIB:.0f} GiB and fits with {own.p_fit:.0%}"
    if math.isfinite(found.smallest):
        return _memory_needed(q, found)
    dp = devices // cut
    zero = (numbers["zero"] or min(q.work.framework.zero, default=0)) if dp > 1 else 0
    tried = Layouts.from_row({**layout, "dp_replicate": 1 if zero else dp, "dp_shard": dp if zero else 1, "zero": zero})
    return f"breaks '{next(iter(broken(q, tried)), 'a rule')}'"


# Errors for a whole table.


def check(points: Sequence[Point], within: float) -> None:
    """Raise DoesNotFit where no point has a layout, or none meets the deadline."""
    check_any_fits(points)
    done = [point for point in points if point.choice]
    if within and not any(point.meets(within) for point in done):
        raise DoesNotFit(too_late(done, within))


def too_late(points: Iterable[Point], within: float) -> str:
    """Return the message for a deadline that nothing meets: the closest point."""
    best = min(((p.choice.total_days or math.inf, p) for p in points if p.choice), key=lambda pair: pair[0])
    days, point = best
    assert point.choice
    assert point.ask
    return (
        f"nothing trains within {units.show(within, 'seconds')}: the closest is {point.ask.on} with {point.choice.name}, "
        f"{days:,.1f} days"
    )
