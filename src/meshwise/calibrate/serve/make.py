"""Make a calibration of serving from tables of served models: fit it, and score it on rows left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from meshwise.calibrate.result import Result
from meshwise.calibrate.serve import fit, intervals
from meshwise.calibrate.serve.score import score
from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.errors import UserError
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.serve.predict import predict
from meshwise.runs.table import find_table


@dataclass(frozen=True, kw_only=True, repr=False)
class ServeCalibrationResult(Result):
    """A calibration of serving."""

    folder: ClassVar[str] = "serving"
    errors: ClassVar[tuple[tuple[str, str], ...]] = (("decode", "mape"), ("prefill", "mape"))
    calibration: ServeCalibration

    @property
    def record(self) -> ServeCalibration:
        return self.calibration

    @property
    def programs(self) -> tuple[str, ...]:
        return self.calibration.engines


def make(
    tables: Sequence[str], *, chips: Sequence[str] = (), engines: Sequence[str] = (), architectures: Sequence[str] = (), date: str
) -> ServeCalibrationResult:
    """Fit a calibration to the rows of these tables that are of the named chips, or of the only chip."""
    cases = _cases_of(tables, chips)
    groups = fit.groups_to_leave_out(cases, "group")
    folds = groups if len(set(groups)) > 1 else fit.groups_to_leave_out(cases, "row")
    left = fit.predict_leaving_out(cases, folds, [fit.prior_for(case) for case in cases])
    made = fit.fit(cases, fit.prior_for(cases[0]))
    made = replace(
        made,
        key="",
        kinds=(),
        chips=tuple(chips or dict.fromkeys(case.chip.key for case in cases)),
        engines=tuple(engines or dict.fromkeys(case.runtime.engine for case in cases)),
        architectures=tuple(architectures),
        fitted_on=", ".join(dict.fromkeys(case.table for case in cases)),
        date=date,
        rows=float(len(cases)),
        sources=(),
        # At least the noise: rows of one machine do not show how far another one with the same card differs.
        spread=max(fit.NOISE_STD, intervals.spread(intervals.errors(cases, left, "decode"), made.spread)),
        prefill_spread=max(
            fit.PREFILL_NOISE_STD, intervals.spread(intervals.errors(cases, left, "prefill"), made.prefill_spread)
        ),
    )
    return ServeCalibrationResult(
        calibration=made, in_sample=score(cases, [], predict(cases, made)), left_out=score(cases, [], left),
        before=score(cases, [], [predict([case], fit.prior_for(case))[0] for case in cases]),
        before_name="the calibration of similar chips",
    )  # fmt: skip


def _cases_of(tables: Sequence[str], chips: Sequence[str]) -> list[ServeCase]:
    """Read the rows of the named chips; refuse rows of several chips where none is named."""
    cases = [case for name in tables for case in read_cases(find_table(name))[0]]
    keys = list(dict.fromkeys(case.chip.key for case in cases))
    if len(keys) > 1 and not chips:
        raise UserError(f"the rows are of several chips ({', '.join(keys)}); choose the one to fit to with --chips")
    chosen = [case for case in cases if not chips or case.chip.key in chips]
    if not chosen:
        raise UserError(f"no row is of {', '.join(chips)}; there are rows of {', '.join(keys)}")
    return chosen
