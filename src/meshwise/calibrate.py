"""Fit a Calibration to measurements: least squares over the same function that predicts, held near the prior.

The residual is ln(predicted / measured), so a factor of two counts the same either way; each coefficient is a factor on its prior and
is pulled back to it by how far such coefficients vary between machines. A table that says little about one leaves it where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from meshwise.calibration import Calibration
from meshwise.layout import Floats
from meshwise.measure import Case
from meshwise.score import predict

WIDTHS = {
    "matmul": 0.10,
    "memory": 0.20,
    "link": 0.5,
    "link_latency": 1.5,
    "network": 0.7,
    "exposed_stage": 1.0,
    "hidden_dp": 1.0,
    "exposed_tp": 0.3,
    "layer_launch": 0.8,
    "layer_gap": 1.5,
    "stage_launch": 1.5,
    "step": 1.5,
    "flash": 0.3,
}
"""Standard deviation of ln(coefficient) between machines and frameworks: what the prior is worth."""
MEMORY_WIDTHS = {"context": 0.5, "activations": 0.3}
NOISE = 0.04
"""Standard deviation of ln(seconds) between two runs of the same thing."""
LARGEST_SHARE = 1.0
"""Fractions of a datasheet rate stay below it."""
FRACTIONS = ("matmul", "memory", "link", "network", "exposed_tp", "exposed_stage", "hidden_dp", "flash")


def fit(cases: Sequence[Case], prior: Calibration, start: Calibration | None = None) -> Calibration:
    """Times first, then memory: the two share no coefficient. `start` is where to look first, such as the fit of nearly the same rows."""
    timed = [case for case in cases if case.ran and np.isfinite(case.seconds)]
    weighed = [case for case in cases if case.ran and np.isfinite(case.memory)]
    found = prior
    if timed:
        seconds = np.array([case.seconds for case in timed])
        found = _fit(found, start or found, WIDTHS, lambda c: np.log(predict(timed, c).seconds / seconds))
    if weighed:
        size = np.array([case.memory for case in weighed])
        found = _fit(
            found,
            replace(found, **{n: getattr(start or found, n) for n in MEMORY_WIDTHS}),
            MEMORY_WIDTHS,
            lambda c: np.log(predict(weighed, c).memory / size),
        )
    return found


def _fit(
    prior: Calibration, start: Calibration, widths: dict[str, float], residuals: Callable[[Calibration], Floats]
) -> Calibration:
    names = list(widths)
    centre = np.log([getattr(prior, name) for name in names])
    guess = np.log([getattr(start, name) for name in names])
    width = np.array(list(widths.values()))
    most = np.array([np.log(LARGEST_SHARE) if name in FRACTIONS else np.inf for name in names])

    def calibration(logs: Floats) -> Calibration:
        return replace(prior, **dict(zip(names, map(float, np.exp(logs)), strict=True)))

    def objective(logs: Floats) -> Floats:
        return np.concatenate([residuals(calibration(logs)) / NOISE, (logs - centre) / width])

    # Soft L1: a run that hung for a minute must not bend the rest.
    solved = least_squares(
        objective,
        np.minimum(guess, most - 1e-6),
        bounds=(-np.inf, most),
        loss="soft_l1",
        f_scale=2.0,
        x_scale=width,
        ftol=1e-4,
        xtol=1e-4,
    )
    return calibration(solved.x)


def left_out(cases: Sequence[Case], prior: Calibration, groups: Sequence[object]) -> tuple[Floats, Floats]:
    """Seconds and bytes of every case, predicted by a fit that has not seen its group."""
    seconds, memory = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    everything = fit(cases, prior)
    for group in dict.fromkeys(groups):
        inside = [i for i, g in enumerate(groups) if g == group]
        fitted = fit([case for case, g in zip(cases, groups, strict=True) if g != group], prior, everything)
        predicted = predict([cases[i] for i in inside], fitted)
        seconds[inside], memory[inside] = predicted.seconds, predicted.memory
    return seconds, memory
