"""Fit a Serving to measurements: robust least squares of ln(predicted / measured) over the function that predicts, held near the prior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from scipy.optimize import least_squares  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from meshwise.calibrate.serve.cases import ServeCase
from meshwise.catalogue.calibrations import ServeCalibration, choose_serve, coefficients
from meshwise.cost.layout import Floats
from meshwise.cost.serve.speed import Speed, decode_parts, evaluate, prefill_parts

WIDTHS = {name: one.width for name, one in coefficients(ServeCalibration).items() if one.width}
MOST = {name: one.most for name, one in coefficients(ServeCalibration).items()}
OWN = 0.6
"""How far a card may differ from others of its kind, in WIDTHS."""
NOISE = 0.04
"""Standard deviation of ln(tokens/s) between two machines with the same card."""
PREFILL_NOISE = 0.12
"""The same of prompts, where power caps and clocks matter."""


def fit(cases: Sequence[ServeCase], prior: ServeCalibration, wide: float = 1.0) -> ServeCalibration:
    """The coefficients that predict these rows best; `wide` is how far they may go from the prior, in WIDTHS."""
    timed = [case for case in cases if case.ran and not (math.isnan(case.decode) and math.isnan(case.prefill))]
    if not timed:
        return prior
    start = np.log([getattr(prior, name) for name in WIDTHS])
    width = wide * np.array(list(WIDTHS.values()))
    most = np.array([math.log(MOST[name]) for name in WIDTHS])

    def residuals(logs: Floats) -> Floats:
        errors = _errors(timed, _with(prior, logs))
        return np.concatenate([_softened(errors), (logs - start) / width])

    # scipy has no types: what it returns is known by its documentation alone.
    solved = cast(
        Any,
        least_squares(
            residuals,
            np.minimum(start, most - 1e-3),
            bounds=(-np.inf, most),
            x_scale=width,
            diff_step=1e-3,
            max_nfev=15,
        ),
    )
    return _with(prior, cast(Floats, solved.x))


def _with(prior: ServeCalibration, logs: Floats) -> ServeCalibration:
    values: Mapping[str, Any] = dict(zip(WIDTHS, map(float, np.exp(logs)), strict=True))
    return replace(prior, **values)


def _softened(errors: Floats) -> Floats:
    """Beyond two standard deviations a residual counts by its size, not its square: a run that hung must not bend the rest."""
    size = np.abs(errors) / 2
    return np.sign(errors) * 2 * np.where(size <= 1, size, np.sqrt(2 * np.maximum(size, 1) - 1))


def _errors(cases: Sequence[ServeCase], serving: ServeCalibration) -> Floats:
    """ln(predicted / measured) in standard deviations, of decode and of prompts."""
    found: list[float] = []
    for case in cases:
        asked = case.demand
        if not math.isnan(case.decode):
            seconds = sum(decode_parts(asked, lambda _: serving).values())
            found.append(math.log(asked.users / seconds / case.decode) / NOISE)
        if not math.isnan(case.prefill) and not case.ill:
            seconds = sum(prefill_parts(asked, lambda _: serving).values())
            found.append(math.log(asked.prompt / seconds / case.prefill) / PREFILL_NOISE)
    return np.array(found)


def predict(cases: Sequence[ServeCase], serving: ServeCalibration | None = None) -> list[Speed]:
    """By these coefficients, or by those that the catalogue has for each row's chip and build."""
    return [evaluate(case.demand, lambda chip, case=case: serving or choose_serve(chip, case.runtime.key)) for case in cases]


def predict_leaving_out(cases: Sequence[ServeCase], groups: Sequence[object], priors: Sequence[ServeCalibration]) -> list[Speed]:
    """What is predicted for every row by fits that did not see its group.

    First one fit over all cards of its kind, which stands for what a card has in common with others; then one over its own rows.
    """
    found: list[Speed | None] = [None] * len(cases)
    for group in dict.fromkeys(groups):
        inside = [i for i, own in enumerate(groups) if own == group]
        rest = [case for case, own in zip(cases, groups, strict=True) if own != group]
        for chip in dict.fromkeys(cases[i].chip.key for i in inside):
            rows = [i for i in inside if cases[i].chip.key == chip]
            first = cases[rows[0]]
            common = fit([case for case in rest if alike(case, first)], priors[rows[0]])
            own = fit([case for case in rest if case.chip.key == chip and alike(case, first)], common, OWN)
            for i, speed in zip(rows, predict([cases[i] for i in rows], own), strict=True):
                found[i] = speed
    return [speed for speed in found if speed is not None]


def alike(one: ServeCase, other: ServeCase) -> bool:
    """Whether two rows have coefficients in common: the same kind of chip and the same engine."""
    return one.chip.kind == other.chip.kind and one.runtime.engine == other.runtime.engine
