"""Validate: predict every run of a table and score the predictions, with a given calibration or with fits that leave rows out."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from meshwise.calibrate.result import Validation, fitted_to_the_rest
from meshwise.calibrate.score import LeaveOut, Score
from meshwise.calibrate.train import intervals, modes
from meshwise.calibrate.train.modes import Found
from meshwise.calibrate.train.score import by_source, memory_coverage, score, time_errors
from meshwise.catalogue import calibrations, levels
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost import interval
from meshwise.cost.layout import Floats
from meshwise.cost.modes import time_of, upper_end
from meshwise.errors import UserError
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, Prediction
from meshwise.runs.train.settle import read_cases


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainValidation(Validation):
    """A table of training runs."""

    part: ClassVar[str] = "time"
    cases: list[Case]
    predicted: Prediction
    low: Floats
    high: Floats  # seconds between which 90% of the measurements should lie
    calibrated: list[bool]
    """Whether each prediction rests on a calibration of that chip with that framework; otherwise on what is known of each."""
    modes: list[Found]  # states in which runs of a source are slower

    def rows(self) -> list[dict[str, object]]:
        """Return one row per case, seconds and bytes, as --csv prints them."""
        slow = {row: found for found in self.modes for row in found.rows}
        return [
            {
                "table": self.table,
                "row_id": case.row_id,
                "group": " ".join(map(str, case.group[:3])),
                "measured_seconds": case.seconds if case.timed else "",
                "predicted_seconds": float(f"{seconds:.6g}"),
                "low_seconds": float(f"{low:.6g}"),
                "high_seconds": float(f"{high:.6g}"),
                "ratio": round(seconds / case.seconds, 4) if case.timed else "",
                "measured_memory": round(case.memory) if case.has_memory else "",
                "predicted_memory": round(memory),
                "outcome": "ok" if case.ran else "oom",
                "chip": case.chip.key,
                "framework": case.work.framework.key,
                "precision": case.work.precision,
                "calibrated": "yes" if calibrated else "no",
                "mode": time_of(slow[number].mode) if number in slow else "",
            }
            for number, case, seconds, memory, low, high, calibrated in zip(
                range(len(self.cases)),
                self.cases,
                *(side.tolist() for side in (self.predicted.seconds, self.predicted.memory, self.low, self.high)),
                self.calibrated,
                strict=True,
            )
        ]


def validate(name: str, calibration: str = "", leave_out: LeaveOut | None = None) -> TrainValidation:
    """Score a table with a named calibration, with the one chosen for each row, or with fits to the rest of the table."""
    path = find_table(name)
    cases, skipped = read_cases(path)
    if leave_out is None:
        fixed = calibrations.named(calibration) if calibration else None
        predicted, shares = Batch.of(cases).evaluate_parts(fixed)
        _check_finite(path.stem, cases, predicted)
        chosen = [fixed] * len(cases) if fixed else by_machine(cases, _chosen)
        low, high = _ends(cases, predicted, shares, chosen)
        used: Score = {"calibration": ", ".join(dict.fromkeys(each.name for each in chosen))}
        scores: Score = {"table": path.stem} | used | score(cases, skipped, predicted)
        scores["memory"]["coverage"] = memory_coverage(cases, predicted, [each.memory_spread for each in chosen])
    else:
        predicted, inside, low, high = _fitted(cases, leave_out)
        _check_finite(path.stem, cases, predicted)
        fitted_all = score(cases, skipped, inside)
        in_sample = {"in_sample": {key: fitted_all[key] for key in ("time", "memory", "oom")}}
        scores = {"table": path.stem} | fitted_to_the_rest(leave_out) | score(cases, skipped, predicted) | in_sample
    scores["time"]["coverage"] = intervals.coverage(cases, low, high)
    found = modes.find(cases, predicted.seconds)
    scores["faulty"] = _faulty(cases, predicted, (low, high), found)
    rests = by_machine(cases, lambda case: _rests_on(case, calibration, leave_out))
    scores["sources"] = by_source(cases, predicted, (low, high), rests)
    return TrainValidation(
        table=path.stem, cases=cases, skipped=skipped, predicted=predicted, score=scores, low=low, high=high, calibrated=rests,
        modes=found,
    )  # fmt: skip


def _faulty(cases: Sequence[Case], predicted: Prediction, ends: tuple[Floats, Floats], found: Sequence[Found]) -> Score:
    """Return the modes of slow runs, and the scores of the other runs."""
    slow = modes.rows_in(found)
    normal = [i for i, case in enumerate(cases) if case.timed and i not in slow]
    return {
        "rows": len(slow),
        "modes": [
            {"table": each.source[0], "chip": each.source[1], "framework": each.source[2]}
            | {"sentence": each.sentence, "row_ids": [cases[row].row_id for row in each.rows], "runs": each.visible}
            | asdict(each.mode)
            for each in found
        ],
        "time": time_errors(cases, predicted, normal) | {"coverage": intervals.coverage(cases, *ends, slow)},
    }


Value = TypeVar("Value")


def by_machine(cases: Sequence[Case], value: Callable[[Case], Value]) -> list[Value]:
    """Return a value of every case that depends only on its machine, framework and table: computed once for each of these."""
    known: dict[tuple[object, ...], Value] = {}
    values: list[Value] = []
    for case in cases:
        key = (id(case.cluster), id(case.work.framework), case.table)
        if key not in known:
            known[key] = value(case)
        values.append(known[key])
    return values


def _check_finite(table: str, cases: Sequence[Case], predicted: Prediction) -> None:
    """Refuse a table with a row whose axes have no finite prediction."""
    faulty = np.flatnonzero(~(np.isfinite(predicted.seconds) & np.isfinite(predicted.memory)))
    if len(faulty):
        row = cases[int(faulty[0])].row_id
        raise UserError(f"{table}, row {row}: its layout has no finite prediction; check dp, tp, pp and interleave")


def _ends(cases: Sequence[Case], predicted: Prediction, shares: Floats, used: Sequence[Calibration]) -> tuple[Floats, Floats]:
    """Return the ends of every row's interval, by the calibration that predicts it."""
    waits = interval.waiting(shares)
    mixed = np.array([any(op.expert for op in case.model.ops) for case in cases])
    low, high = predicted.seconds.copy(), predicted.seconds.copy()
    rows_of: dict[int, list[int]] = {}
    for i, calibration in enumerate(used):
        rows_of.setdefault(id(calibration), []).append(i)
    for rows in rows_of.values():
        devices = np.array([float(cases[i].cluster.devices) for i in rows])
        down, up = interval.factors(used[rows[0]], waits[rows], devices, mixed[rows])
        low[rows], high[rows] = low[rows] * down, high[rows] * up
        sizes = modes.sizes_of([cases[i] for i in rows])
        high[rows] = upper_end(used[rows[0]].modes, high[rows], predicted.seconds[rows], sizes)
    return low, high


