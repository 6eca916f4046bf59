"""Prediction intervals of served models, from the errors of rows left out of a fit."""

from collections.abc import Sequence

import numpy as np

from meshwise.calibrate.score import mean, quantile
from meshwise.calibrate.serve.cases import ServeCase, comparable
from meshwise.cost.interval import LEVEL, NORMAL
from meshwise.cost.serve.speed import Speed

LEAST = 0.01
"""Smallest spread."""


def errors(cases: Sequence[ServeCase], speeds: Sequence[Speed], part: str) -> list[float]:
    """Return ln(measured / predicted) tokens/s of every row; NaN where there is no usable measurement."""
    found: list[float] = []
    for case, speed in zip(cases, speeds, strict=True):
        measured = case.decode if part == "decode" else np.nan if case.slow_prompt else case.prefill
        predicted = speed.decode_tokens_per_second if part == "decode" else speed.prefill_tokens_per_second
        found.append(float(np.log(measured / predicted)) if case.ran and measured > 0 and predicted > 0 else np.nan)
    return found


def spread(errors: Sequence[float], prior: float) -> float:
    """Return the standard deviation of the normal distribution whose 90% quantile of absolute errors is that of the rows."""
    sizes = np.abs([error for error in errors if np.isfinite(error)])
    return max(LEAST, quantile(sizes, LEVEL) / NORMAL) if len(sizes) else prior


def left_out(cases: Sequence[ServeCase], errors: Sequence[float], groups: Sequence[object], prior: float) -> list[float]:
    """Return the spread for every row, from the other groups of its kind of chip and engine."""
    found: dict[object, float] = {}
    for i, group in enumerate(groups):
        if group not in found:
            others = [
                e for e, case, own in zip(errors, cases, groups, strict=True) if own != group and comparable(case, cases[i])
            ]
            found[group] = spread(others or [e for e, own in zip(errors, groups, strict=True) if own != group], prior)
    return [found[group] for group in groups]


def coverage(errors: Sequence[float], spreads: Sequence[float]) -> float | None:
    """Return the share of rows whose error is within their 90% interval."""
    return mean([abs(error) <= NORMAL * own for error, own in zip(errors, spreads, strict=True) if np.isfinite(error)])
