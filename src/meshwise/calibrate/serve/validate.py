"""Tables of served models, predicted and scored; and a Serving made from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from meshwise.calibrate.result import Result
from meshwise.calibrate.serve.cases import ServeCase, serve_cases
from meshwise.calibrate.serve.score import score
from meshwise.calibrate.tables import Skipped, find_table
from meshwise.calibrate.train import intervals
from meshwise.calibrate.train.score import Score
from meshwise.catalogue import calibrations, records
from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.cost import interval
from meshwise.cost.serve.speed import Speed
from meshwise.errors import UserError
from meshwise.plan.plan import frame

FOLDS = 10
"""Fits of a leave-one-out by rows: every tenth row is left out together."""


@dataclass(frozen=True, repr=False)
class ServeValidation:
    """One table with what was predicted for it and how well that did."""

    table: str
    cases: list[ServeCase]
    skipped: list[Skipped]
    predicted: list[Speed]
    score: Score

    def __repr__(self) -> str:
        error = self.score["decode"]["mape"]
        return (
            f"<ServeValidation of {self.table}, {len(self.cases)} rows{'' if error is None else f': decode error {error:.1%}'}>"
        )

    def to_frame(self) -> Any:
        """The rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def rows(self) -> list[dict[str, object]]:
        """One line per case, tokens/s: what --csv prints."""
        return [
            {
                "table": self.table,
                "row_id": case.row_id,
                "group": " ".join(map(str, case.group)),
                "measured_decode": "" if np.isnan(case.decode) else case.decode,
                "predicted_decode": float(f"{speed.decode_tokens_per_second:.5g}"),
                "measured_prefill": "" if np.isnan(case.prefill) else case.prefill,
                "predicted_prefill": float(f"{speed.prefill_tokens_per_second:.5g}") if case.work.prompt else "",
                "fits": "yes" if case.fits else "no",
                "outcome": "ok" if case.ran else "oom",
            }
            for case, speed in zip(self.cases, self.predicted, strict=True)
        ]


def validate_serve(name: str, calibration: str = "", leave_out: Literal["row", "group"] | None = None) -> ServeValidation:
    """Score a table by the coefficients chosen for each row, by named ones, or by fits to the rest of the table."""
    from meshwise.calibrate.serve import fit

    path = find_table(name)
    cases, skipped = serve_cases(path)
    if leave_out is None:
        fixed = calibrations.named_serve(calibration) if calibration else None
        predicted = fit.predict(cases, fixed)
        used = dict.fromkeys(
            (fixed or calibrations.choose_serve(case.chip, case.runtime.key)).key or "default prior" for case in cases
        )
        about = {"calibration": ", ".join(used)}
        chosen = [fixed or calibrations.choose_serve(case.chip, case.runtime.key) for case in cases]
        spreads = {"decode": [one.spread for one in chosen], "prefill": [one.prefill_spread for one in chosen]}
    else:
        groups: Sequence[object] = [case.group for case in cases] if leave_out == "group" else _folds(cases)
        predicted = fit.predict_leaving_out(cases, groups, [_prior(case) for case in cases])
        about = {"calibration": f"fitted to this table, leaving out one {leave_out} at a time", "left_out": leave_out}
        spreads = {
            part: _left_out_spreads(cases, _errors_of(cases, predicted, part), groups, 0.1) for part in ("decode", "prefill")
        }
    found: Score = {"table": path.stem} | about | score(cases, skipped, predicted)
    for part, own in spreads.items():
        found[part]["coverage"] = _coverage(_errors_of(cases, predicted, part), own)
    return ServeValidation(path.stem, cases, skipped, predicted, found)


def _prior(case: ServeCase) -> ServeCalibration:
    """What is known of chips of its kind with its engine; where that was fitted to this very table, what was known before."""
    found = calibrations.serve_prior(case.chip, case.runtime.key)
    return ServeCalibration() if case.table in found.fitted_on else found


def _folds(cases: Sequence[ServeCase]) -> list[int]:
    """Every tenth row together, and all rows that state the same prompt: one that was timed once and stands beside many counts of users
    would be left out of a fit that has seen it."""
    keys = [case.row_id if np.isnan(case.prefill) else (case.model.name, case.work.prompt, case.prefill) for case in cases]
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] % FOLDS for key in keys]


@dataclass(frozen=True, repr=False)
class ServeCalibrated(Result):
    """A calibration of serving, its scores on the rows it was fitted to and on rows left out, and the scores before."""

    folder: ClassVar[str] = "serving"
    serving: ServeCalibration
    in_sample: Score
    left_out: Score
    before: Score
    """Of the same rows by what is known of chips of their kind."""

    @property
    def name(self) -> str:
        return "-".join((*self.serving.chips[:1], *self.serving.engines[:1]))

    @property
    def text(self) -> str:
        return serve_toml(self)

    def to_json(self) -> dict[str, Any]:
        return {"before": self.before, "left_out": self.left_out, "in_sample": self.in_sample}

    @property
    def worse(self) -> str:
        """By how much rows left out are predicted worse than before; nothing where they are not."""
        for part in ("decode", "prefill"):
            now, then = self.left_out[part]["mape"], self.before[part]["mape"]
            if now is not None and then is not None and now > then * 1.005:
                return f"{part} errs {100 * now:.1f}% on rows left out of the fit, and {100 * then:.1f}% with what is known of such chips"
        return ""


