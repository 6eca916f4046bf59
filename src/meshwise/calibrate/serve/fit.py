"""Fit a ServeCalibration: robust least squares of ln(predicted / measured) over the function that predicts, regularized by the prior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwise.calibrate.least_squares import minimize
from meshwise.calibrate.score import LeaveOut
from meshwise.catalogue.calibrations import ServeCalibration, coefficients, serve_prior
from meshwise.cost.layout import Floats
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.runs.serve.case import ServeCase, comparable
from meshwise.runs.serve.doubts import doubts
from meshwise.runs.serve.predict import Prediction, predict, predict_one

MAX_ROUNDS = 15
FOLDS = 10  # fits of a leave-one-out by rows: every tenth row is left out together
WIDTHS = {name: coefficient.width for name, coefficient in coefficients(ServeCalibration).items() if coefficient.width}
UPPER_BOUNDS = {name: coefficient.most for name, coefficient in coefficients(ServeCalibration).items()}
CARD_WIDTH_FACTOR = 0.6  # factor on WIDTHS for the difference between a card and others of its kind
NOISE_STD = 0.04  # standard deviation of ln(tokens/s) between two machines with the same card
UNPREDICTED_ERROR_STDS = 10.0  # error, in standard deviations, of a row that these coefficients cannot predict
TTFT_NOISE_STD = 0.6  # standard deviation of ln(time to first token) at a load: it depends on when requests arrive
LOAD_NOISE_STD = 0.12  # standard deviation of the time per token at a load, where the formula errs too
FLOORS = {"prompt_launch": 3.0}  # factor on the start of a second fit: these act only where something else is faster
PREFILL_NOISE_STD = 0.12  # standard deviation of ln(tokens/s) of prompts, larger because power caps and clocks matter more


def fit(cases: Sequence[ServeCase], prior: ServeCalibration, wide: float = 1.0) -> ServeCalibration:
    """Return the coefficients that predict these rows best, without those that cannot be; `wide` scales the prior widths."""
    sure = (case for case, doubt in zip(cases, doubts(cases), strict=True) if case.ran and not doubt)
    timed = [case for case in sure if case.decode > 0 or case.prefill > 0 or case.tpot > 0]
    if not timed:
        return prior
    names = [name for name in WIDTHS if getattr(prior, name)]  # what is zero stays zero: its logarithm has no neighbourhood
    start = np.log([getattr(prior, name) for name in names])
    width = wide * np.array([WIDTHS[name] for name in names])
    most = np.array([math.log(UPPER_BOUNDS[name]) for name in names])

    def residuals(logs: Floats) -> Floats:
        errors = row_errors(timed, _with(prior, names, logs))
        return np.concatenate([softened(errors), (logs - start) / width])

    floors = np.array([math.log(FLOORS.get(name, 1.0)) for name in names])
    tries = [
        minimize(residuals, start + more, np.full(len(names), -np.inf), most, width, MAX_ROUNDS)
        for more in (0.0 * floors, floors)[: 2 if floors.any() and any(case.load for case in timed) else 1]
    ]
    return _with(prior, names, min(tries, key=lambda one: one[1])[0])


def _with(prior: ServeCalibration, names: Sequence[str], logs: Floats) -> ServeCalibration:
    values: Mapping[str, Any] = dict(zip(names, map(float, np.exp(logs)), strict=True))
    return replace(prior, **values)


def softened(errors: Floats) -> Floats:
    """Make residuals beyond two standard deviations count linearly, not squared, so that a run that hung does not distort the fit."""
    size = np.abs(errors) / 2
    return np.sign(errors) * 2 * np.where(size <= 1, size, np.sqrt(2 * np.maximum(size, 1) - 1))


def row_errors(cases: Sequence[ServeCase], calibration: ServeCalibration) -> Floats:
    """Return ln(predicted / measured) in standard deviations: of time per token and time to first token where they are stated, otherwise
    of decode; and of prompts."""
    errors: list[float] = []
    for case in cases:
        found = predict_one(case, PassCost(case.demand, lambda _: calibration))
        if case.tpot > 0 and (case.ttft > 0 or math.isnan(case.decode)):
            errors.append(_error(found.tpot, case.tpot, LOAD_NOISE_STD if case.load else NOISE_STD))
            if case.ttft > 0:
                errors.append(_error(found.ttft, case.ttft, TTFT_NOISE_STD if case.load else PREFILL_NOISE_STD))
        elif case.decode > 0:
            errors.append(_error(found.decode, case.decode, NOISE_STD))
        if case.prefill > 0 and not case.slow_prompt and case.work.prompt:
            errors.append(math.log(found.prefill / case.prefill) / PREFILL_NOISE_STD)
    return np.array(errors)


def _error(predicted: float, measured: float, noise: float) -> float:
    return math.log(predicted / measured) / noise if predicted > 0 else UNPREDICTED_ERROR_STDS


def predict_leaving_out(
    cases: Sequence[ServeCase], groups: Sequence[object], priors: Sequence[ServeCalibration]
) -> list[Prediction]:
    """Predict every row by fits without its group: first a fit over all cards of its kind, then, from there, one over its own card."""
    predicted: list[Prediction | None] = [None] * len(cases)
    for group in dict.fromkeys(groups):
        inside = [i for i, row_group in enumerate(groups) if row_group == group]
        rest = [case for case, row_group in zip(cases, groups, strict=True) if row_group != group]
        for chip in dict.fromkeys(cases[i].chip.key for i in inside):
            rows = [i for i in inside if cases[i].chip.key == chip]
            first = cases[rows[0]]
            common = fit([case for case in rest if comparable(case, first)], priors[rows[0]])
            card = fit([case for case in rest if case.chip.key == chip and comparable(case, first)], common, CARD_WIDTH_FACTOR)
            for i, speed in zip(rows, predict([cases[i] for i in rows], card), strict=True):
                predicted[i] = speed
    return [speed for speed in predicted if speed is not None]


def prior_for(case: ServeCase) -> ServeCalibration:
    """Return the calibration of chips of this kind with this engine; the default where that one was fitted to the case's own table."""
    prior = serve_prior(case.chip, case.runtime.key, case.backend)
    return ServeCalibration() if case.table in prior.fitted_on else prior


def groups_to_leave_out(cases: Sequence[ServeCase], leave_out: LeaveOut) -> list[object]:
    """Return the group of each row: chip and number of devices, or one of FOLDS folds of rows. Rows that state the same prompt are in one
    fold: a prompt that was timed once and is repeated in rows with different numbers of concurrent requests would otherwise be left out
    of a fit that includes it."""
    if leave_out == "group":
        return [case.group for case in cases]
    keys = [case.row_id if math.isnan(case.prefill) else (case.model.name, case.work.prompt, case.prefill) for case in cases]
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] % FOLDS for key in keys]
