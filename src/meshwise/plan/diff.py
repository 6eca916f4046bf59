"""Diff of two plans: what their questions, best layouts and data have that the other's have not."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from meshwise.cost.parts import SERVE_WORDS, TRAIN_MEMORY, TRAIN_WORDS, words
from meshwise.errors import UserError
from meshwise.plan.fields import flag_of, spec
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan

AnyPlan = TrainPlan | ServePlan
NEGLIGIBLE_SHARE = 1e-3  # share of the whole below which a part does not differ
TRAINED = (
    ("step", "seconds", "step"), ("tokens/s", "count", "tokens_per_second"), ("MFU", "share", "mfu"), ("memory", "bytes", "peak"),
    ("devices", "count", "devices"), ("days", "count", "total_days"), ("dollars", "dollars", "total_dollars"),
)  # fmt: skip
SERVED = (
    ("tokens/s of one request", "count", "per_user"), ("tokens/s in all", "count", "throughput"),
    ("time to first token, p50", "seconds", "ttft.p50"), ("request, p95", "seconds", "e2e.p95"), ("free memory", "bytes", "spare"),
    ("requests at once", "count", "most_users"), ("dollars per million outputs", "dollars", "dollars_per_million_out"),
)  # fmt: skip
"""Figures of a layout: name, quantity, and attribute."""


@dataclass(frozen=True)
class Figure:
    """One quantity in both plans, in SI."""

    name: str
    quantity: str  # a key of `units.QUANTITIES`; '' for an option of the question, as text
    mine: Any
    other: Any
    kind: str  # asked, figures, time or memory


@dataclass(frozen=True)
class PlanDiff:
    """How plan B differs from plan A."""

    names: tuple[str, str]
    commands: tuple[str, str]
    layouts: tuple[str, str]
    figures: tuple[Figure, ...]
    data: tuple[str, ...]  # data of which the two were made with different versions, though their questions are the same

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.figures]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diff(mine: AnyPlan, other: AnyPlan, names: tuple[str, str] = ("A", "B")) -> PlanDiff:
    """Return how the best layout of one plan differs from that of another, both as their files state them."""
    if type(mine) is not type(other):
        raise UserError(
            f"{names[0]} is a plan of '{mine.ask.verb}' and {names[1]} of '{other.ask.verb}': expected two of one verb"
        )
    known = {**mine.versions, **other.versions} if mine.ask == other.ask else {"meshwise": ""}
    return PlanDiff(
        names=names, commands=(mine.command, other.command), layouts=(mine.best.name, other.best.name),
        figures=(*_asked(mine, other), *_figures(mine, other)),
        data=tuple(name for name in known if mine.versions.get(name) != other.versions.get(name)),
    )  # fmt: skip


def _asked(mine: AnyPlan, other: AnyPlan) -> Iterator[Figure]:
    """Yield the options whose values differ, as text."""
    for name, about in spec(type(mine.ask)).items():
        values = [getattr(plan.ask, name) for plan in (mine, other)]
        if values[0] != values[1]:
            texts = [str(about.kind.write(value)) if value and about.kind.metavar else str(value or "") for value in values]
            yield Figure(flag_of(name, about), "", texts[0], texts[1], "asked")


def _figures(mine: AnyPlan, other: AnyPlan) -> Iterator[Figure]:
    """Yield the figures of both layouts, and the parts of a step and kinds of memory that differ, the largest difference first."""
    trained = isinstance(mine, TrainPlan)
    for name, quantity, attribute in TRAINED if trained else SERVED:
        values = [attrgetter(attribute)(plan.best) for plan in (mine, other)]
        if None not in values:
            yield Figure(name, quantity, float(values[0]), float(values[1]), "figures")
    yield from _parts(TRAIN_WORDS if trained else SERVE_WORDS, mine.best.time, other.best.time, "seconds", "time")
    if isinstance(mine, TrainPlan) and isinstance(other, TrainPlan):
        yield from _parts(words(TRAIN_MEMORY), mine.best.memory, other.best.memory, "bytes", "memory")


def _parts(
    known: Mapping[str, str], mine: Mapping[str, float], other: Mapping[str, float], quantity: str, kind: str
) -> list[Figure]:
    least = NEGLIGIBLE_SHARE * max(sum(mine.values()), sum(other.values()))
    found = [
        Figure(known.get(name, name), quantity, mine.get(name, 0.0), other.get(name, 0.0), kind) for name in {**mine, **other}
    ]
    return sorted((one for one in found if abs(one.other - one.mine) > least), key=lambda one: -abs(one.other - one.mine))
