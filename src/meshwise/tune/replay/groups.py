"""Groups: measured runs of a table that differ in their layout alone, as candidates, and the regret of running them in some order.

The cost model must not have seen the table. For a table that ships with meshwise, whose rows calibrations were fitted to, data/left_out
holds calibrations that were fitted to the other tables (`benchmarks/accuracy/left_out.py`); for any other table, those that ship are used.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwise.calibrate.dispatch import is_served
from meshwise.catalogue import calibrations, files
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.levels import choose_for, levels
from meshwise.cost.axes import NAMES
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.errors import UserError, quoted
from meshwise.runs.table import Skipped, find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.settle import read_cases
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.space import Space

MIN_ROWS_PER_GROUP = 6  # rows of a group that is replayed
LEFT_OUT = "left_out"
Order = list[int]  # rows of a group, in the order in which they run


@dataclass(frozen=True)
class Group:
    """Measured runs that a strategy chooses among, as the candidates of a space."""

    cases: tuple[Case, ...]
    calibration: Calibration

    @cached_property
    def space(self) -> Space:
        """The rows as candidates, in the order of the table."""
        first = self.cases[0]
        layouts = Layouts.of(**{axis: np.array([case.layout[axis] for case in self.cases]) for axis in NAMES})
        return Space.of_layouts(Question.of(first.model, first.cluster, first.work, self.calibration), layouts)

    @cached_property
    def seconds(self) -> Floats:
        """Measured seconds; infinite where a run failed."""
        return np.array([case.seconds if case.timed else np.inf for case in self.cases])

    def observation(self, row: int) -> Observation:
        """Return what a run of a row tells."""
        case = self.cases[row]
        if not case.timed:
            return Observation(row, failure="oom")
        return Observation(row, case.seconds, case.memory if case.has_memory else None)

    @property
    def name(self) -> str:
        first = self.cases[0]
        words = [first.date, first.model.name, f"{first.cluster.devices} devices", f"batch {int(first.work.batch)}"]
        return ", ".join(filter(None, words))

    def regret(self, order: Order, runs: int) -> Floats:
        """Return the regret after 1 to `runs` runs in this order; after all rows have run, it stays."""
        ran = np.where(np.isfinite(self.seconds), self.seconds, -np.inf)
        taken = self.seconds[order[:runs]]
        fastest = np.minimum(np.minimum.accumulate(taken), ran.max())
        return np.pad(fastest, (0, runs - len(fastest)), mode="edge") / self.seconds.min() - 1


def left_out(case: Case) -> Calibration | None:
    """Return the calibration that was fitted without the table of a run; None for a table that no calibration was fitted to."""
    if case.table not in levels().fitted_on.split(", "):
        return None
    path = files.BUILT_IN / LEFT_OUT / f"{left_out_name(case)}.toml"
    if not path.is_file():
        raise UserError(
            f"{case.table} ships with meshwise, but no calibration does that was fitted without its runs on {case.chip.key} with "
            f"{case.work.framework.key}; name a calibration with --calibration"
        )
    return calibrations.named(str(path))


def left_out_name(case: Case) -> str:
    """Return the name of the calibration without a case's table, for its chip and framework."""
    return f"{case.table}.{case.chip.key}.{case.work.framework.key}"


def read_groups(table: str, calibration: str = "", fewest: int = MIN_ROWS_PER_GROUP) -> tuple[list[Group], list[Skipped]]:
    """Read the groups of a table that have at least `fewest` rows, two of which ran, and the rows that are not used."""
    if is_served(table):
        raise UserError(f"--replay {quoted(table)}: this table is of served models; give a table of training runs")
    cases, skipped = read_cases(find_table(table))
    by_key: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if case.layout["mbs"] and (case.timed or not case.ran):
            by_key.setdefault((case.date, *case.group), []).append(case)
        else:
            skipped.append(Skipped(case.row_id, "no time, or no micro-batch, is stated"))
    large = [rows for rows in by_key.values() if len(rows) >= fewest and sum(case.timed for case in rows) >= 2]
    if not large:
        raise UserError(
            f"{table}: no group of at least {fewest} runs that differ in their layout alone, so there is nothing to choose among"
        )
    named = calibrations.named(calibration) if calibration else None
    return [
        Group(tuple(rows), named or left_out(rows[0]) or choose_for(rows[0].cluster, rows[0].work.framework)) for rows in large
    ], skipped


@dataclass(frozen=True)
class Strategy:
    """A way to choose, with the regret of every group after 1, 2, ... runs: the mean over its seeds, where it draws."""

    name: str
    regret: tuple[Floats, ...]

    def mean(self, runs: int) -> float:
        """Return the mean regret over groups after this many runs."""
        return float(np.mean([curve[min(runs, len(curve)) - 1] for curve in self.regret]))


def drawn(groups: Sequence[Group], runs: int, seeds: int, order: Callable[[Group, int], Order]) -> Iterator[Floats]:
    """Yield the mean regret of each group over the seeds of a strategy that draws."""
    for group in groups:
        yield np.mean([group.regret(order(group, seed), runs) for seed in range(seeds)], axis=0)
