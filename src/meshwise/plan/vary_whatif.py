"""One question asked at many points: the best layout at each, and why it is another one than at the point before."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshwise import units
from meshwise.cost.layout import OFFLOAD, RECOMPUTE, SCHEDULES, layouts_of, name_of, parse_axes
from meshwise.cost.train.question import Question
from meshwise.errors import DoesNotFit
from meshwise.models.model import Model
from meshwise.plan.train.choice import TIE, Ask, Choice, choice, days_of, node_counts
from meshwise.plan.train.explain import WORDS, differences
from meshwise.plan.train.rules import broken
from meshwise.plan.train.search import Bounds, Found, search
from meshwise.plan.vary import Value, Variant
from meshwise.units import GIB

FORMAT = 1
DAY = 86400.0
Layout = Mapping[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one point of a table answers."""

    values: dict[str, Value]
    labels: tuple[str, ...]
    ask: Ask | None
    question: Question | None = None
    choice: Choice | None = None
    refusal: str = ""
    """Why nothing answers it, in a few words."""
    why: str = ""
    """Why its layout is another than that of the point before; nothing where it is the same."""

    def meets(self, within: float) -> bool:
        """Whether training ends within so many seconds."""
        days = days_of(self.choice) if self.choice else None
        return days is not None and (not within or days * DAY <= within)

    def row(self, within: float) -> dict[str, Any]:
        """The point as plain data."""
        row: dict[str, Any] = {**self.values, "cluster": self.ask.cluster if self.ask else None}
        row |= {"fits": self.choice is not None, "refusal": self.refusal, "why": self.why}
        row |= {"within": self.meets(within)} if within else {}
        return row | {"choice": asdict(self.choice) if self.choice else None}


def answer(variant: Variant[Ask], model: Model | None = None) -> Point:
    """The fastest layout at one point. What does not fit or breaks a rule is told there, in a few words. A model that was looked up
    already need not be again."""
    point = Point(values=variant.values, labels=variant.labels, ask=variant.ask, refusal=variant.refusal)
    if variant.ask is None:
        return point
    q = variant.ask.question(model)
    found = search(q, bounds=bounds_of(variant.ask), top=1, nodes=node_counts(variant.ask, q))
    if not len(found.layouts):
        return replace(point, question=q, refusal=_refusal(q, found))
    return replace(point, question=q, choice=choice(q, found.layouts, found.cost, 0))


def bounds_of(ask: Ask) -> Bounds:
    return parse_axes(",".join((*ask.fix, *ask.allow)))


def _refusal(q: Question, found: Found) -> str:
    if math.isfinite(found.smallest):
        return f"does not fit: needs {found.smallest / GIB:.1f} GiB of the {q.chip.memory * (1 - q.work.reserve) / GIB:.1f} free"
    most = sorted(found.rejected, key=lambda rule: -found.rejected[rule])[:2]
    return f"no layout for {q.cluster.devices:,} devices: " + "; ".join(most)


def answers(variants: Sequence[Variant[Ask]], inner: int) -> list[Point]:
    """Every point, each compared with its neighbour along the last axis, which takes `inner` values."""
    points: list[Point] = []
    model = None
    for i, variant in enumerate(variants):
        point = answer(variant, model)
        model = point.question.model if point.question else model
        line = points[i - i % inner : i] if i % inner else points[max(0, i - inner) : max(0, i - inner) + 1]
        before = next((other for other in reversed(line) if other.choice), None)
        points.append(replace(point, why=why(before, point)) if before else point)
    return points


# Why the layout changes.

_KEPT = ("tp", "pp", "cp", "ep", "mbs", "vpp", "zero", "recompute", "sp", "schedule", "offload")


def why(before: Point, here: Point) -> str:
    """Why another layout wins here: the one before cannot run, this one could not, or which part of the step it saves.

    More devices in the same cut are the same layout: only data parallelism grows."""
    if before.choice is None or here.choice is None or before.question is None or here.question is None:
        return ""
    old, new = before.choice.layout, here.choice.layout
    change = _change(old, new)
    if not change:
        return ""
    stays = _repriced(here.question, old, here.choice.devices)
    if isinstance(stays, str):
        return f"{change}: the layout before {stays} here"
    slower = stays.seconds / here.choice.seconds - 1
    if slower <= TIE:
        return f"{change}: a tie, the layout before would be {100 * slower:.1f}% slower"
    could = _repriced(before.question, new, before.choice.devices)
    if isinstance(could, str):
        return f"{change}: {100 * slower:.0f}% faster than the layout before, and at the point before it {could}"
    return f"{change}: {100 * slower:.0f}% faster than the layout before; {_tipped(here.choice, stays, could, before.choice)}"