def calibrated_serve(
    tables: Sequence[str], *, chips: Sequence[str] = (), engines: Sequence[str] = (), architectures: Sequence[str] = (), date: str
) -> ServeCalibrated:
    """Fit to the rows of these tables that are of the named chips (or of the only one there is)."""
    from meshwise.calibrate.serve import fit

    cases = [case for name in tables for case in serve_cases(find_table(name))[0]]
    found = list(dict.fromkeys(case.chip.key for case in cases))
    if len(found) > 1 and not chips:
        raise UserError(f"the rows are of several chips ({', '.join(found)}); say with --chips which one to fit to")
    if chips:
        cases = [case for case in cases if case.chip.key in chips]
        if not cases:
            raise UserError(f"no row is of {', '.join(chips)}; there are {', '.join(found)}")
    first, groups = cases[0], [case.group for case in cases]
    made = fit.fit(cases, _prior(first))
    inside = fit.predict(cases, made)
    folds: Sequence[object] = groups if len(set(groups)) > 1 else _folds(cases)
    left = fit.predict_leaving_out(cases, folds, [_prior(case) for case in cases])
    outside = score(cases, [], left)
    made = replace(
        made,
        key="",
        kinds=(),
        chips=tuple(chips or found),
        engines=tuple(engines or dict.fromkeys(case.runtime.engine for case in cases)),
        architectures=tuple(architectures),
        fitted_on=", ".join(dict.fromkeys(case.table for case in cases)),
        date=date,
        rows=float(len(cases)),
        sources=(),
        # Rows of one machine do not tell how far another one with the same card is from it.
        spread=max(fit.NOISE, _spread(_errors_of(cases, left, "decode"), made.spread)),
        prefill_spread=max(fit.PREFILL_NOISE, _spread(_errors_of(cases, left, "prefill"), made.prefill_spread)),
    )
    before = score(cases, [], [fit.predict([case], _prior(case))[0] for case in cases])
    return ServeCalibrated(made, score(cases, [], inside), outside, before)


def serve_toml(made: ServeCalibrated) -> str:
    """The file, its errors in front; `calibrations.named_serve` reads it back."""
    head = f"# Written by 'meshwise calibrate'. {_errors('Left out', made.left_out)} {_errors('In sample', made.in_sample)}"
    return records.toml(made.serving, head, calibrations.SERVE_COEFFICIENTS[0])


def _errors(where: str, found: Score) -> str:
    words = [f"{part} {100 * found[part]['mape']:.1f}%" for part in ("decode", "prefill") if found[part]["mape"] is not None]
    return f"{where}: {', '.join(words)} mean error."


def _errors_of(cases: Sequence[ServeCase], speeds: Sequence[Speed], part: str) -> list[float]:
    """ln(measured / predicted) tokens/s of every row; NaN where it tells nothing."""
    found: list[float] = []
    for case, speed in zip(cases, speeds, strict=True):
        seen = case.decode if part == "decode" else np.nan if case.ill else case.prefill
        predicted = speed.decode_tokens_per_second if part == "decode" else speed.prefill_tokens_per_second
        found.append(float(np.log(seen / predicted)) if case.ran and seen > 0 and predicted > 0 else np.nan)
    return found


def _spread(errors: Sequence[float], prior: float) -> float:
    """Standard deviation of a normal distribution that would have 90% of its errors within those that 90% of the rows have."""
    sizes = np.abs([error for error in errors if np.isfinite(error)])
    return max(0.01, intervals.quantile(sizes, interval.LEVEL) / interval.NORMAL) if len(sizes) else prior


def _coverage(errors: Sequence[float], spreads: Sequence[float]) -> float | None:
    """The share of rows whose error is within their 90% interval."""
    inside = [abs(error) <= interval.NORMAL * spread for error, spread in zip(errors, spreads, strict=True) if np.isfinite(error)]
    return float(np.mean(inside)) if inside else None


def _left_out_spreads(cases: Sequence[ServeCase], errors: Sequence[float], groups: Sequence[object], prior: float) -> list[float]:
    """For every row the spread of the other groups of its kind of chip and engine."""
    from meshwise.calibrate.serve.fit import alike

    found: dict[object, float] = {}
    for i, group in enumerate(groups):
        if group not in found:
            others = [e for e, case, own in zip(errors, cases, groups, strict=True) if own != group and alike(case, cases[i])]
            found[group] = _spread(others or [e for e, own in zip(errors, groups, strict=True) if own != group], prior)
    return [found[group] for group in groups]
