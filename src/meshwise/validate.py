"""Validate: a table of measurements, predicted and scored; by a calibration as it is, or by fits that leave rows out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwise import calibration as calibrations
from meshwise import measure
from meshwise.calibration import Calibration
from meshwise.measure import Case, Skipped
from meshwise.predict import Prediction, predict
from meshwise.score import Score, score

LeaveOut = Literal["row", "group"]


@dataclass(frozen=True)
class Validation:
    """One table with what was predicted for it and how well that did."""

    table: str
    cases: list[Case]
    skipped: list[Skipped]
    predicted: Prediction
    score: Score

    def rows(self) -> list[dict[str, object]]:
        """One line per case, seconds and bytes: what --csv prints."""
        return [
            {
                "table": self.table,
                "row_id": case.row_id,
                "group": " ".join(map(str, case.group[:3])),
                "measured_seconds": case.seconds if case.timed else "",
                "predicted_seconds": float(f"{seconds:.6g}"),
                "ratio": round(seconds / case.seconds, 4) if case.timed else "",
                "measured_memory": round(case.memory) if case.weighed else "",
                "predicted_memory": round(memory),
                "outcome": "ok" if case.ran else "oom",
            }
            for case, seconds, memory in zip(
                self.cases, self.predicted.seconds.tolist(), self.predicted.memory.tolist(), strict=True
            )
        ]


def validate(name: str, calibration: str = "", leave_out: LeaveOut | None = None) -> Validation:
    """Score a table under a named calibration, under the one chosen for each row, or under fits to the rest of the table."""
    path = measure.find_table(name)
    cases, skipped = measure.cases(path)
    if leave_out is None:
        fixed = calibrations.named(calibration) if calibration else None
        predicted = predict(cases, fixed)
        about = {"calibration": ", ".join(dict.fromkeys(_used(case, fixed) for case in cases))}
        return Validation(path.stem, cases, skipped, predicted, {"table": path.stem} | about | score(cases, skipped, predicted))
    predicted, inside = _fitted(cases, leave_out)
    about = {"calibration": f"fitted to this table, leaving out one {leave_out} at a time", "left_out": leave_out}
    fitted_all = score(cases, skipped, inside)
    in_sample = {"in_sample": {key: fitted_all[key] for key in ("time", "memory", "oom")}}
    found = {"table": path.stem} | about | score(cases, skipped, predicted) | in_sample
    return Validation(path.stem, cases, skipped, predicted, found)


def _used(case: Case, fixed: Calibration | None) -> str:
    return (fixed or calibrations.choose(case.chip, case.work.framework.key)).key or "default prior"


def folds(cases: Sequence[Case], leave_out: LeaveOut) -> list[object]:
    """What is left out together: single rows, or rows of one day and model shape (of one model and number of devices, undated)."""
    return [case.row_id if leave_out == "row" else (case.table, *case.setting) for case in cases]


def _fitted(cases: list[Case], leave_out: LeaveOut) -> tuple[Prediction, Prediction]:
    """Predictions by fits that left each row out, and by the fit of all; every chip is fitted by itself."""
    from meshwise import calibrate  # scipy: half a second that only a fit should cost

    out, inside = (Prediction(np.full(len(cases), np.nan), np.full(len(cases), np.nan)) for _ in range(2))
    for chip in dict.fromkeys(case.chip.key for case in cases):
        rows = [i for i, case in enumerate(cases) if case.chip.key == chip]
        some = [cases[i] for i in rows]
        fitted = calibrate.fit_leaving_out(some, calibrate.prior_for(some[0].chip), folds(some, leave_out))
        for whole, part in ((out, fitted.left_out), (inside, fitted.inside)):
            whole.seconds[rows], whole.memory[rows] = part.seconds, part.memory
    return out, inside