def _tipped(won: Choice, lost: Choice, won_before: Choice, lost_before: Choice) -> str:
    """The part of the step whose difference between the two layouts moved most from the point before to this one."""
    here = {row.part: row.gained / won.seconds for row in differences(won, lost)}
    there = {row.part: row.gained / won_before.seconds for row in differences(won_before, lost_before)}
    part = max((part for part in WORDS if part in here or part in there), key=lambda p: here.get(p, 0.0) - there.get(p, 0.0))
    now, then = _signed(here.get(part, 0.0)), _signed(there.get(part, 0.0))
    return f"what tips it is {WORDS[part]}: {now} of a step here, {then} at the point before"


def _signed(gained: float) -> str:
    return f"{'saves' if gained > 0 else 'costs'} {100 * abs(gained):.1f}%"


def _change(old: Layout, new: Layout) -> str:
    """'pp4 to pp8, none to full recompute': the axes that differ, but for those of data parallelism."""
    forms = {"recompute": "{} recompute", "schedule": "{}", "offload": "offload {}"}
    differ = [axis for axis in _KEPT if old[axis] != new[axis]]
    if not (old["zero"] and new["zero"]):  # with the first replica comes a ZeRO stage
        differ = [axis for axis in differ if axis != "zero"]
    if "vpp" in differ or "pp" in differ:  # which say it already
        differ = [axis for axis in differ if axis != "schedule"]
    words = [
        f"{forms.get(axis, axis + '{}').format(old[axis])} to {forms.get(axis, axis + '{}').format(new[axis])}" for axis in differ
    ]
    return ", ".join(words).replace("sp1 to sp0", "no sp").replace("sp0 to sp1", "sp")


def _repriced(q: Question, layout: Layout, devices: int) -> Choice | str:
    """The same cut on so many devices of another question, with data parallelism as it suits; or why it cannot run there."""
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    numbers = {axis: words[axis].index(str(layout[axis])) if axis in words else int(layout[axis]) for axis in _KEPT}
    cut = numbers["tp"] * numbers["pp"] * numbers["cp"]
    name = " x ".join(f"{axis}{layout[axis]}" for axis in ("tp", "pp", "cp") if int(layout[axis]) > 1)
    if devices % cut:
        return f"does not divide {devices:,} devices by {name}"
    sharded = numbers["zero"] > 0 and devices > cut
    bounds = {axis: (value, value) for axis, value in numbers.items() if axis != "zero" or sharded}
    found = search(q, bounds=bounds, top=1, nodes=(devices // q.cluster.node.devices,))
    if len(found.layouts):
        return choice(q, found.layouts, found.cost, 0)
    if math.isfinite(found.smallest):
        return f"needs {found.smallest / GIB:.1f} GiB of the {q.chip.memory * (1 - q.work.reserve) / GIB:.1f} free"
    dp = devices // cut
    zero = (numbers["zero"] or min(q.work.framework.zero, default=0)) if dp > 1 else 0
    tried = layouts_of({**layout, "dp_replicate": 1 if zero else dp, "dp_shard": dp if zero else 1, "zero": zero})
    return f"breaks '{next(iter(broken(q, tried)), 'a rule')}'"


# What a whole table says.


def check(points: Sequence[Point], within: float) -> None:
    """A table in which nothing works, or nothing in time, is one line."""
    done = [point for point in points if point.choice]
    if not done:
        reasons = dict.fromkeys(f"{' '.join(point.labels)}: {point.refusal}" for point in points)
        raise DoesNotFit(
            f"none of {len(points)} points works; " + ", ".join(list(reasons)[:3]) + (", ..." if len(reasons) > 3 else "")
        )
    if within and not any(point.meets(within) for point in done):
        raise DoesNotFit(too_late(done, within))


def too_late(points: Iterable[Point], within: float) -> str:
    """Nothing ends in time: what comes closest."""
    best = min(((days_of(p.choice) or math.inf, p) for p in points if p.choice), key=lambda pair: pair[0])
    days, point = best
    assert point.choice
    assert point.ask
    return (
        f"nothing trains within {units.show(within, 'seconds')}: the closest is {point.ask.cluster} with {name_of(point.choice.layout)}, "
        f"{days:,.1f} days"
    )


def to_json(ask: Ask, vary: Sequence[str], points: Sequence[Point], **more: Any) -> dict[str, Any]:
    """The whole table as plain data, one row per point."""
    return {
        "format": FORMAT,
        "ask": asdict(ask),
        "vary": list(vary),
        **more,
        "points": [point.row(ask.within) for point in points],
    }
