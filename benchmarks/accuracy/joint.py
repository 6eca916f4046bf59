"""Fit levels: coefficients of architectures, frameworks and networks, to runs of many sources together.

Each row is predicted by a calibration that is composed of its levels (catalogue/levels.py). Rows of one source also share an offset, with a
normal prior: what no formula knows of a cluster, a release or a kernel must not move the coefficients of a chip or a framework that other
sources share. A source that is left out is predicted without an offset.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwise.calibrate.train.fit import SLOPE_STEP, Point, Problem, newton_step, solve
from meshwise.calibrate.train.intervals import SOURCE_MEMORY_OFFSET_STD, SOURCE_OFFSET_STD
from meshwise.calibrate.train.score import near_best
from meshwise.catalogue.calibrations import Calibration, FittedTo, Level, coefficients
from meshwise.catalogue.levels import Levels, composed, fabric_of, keys_of
from meshwise.cost.layout import Floats
from meshwise.cost.train.question import Question
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, Prediction

Cell = tuple[Level, str, str]
"""Level, key at that level, coefficient: ('chip', 'Hopper', 'matmul')."""
MOST_ROWS = 40
"""Rows beyond this many add no weight to a source."""
UNCERTAIN = 1.5
"""Factor on NOISE: rows of different shapes are predicted less well than repeated runs of one."""
LINEAR_STEPS = 8
KERNELS = ("flash", "scan")
"""Coefficients of single kernels, which several frameworks on one chip do not share: published rates stand for them."""
ROUNDS, GAIN = 5, 5e-3
"""Bounds of the fit: a round takes twenty predictions of all rows."""
_KNOWN = coefficients(Calibration)


@dataclass(frozen=True)
class JointFit:
    """Rows of many sources, and the cells that they determine."""

    cases: Sequence[Case]
    fitted_to: FittedTo

    @cached_property
    def batch(self) -> Batch:
        return Batch.of(self.cases)

    @cached_property
    def sources(self) -> list[object]:
        return list(dict.fromkeys(case.source for case in self.cases))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Coefficients that are fitted. `elementwise` is among them: several frameworks on one chip separate it from `memory`."""
        kinds = ("memory",) if self.fitted_to == "memory" else ("speed", "probed")
        return tuple(name for name, about in _KNOWN.items() if about.width and about.fitted_to in kinds and name not in KERNELS)

    @cached_property
    def keys(self) -> list[dict[Level, str]]:
        """The key of each level, by row. Fabric '' has no cell: nothing is known about the networks that it stands for."""
        return [keys_of(case.chip, case.work.framework, fabric_of(case.cluster.network)) for case in self.cases]

    @cached_property
    def priors(self) -> list[Calibration]:
        return [composed(case.chip, case.work.framework, fabric_of(case.cluster.network)) for case in self.cases]

    @cached_property
    def cells(self) -> dict[Cell, float]:
        """Each cell with the logarithm of its prior. A coefficient that the prior sets to 0 does not exist there."""
        found: dict[Cell, float] = {}
        for keys, prior in zip(self.keys, self.priors, strict=True):
            for name in self.names:
                level = _KNOWN[name].level
                if keys[level] and getattr(prior, name) > 0:
                    found[level, keys[level], name] = float(np.log(getattr(prior, name)))
        return found

    @cached_property
    def which(self) -> Floats:
        """Index of the cell of each row (rows) and coefficient (columns); -1 where there is none."""
        index = {cell: i for i, cell in enumerate(self.cells)}
        return np.array(
            [[index.get((_KNOWN[name].level, keys[_KNOWN[name].level], name), -1) for name in self.names] for keys in self.keys]
        )

    @cached_property
    def offset_of(self) -> Floats:
        number = {source: i for i, source in enumerate(self.sources)}
        return np.array([number[case.source] for case in self.cases])

    def levels(self, logs: Floats) -> Levels:
        """Return the levels at these logarithms of the cells."""
        found: dict[str, dict[str, dict[str, float]]] = {"chip": {}, "framework": {}, "fabric": {}}
        for (level, key, name), value in zip(self.cells, np.exp(logs[: len(self.cells)]), strict=True):
            found[level].setdefault(key, {})[name] = float(value)
        return Levels(**found)  # pyright: ignore[reportArgumentType]

    def values(self, logs: Floats) -> Floats:
        """Return logarithms of predictions, with offsets."""
        predicted = predict_with(self.levels(logs), self.batch)
        figures = predicted.memory if self.fitted_to == "memory" else predicted.seconds
        return np.log(figures) + logs[len(self.cells) :][self.offset_of]

    def slopes(self, logs: Floats, at: Floats) -> Floats:
        """Return derivatives. A row depends on one cell per coefficient, so all cells of a coefficient move at once."""
        slopes, rows = np.zeros((len(self.cases), len(logs))), np.arange(len(self.cases))
        for column, name in enumerate(self.names):
            moved = logs.copy()
            for i, (_, _, of) in enumerate(self.cells):
                moved[i] -= SLOPE_STEP * (of == name)
            change, cell = (at - self.values(moved)) / SLOPE_STEP, self.which[:, column]
            known = cell >= 0
            slopes[rows[known], cell[known]] = change[known]
        slopes[rows, len(self.cells) + self.offset_of] = 1.0
        return slopes

    def problem(self) -> Problem:
        memory = self.fitted_to == "memory"
        measured = np.array([case.memory if memory else case.seconds for case in self.cases])
        used = [i for i, case in enumerate(self.cases) if case.has_memory] if memory else near_best(self.cases)
        offsets = len(self.sources)
        return Problem(
            values=self.values,
            measured=np.log(measured),
            weight=_weights(self.cases, used),
            start=np.append(list(self.cells.values()), np.zeros(offsets)),
            width=np.append(
                [_KNOWN[name].width for _, _, name in self.cells],
                np.full(offsets, SOURCE_MEMORY_OFFSET_STD if memory else SOURCE_OFFSET_STD),
            ),
            most=np.append([np.log(_KNOWN[name].most) for _, _, name in self.cells], np.full(offsets, np.inf)),
            slopes=self.slopes,
        )

    def solve(self) -> tuple[Problem, Point]:
        """Return the problem and its solution, with slopes there."""
        problem = self.problem()
        at = solve(problem, ROUNDS, GAIN)
        return problem, replace(at, slopes=self.slopes(at.logs, at.values))

    def leaving_out(self, problem: Problem, at: Point, left: Callable[[Case], bool]) -> Levels:
        """Return the levels of a fit without some rows: steps along the slopes of the fit to all rows, near which it is."""
        weight = np.where([left(case) for case in self.cases], 0.0, problem.weight)
        logs = at.logs
        for _ in range(LINEAR_STEPS):
            values = at.values + at.slopes @ (logs - at.logs)
            residuals = problem.residuals(logs, values, weight)
            move, _ = newton_step(problem.slopes_of_residuals(at.slopes, weight), residuals, problem.most - logs, 1e-6)
            logs = logs + move
        return self.levels(logs)


def predict_with(known: Levels, batch: Batch) -> Prediction:
    """Predict every row by a calibration that is composed of these levels."""

    def calibration(q: Question) -> Calibration:
        return composed(q.chip, q.work.framework, fabric_of(q.cluster.network), known)

    return batch.evaluate(calibration)


def _weights(cases: Sequence[Case], rows: list[int]) -> Floats:
    size = Counter(cases[i].source for i in rows)
    weight = np.zeros(len(cases))
    weight[rows] = [min(1.0, (MOST_ROWS / size[cases[i].source]) ** 0.5) / UNCERTAIN for i in rows]
    return weight
