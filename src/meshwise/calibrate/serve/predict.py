"""Predictions for measured served models."""

from collections.abc import Sequence

from meshwise.calibrate.serve.cases import ServeCase
from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.cost.serve.speed import Speed, evaluate


def predict(cases: Sequence[ServeCase], calibration: ServeCalibration | None = None) -> list[Speed]:
    """Predict cases with one calibration, or each with the one that the catalogue has for its chip and engine build."""
    return [
        evaluate(case.demand, case.work, lambda chip, case=case: calibration or choose_serve(chip, case.runtime.key))
        for case in cases
    ]