def _chosen(case: Case) -> Calibration:
    """Return the calibration of a row; what differs between sources does not count where it was fitted to this table."""
    chosen = levels.choose_for(case.cluster, case.work.framework)
    fitted = bool(chosen.frameworks) and case.table in chosen.fitted_on.split(", ")
    return replace(chosen, between=0.0) if fitted else chosen


def _rests_on(case: Case, calibration: str, leave_out: LeaveOut | None) -> bool:
    """Return whether a row is predicted by a calibration of its chip with its framework: a named one, a fit, or one of the catalogue."""
    return bool(calibration or leave_out or calibrations.fitted_to(case.chip, case.work.framework.key))


def _fitted(cases: list[Case], leave_out: LeaveOut) -> tuple[Prediction, Prediction, Floats, Floats]:
    """Predict each row by a fit without it and by the fit of all rows, with the ends of intervals without it; each chip separately."""
    from meshwise.calibrate.train import fit

    nothing = (np.full(len(cases), np.nan) for _ in range(8))
    out, inside = (Prediction(next(nothing), next(nothing), next(nothing)) for _ in range(2))
    low, high = nothing
    for chip in dict.fromkeys(case.chip.key for case in cases):
        rows = [i for i, case in enumerate(cases) if case.chip.key == chip]
        chip_cases = [cases[i] for i in rows]
        groups = fit.groups_to_leave_out(chip_cases, leave_out)
        fitted = fit.fit_leaving_out(chip_cases, fit.prior_for(chip_cases[0]), groups)
        for whole, part in ((out, fitted.left_out), (inside, fitted.inside)):
            whole.seconds[rows], whole.memory[rows], whole.needs[rows] = part.seconds, part.memory, part.needed
        low[rows], high[rows] = intervals.left_out(
            chip_cases, fitted.left_out, Batch.of(chip_cases).shares(fitted.calibration), groups,
            modes.find(chip_cases, fitted.left_out.seconds),
        )  # fmt: skip
    return out, inside, low, high
