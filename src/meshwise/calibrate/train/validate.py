"""Validate: a table of measurements, predicted and scored; by a calibration as it is, or by fits that leave rows out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshwise.calibrate import tables
from meshwise.calibrate.tables import Skipped
from meshwise.calibrate.train import cases as measure
from meshwise.calibrate.train import intervals
from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.predict import Batch, Prediction, predict
from meshwise.calibrate.train.score import Score, score
from meshwise.catalogue import calibrations
from meshwise.catalogue.calibrations import Calibration
from meshwise.cost import interval
from meshwise.cost.layout import Floats
from meshwise.plan.plan import frame

LeaveOut = Literal["row", "group"]


@dataclass(frozen=True, repr=False)
class Validation:
    """One table with what was predicted for it and how well that did."""

    table: str
    cases: list[Case]
    skipped: list[Skipped]
    predicted: Prediction
    score: Score
    low: Floats
    high: Floats
    """Seconds between which 90% of the measurements should lie."""

    def __repr__(self) -> str:
        error = self.score["time"]["mape"]
        return f"<Validation of {self.table}, {len(self.cases)} rows{'' if error is None else f': time error {error:.1%}'}>"

    def to_frame(self) -> Any:
        """The rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def rows(self) -> list[dict[str, object]]:
        """One line per case, seconds and bytes: what --csv prints."""
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
                "measured_memory": round(case.memory) if case.weighed else "",
                "predicted_memory": round(memory),
                "outcome": "ok" if case.ran else "oom",
            }
            for case, seconds, memory, low, high in zip(
                self.cases,
                *(side.tolist() for side in (self.predicted.seconds, self.predicted.memory, self.low, self.high)),
                strict=True,
            )
        ]


def validate(name: str, calibration: str = "", leave_out: LeaveOut | None = None) -> Validation:
    """Score a table under a named calibration, under the one chosen for each row, or under fits to the rest of the table."""
    path = tables.find_table(name)
    cases, skipped = measure.cases(path)
    if leave_out is None:
        fixed = calibrations.named(calibration) if calibration else None
        predicted = predict(cases, fixed)
        low, high = _ends(cases, predicted, fixed)
        about = {"calibration": ", ".join(dict.fromkeys(_used(case, fixed) for case in cases))}
        found: Score = {"table": path.stem} | about | score(cases, skipped, predicted)
    else:
        predicted, inside, low, high = _fitted(cases, leave_out)
        about = {"calibration": f"fitted to this table, leaving out one {leave_out} at a time", "left_out": leave_out}
        fitted_all = score(cases, skipped, inside)
        in_sample = {"in_sample": {key: fitted_all[key] for key in ("time", "memory", "oom")}}
        found = {"table": path.stem} | about | score(cases, skipped, predicted) | in_sample
    found["time"]["coverage"] = intervals.coverage(cases, low, high)
    return Validation(path.stem, cases, skipped, predicted, found, low, high)


def _ends(cases: list[Case], predicted: Prediction, fixed: Calibration | None) -> tuple[Floats, Floats]:
    """Of every row's interval, by the calibration that predicts it."""
    waits = interval.waiting(Batch.of(cases).shares(fixed))
    used = [fixed or calibrations.choose(case.chip, case.work.framework.key) for case in cases]
    low, high = predicted.seconds.copy(), predicted.seconds.copy()
    for one in dict.fromkeys(used):
        rows = [i for i, own in enumerate(used) if own is one]
        down, up = interval.factors(one, waits[rows], np.array([float(cases[i].cluster.devices) for i in rows]))
        low[rows], high[rows] = low[rows] * down, high[rows] * up
    return low, high


def _used(case: Case, fixed: Calibration | None) -> str:
    return (fixed or calibrations.choose(case.chip, case.work.framework.key)).key or "default prior"


def folds(cases: Sequence[Case], leave_out: LeaveOut) -> list[object]:
    """What is left out together: single rows, or rows of one day and model shape (of one model and number of devices, undated)."""
    return [case.row_id if leave_out == "row" else (case.table, *case.setting) for case in cases]


def _fitted(cases: list[Case], leave_out: LeaveOut) -> tuple[Prediction, Prediction, Floats, Floats]:
    """Predictions by fits that left each row out, and by the fit of all, and intervals that left it out too; every chip by itself."""
    from meshwise.calibrate.train import fit

    nothing = (np.full(len(cases), np.nan) for _ in range(6))
    out, inside = (Prediction(next(nothing), next(nothing)) for _ in range(2))
    low, high = nothing
    for chip in dict.fromkeys(case.chip.key for case in cases):
        rows = [i for i, case in enumerate(cases) if case.chip.key == chip]
        some = [cases[i] for i in rows]
        groups = folds(some, leave_out)
        fitted = fit.fit_leaving_out(some, fit.prior_for(some[0].chip), groups)
        for whole, part in ((out, fitted.left_out), (inside, fitted.inside)):
            whole.seconds[rows], whole.memory[rows] = part.seconds, part.memory
        low[rows], high[rows] = intervals.left_out(some, fitted.left_out, Batch.of(some).shares(fitted.calibration), groups)
    return out, inside, low, high
