"""A calibration made from tables of measurements: fitted, scored on rows left out, and written as data/calibration files are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise import measure, written
from meshwise.calibrate import fit_leaving_out, prior_for
from meshwise.calibration import FITTED, Calibration
from meshwise.errors import UserError
from meshwise.measure import Case
from meshwise.predict import Prediction
from meshwise.score import Score, near, score


@dataclass(frozen=True)
class Calibrated:
    calibration: Calibration
    in_sample: Score
    left_out: Score


def calibrated(
    tables: Sequence[str],
    *,
    chips: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    architectures: Sequence[str] = (),
    date: str,
) -> Calibrated:
    """Fit to all rows of these tables; it serves their chip and frameworks unless others are named."""
    cases: list[Case] = []
    for name in tables:
        cases += measure.cases(measure.find_table(name))[0]
    found = list(dict.fromkeys(case.chip.key for case in cases))
    if len(found) > 1:
        raise UserError(
            f"the rows are of several chips ({', '.join(found)}); a calibration is fitted to one: give one table per chip"
        )
    groups = [(case.table, *case.setting) for case in cases]
    if len(set(groups)) == 1:
        groups = [(case.table, case.row_id) for case in cases]
    fitted = fit_leaving_out(cases, prior_for(cases[0].chip), groups)
    spread, memory_spread = _spreads(cases, fitted.left_out, fitted.calibration)
    made = replace(
        fitted.calibration,
        key="",
        chips=tuple(chips or found),
        frameworks=tuple(frameworks or dict.fromkeys(case.work.framework.key for case in cases)),
        architectures=tuple(architectures),
        fitted_on=", ".join(dict.fromkeys(case.table for case in cases)),
        date=date,
        rows=float(len(cases)),
        sources=(),
        spread=spread,
        memory_spread=memory_spread,
    )
    return Calibrated(made, score(cases, [], fitted.inside), score(cases, [], fitted.left_out))


def _spreads(cases: Sequence[Case], predicted: Prediction, prior: Calibration) -> tuple[float, float]:
    """Root mean square of ln(predicted / measured), of times near their group's best and of memory; the prior's where none was seen."""
    timed, weighed = near(cases), [i for i, case in enumerate(cases) if case.weighed]
    time = np.log(predicted.seconds[timed] / [cases[i].seconds for i in timed])
    memory = np.log(predicted.memory[weighed] / [cases[i].memory for i in weighed])
    return (
        float(np.sqrt(np.mean(time**2))) if timed else prior.spread,
        float(np.sqrt(np.mean(memory**2))) if weighed else prior.memory_spread,
    )


def toml(made: Calibrated) -> str:
    """The file, its errors in front; `calibration.named` reads it back."""
    head = f"# Written by 'meshwise calibrate'. {_errors('Left out', made.left_out)} {_errors('In sample', made.in_sample)}"
    return written.toml(made.calibration, head, FITTED[0])


def _errors(where: str, found: Score) -> str:
    time, memory = found["time"]["mape_near"], found["memory"]["mape"]
    words = [f"time {100 * time:.1f}%"] if time is not None else []
    words += [f"memory {100 * memory:.1f}%"] if memory is not None else []
    return f"{where}: {', '.join(words)} mean error."
