"""Validate: predict every row of a table of served models and score the predictions, with given coefficients or by leaving rows out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwise.calibrate.result import Validation, fitted_to_the_rest
from meshwise.calibrate.score import LeaveOut, Score
from meshwise.calibrate.serve import intervals
from meshwise.calibrate.serve.score import score
from meshwise.catalogue import calibrations
from meshwise.cost.serve.distance import distance
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.serve.doubts import doubts
from meshwise.runs.serve.predict import Prediction, on_host, predict
from meshwise.runs.table import find_table

PRIOR_SPREAD = 0.1  # spread of a row where no other group of rows has a measurement


@dataclass(frozen=True, kw_only=True, repr=False)
class ServeValidation(Validation):
    """A table of served models."""

    part: ClassVar[str] = "decode"
    cases: list[ServeCase]
    predicted: list[Prediction]

    def rows(self) -> list[dict[str, object]]:
        """Return one row per case, tokens/s, as --csv prints them."""
        return [
            {
                "table": self.table,
                "row_id": case.row_id,
                "group": " ".join(map(str, case.group)),
                "measured_decode": "" if np.isnan(case.decode) else case.decode,
                "predicted_decode": float(f"{speed.decode:.5g}"),
                "measured_prefill": "" if np.isnan(case.prefill) else case.prefill,
                "predicted_prefill": float(f"{speed.prefill:.5g}") if case.work.prompt else "",
                "fits": "yes" if case.fits else "no",
                "outcome": "ok" if case.ran else "oom",
                "doubt": "; ".join(dict.fromkeys(doubt.values())),
            }
            for case, speed, doubt in zip(self.cases, self.predicted, doubts(self.cases), strict=True)
        ]


def validate(name: str, calibration: str = "", leave_out: LeaveOut | None = None) -> ServeValidation:
    """Score a table with the coefficients chosen for each row, with named ones, or with fits to the rest of the table."""
    path = find_table(name)
    cases, skipped = read_cases(path)
    if leave_out is None:
        fixed = calibrations.named_serve(calibration) if calibration else None
        predicted = predict(cases, fixed)
        chosen = [fixed or calibrations.choose_serve(case.chip, case.runtime.key, case.backend) for case in cases]
        used: Score = {"calibration": ", ".join(dict.fromkeys(c.name for c in chosen))}
        spreads = {
            part: [
                distance(one, case.chip, experts=case.kind == "experts", unmeasured=on_host(case, one), prefill=part == "prefill")
                for one, case in zip(chosen, cases, strict=True)
            ]
            for part in ("decode", "prefill")
        }
    else:
        from meshwise.calibrate.serve import fit

        groups: Sequence[object] = fit.groups_to_leave_out(cases, leave_out)
        predicted = fit.predict_leaving_out(cases, groups, [fit.prior_for(case) for case in cases])
        used = fitted_to_the_rest(leave_out)
        spreads = {
            part: intervals.left_out(cases, intervals.errors(cases, predicted, part), groups, PRIOR_SPREAD)
            for part in ("decode", "prefill")
        }
    scores: Score = {"table": path.stem} | used | score(cases, skipped, predicted)
    for part, row_spreads in spreads.items():
        scores[part]["coverage"] = intervals.coverage(intervals.errors(cases, predicted, part), row_spreads)
    return ServeValidation(table=path.stem, cases=cases, skipped=skipped, predicted=predicted, score=scores)
