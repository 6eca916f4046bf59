"""Predictions for measured served models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.cost.serve.load.estimate import drained, estimate
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.runs.serve.case import ServeCase


@dataclass(frozen=True)
class Prediction:
    """Tokens per second and seconds as the row of a case states them; NaN where they do not apply."""

    decode: float  # output tokens per second of all requests: of decode steps, or with prompts counted where the case has a load
    prefill: float
    ttft: float = math.nan
    tpot: float = math.nan


def predict(cases: Sequence[ServeCase], calibration: ServeCalibration | None = None) -> list[Prediction]:
    """Predict cases with one calibration, or each with the one that the catalogue has for its chip and engine build."""
    return [
        predict_one(
            case, PassCost(case.demand, lambda chip, case=case: calibration or choose_serve(chip, case.runtime.key, case.backend))
        )
        for case in cases
    ]


def on_host(case: ServeCase, calibration: ServeCalibration) -> float:
    """Return the share of a decode step in which layers in host memory are computed."""
    if case.demand.host.idle:
        return 0.0
    parts = PassCost(case.demand, lambda chip: calibration).decode(case.work)
    return parts["host"] / sum(parts.values())


def predict_one(case: ServeCase, cost: PassCost) -> Prediction:
    """Predict one case with these costs of passes."""
    work = case.work
    prompt = sum(cost.prefill(work).values())
    prefill = work.prompt / prompt if work.prompt else math.nan
    if case.load is None:
        step = sum(cost.decode(work).values())
        return Prediction(work.users / step, prefill, prompt + cost.request if work.prompt else math.nan, step)
    if case.most:
        return Prediction(drained(cost, case.load, case.limits), prefill)
    found = estimate(cost, case.load, case.limits, detailed=False)
    if found is None:
        return Prediction(math.nan, prefill)
    return Prediction(found.output_rate, prefill, found.ttft.mean, found.tpot.mean)
