"""Prediction intervals of served models, from the errors of rows left out of a fit."""

from collections.abc import Sequence

import numpy as np

from meshwise.calibrate.score import mean, quantile
from meshwise.cost.interval import COVERAGE, COVERAGE_STDS
from meshwise.runs.serve.case import ServeCase, comparable
from meshwise.runs.serve.predict import Prediction

MIN_SPREAD = 0.01  # smallest spread


def errors(cases: Sequence[ServeCase], speeds: Sequence[Prediction], part: str) -> list[float]:
    """Return ln(measured / predicted) tokens/s of every row; NaN where there is no usable measurement."""
    logs: list[float] = []
    for case, speed in zip(cases, speeds, strict=True):
        measured = case.decode if part == "decode" else np.nan if case.slow_prompt else case.prefill
        predicted = speed.decode if part == "decode" else speed.prefill
        logs.append(float(np.log(measured / predicted)) if case.ran and measured > 0 and predicted > 0 else np.nan)
    return logs


def spread(errors: Sequence[float], prior: float) -> float:
    """Return the standard deviation of the normal distribution whose 90% quantile of absolute errors is that of the rows."""
    sizes = np.abs([error for error in errors if np.isfinite(error)])
    return max(MIN_SPREAD, quantile(sizes, COVERAGE) / COVERAGE_STDS) if len(sizes) else prior


def left_out(cases: Sequence[ServeCase], errors: Sequence[float], groups: Sequence[object], prior: float) -> list[float]:
    """Return the spread for every row, from the other groups of its kind of chip and engine."""
    spreads: dict[object, float] = {}
    for i, group in enumerate(groups):
        if group not in spreads:
            others = [k for k, row_group in enumerate(groups) if row_group != group]
            similar = [k for k in others if comparable(cases[k], cases[i])]
            spreads[group] = spread([errors[k] for k in similar or others], prior)
    return [spreads[group] for group in groups]


def coverage(errors: Sequence[float], spreads: Sequence[float]) -> float | None:
    """Return the share of rows whose error is within their 90% interval."""
    return mean(
        [abs(error) <= COVERAGE_STDS * spread for error, spread in zip(errors, spreads, strict=True) if np.isfinite(error)]
    )
