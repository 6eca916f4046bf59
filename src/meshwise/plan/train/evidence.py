"""Evidence of a plan: how many measured runs of its program are near its best layout, and the layout that the program's runs have."""

import math
from dataclasses import dataclass

import numpy as np

from meshwise.catalogue import evidence
from meshwise.catalogue.evidence import AXES, NEAR_RATIO, Measured
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import Choice, choice
from meshwise.plan.train.rank import extrapolated, programs
from meshwise.plan.train.search import search

SAME_SIZE_RATIO = 2.0  # parameters of two models within this ratio are of one size: their runs are cut alike
FIXED_AXES = ("tp", "pp", "cp", "ep")  # axes that the usual layout takes over from a measured run; the search chooses the others


@dataclass(frozen=True)
class Evidence:
    """What was measured near the best layout of a plan."""

    near: int
    """Runs of the program whose every axis, and whose tokens of a sequence on one rank, are within a factor of 2."""
    error: float | None
    """Median of |predicted / measured - 1| of these runs, by fits that have not seen their tables."""
    nearest: str
    """The nearest run in words; '' where nothing of the program was measured."""
    doublings: float
    """Doublings by which axes lie outside of all measured runs of the program."""
    usual: str = ""
    """Name of the row whose cuts are those of the program's measured runs of such a model; '' where there is none that fits."""
    usual_run: str = ""
    """The run that it is taken from, in words."""

    @property
    def sentence(self) -> str:
        """One line about the best layout."""
        if not self.nearest:
            return "evidence: none, nothing of this program was measured"
        if not self.near:
            return f"evidence: no run is near this layout, it is extrapolated; nearest {self.nearest}"
        runs = "run" if self.near == 1 else "runs"
        return f"evidence: {self.near:,} measured {runs} near it, predicted within {self.error or 0:.0%}; nearest {self.nearest}"


def find(q: Question, best: Choice) -> tuple[Evidence, Choice | None]:
    """Return the evidence of the best layout, and the usual layout of the program where it fits."""
    own = runs_of(q)
    axes = {axis: int(best.layout[axis]) for axis in AXES}
    near = [run for run in own if max(run.distances(axes, q.work.seq).values()) <= NEAR_RATIO]
    nearest = next(iter(nearest_runs(q, best, axes)), None)
    usual, taken = usual_layout(q, best, own)
    return Evidence(
        near=len(near), error=float(np.median([abs(run.error) for run in near])) if near else None,
        nearest=words(nearest) if nearest else "", doublings=float(extrapolated(q, Layouts.from_row(best.layout))[0]),
        usual=usual.name if usual else "", usual_run=words(taken) if taken and usual else "",
    ), usual  # fmt: skip


def runs_of(q: Question) -> list[Measured]:
    """Return the measured runs of the program, fine-tuning apart from training."""
    own, tuned = programs(q), q.work.finetune.method if q.work.finetune.method != "full" else ""
    return [run for run in evidence.runs() if run.framework in own and run.kind == q.chip.kind and run.finetune == tuned]


def nearest_runs(q: Question, best: Choice, axes: dict[str, int]) -> list[Measured]:
    """Return the runs of the program, the nearest to a layout first."""

    def distance(run: Measured) -> float:
        return sum(map(math.log2, run.distances(axes, q.work.seq).values())) + _unlike(q, best, run)

    return sorted(runs_of(q), key=distance)


def _unlike(q: Question, best: Choice, run: Measured) -> float:
    """Return how unlike the question of a run is, in doublings of an axis: size of the model and of the cluster, chip and precision."""
    size, devices = abs(math.log2(run.params / float(q.model.params))), abs(math.log2(run.devices / best.devices))
    return size + devices / 4 + (run.chip != q.chip.key) / 2 + (run.precision != q.work.precision) / 4


def usual_layout(q: Question, best: Choice, own: list[Measured]) -> tuple[Choice | None, Measured | None]:
    """Return the best layout with the cuts of the fastest measured run of a model of this size, on the nearest number of devices."""
    alike = [run for run in own if max(run.params / float(q.model.params), float(q.model.params) / run.params) <= SAME_SIZE_RATIO]
    if not alike:
        return None, None
    nearest = min(_unlike(q, best, run) for run in alike)
    group = [run for run in alike if _unlike(q, best, run) <= nearest + 0.5]
    run = min(group, key=lambda one: one.measured * one.devices / (one.batch * one.seq * one.params))
    bounds = {axis: (run.axes[axis], run.axes[axis]) for axis in FIXED_AXES}
    found = search(q, bounds=bounds, top=1, nodes=(best.devices // q.cluster.node.devices,))
    return (choice(q, found.layouts, found.cost, 0) if len(found.layouts) else None), run


def words(run: Measured) -> str:
    """Return a run as words: its cuts, its model and its devices."""
    cuts = " ".join(f"{axis}{run.axes[axis]}" for axis in AXES if run.axes[axis] > 1 or axis == "tp")
    return f"{cuts} of {run.model} on {run.devices:,} {run.chip}"
