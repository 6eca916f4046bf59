"""Tables of served models, predicted and scored; and a Serving made from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwise import measure, serving, written
from meshwise.cost.serve import Speed
from meshwise.errors import UserError
from meshwise.measure import Skipped
from meshwise.measure_serve import ServeCase, serve_cases
from meshwise.score import Score
from meshwise.score_serve import score
from meshwise.serving import Serving

FOLDS = 10
"""Fits of a leave-one-out by rows: every tenth row is left out together."""


@dataclass(frozen=True)
class ServeValidation:
    """One table with what was predicted for it and how well that did."""

    table: str
    cases: list[ServeCase]
    skipped: list[Skipped]
    predicted: list[Speed]
    score: Score

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
    from meshwise import calibrate_serve  # scipy: half a second

    path = measure.find_table(name)
    cases, skipped = serve_cases(path)
    if leave_out is None:
        fixed = serving.named(calibration) if calibration else None
        predicted = calibrate_serve.predict(cases, fixed)
        used = dict.fromkeys((fixed or serving.choose(case.chip, case.runtime.key)).key or "default prior" for case in cases)
        about = {"calibration": ", ".join(used)}
    else:
        groups: list[object] = [case.group if leave_out == "group" else i % FOLDS for i, case in enumerate(cases)]
        predicted = calibrate_serve.predict_leaving_out(cases, groups, [_prior(case) for case in cases])
        about = {"calibration": f"fitted to this table, leaving out one {leave_out} at a time", "left_out": leave_out}
    return ServeValidation(path.stem, cases, skipped, predicted, {"table": path.stem} | about | score(cases, skipped, predicted))


def _prior(case: ServeCase) -> Serving:
    """What is known of chips of its kind with its engine; where that was fitted to this very table, what was known before."""
    found = serving.prior(case.chip, case.runtime.key)
    return Serving() if case.table in found.fitted_on else found


@dataclass(frozen=True)
class ServeCalibrated:
    serving: Serving
    in_sample: Score
    left_out: Score


def calibrated_serve(
    tables: Sequence[str], *, chips: Sequence[str] = (), engines: Sequence[str] = (), architectures: Sequence[str] = (), date: str
) -> ServeCalibrated:
    """Fit to the rows of these tables that are of the named chips (or of the only one there is)."""
    from meshwise import calibrate_serve

    cases = [case for name in tables for case in serve_cases(measure.find_table(name))[0]]
    found = list(dict.fromkeys(case.chip.key for case in cases))
    if len(found) > 1 and not chips:
        raise UserError(f"the rows are of several chips ({', '.join(found)}); say with --chips which one to fit to")
    if chips:
        cases = [case for case in cases if case.chip.key in chips]
        if not cases:
            raise UserError(f"no row is of {', '.join(chips)}; there are {', '.join(found)}")
    first, groups = cases[0], [case.group for case in cases]
    made = calibrate_serve.fit(cases, _prior(first))
    inside = calibrate_serve.predict(cases, made)
    folds: Sequence[object] = groups if len(set(groups)) > 1 else [i % FOLDS for i in range(len(cases))]
    left = calibrate_serve.predict_leaving_out(cases, folds, [_prior(case) for case in cases])
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
        spread=_spread([(s.decode_tokens_per_second, c.decode) for c, s in zip(cases, left, strict=True)], made.spread),
        prefill_spread=_spread(
            [(s.prefill_tokens_per_second, c.prefill) for c, s in zip(cases, left, strict=True)], made.prefill_spread
        ),
    )
    return ServeCalibrated(made, score(cases, [], inside), outside)


def serve_toml(made: ServeCalibrated) -> str:
    """The file, its errors in front; `serving.named` reads it back."""
    head = f"# Written by 'meshwise calibrate'. {_errors('Left out', made.left_out)} {_errors('In sample', made.in_sample)}"
    return written.toml(made.serving, head, serving.FITTED[0])


def _errors(where: str, found: Score) -> str:
    words = [f"{part} {100 * found[part]['mape']:.1f}%" for part in ("decode", "prefill") if found[part]["mape"] is not None]
    return f"{where}: {', '.join(words)} mean error."


def _spread(pairs: Sequence[tuple[float, float]], prior: float) -> float:
    """Standard deviation of ln(predicted / measured) by its median: a run that hung says nothing of the others."""
    logs = [abs(np.log(predicted / seen)) for predicted, seen in pairs if seen > 0 and predicted > 0]
    return max(0.02, float(np.median(logs)) / 0.6745) if logs else prior
