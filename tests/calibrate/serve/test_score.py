"""Scores of served models, worked out by hand."""

from math import nan

import pytest

from meshwise.calibrate.serve.score import score
from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.runs.serve.predict import Prediction, predict
from support.serve_tables import built_in


def test_the_prior_predicts_cards_it_was_not_fitted_to() -> None:
    """Round numbers of the code, before any fit: mean error on every graphics card of the table."""
    cases = [case for case in built_in("xiongjiedai_llama3_bench")[0] if case.chip.kind == "gpu"]
    assert score(cases, [], predict(cases, ServeCalibration()))["decode"]["mape"] < 0.12


def test_errors_are_shares_of_the_measured_rate() -> None:
    cases = [case for case in built_in("xiongjiedai_llama3_bench")[0] if case.decode > 0 and case.ran][:4]

    def seen(factor: float) -> list[Prediction]:
        return [Prediction(case.decode * factor, nan) for case in cases]

    assert score(cases, [], seen(1.0))["decode"] == {
        "mape": pytest.approx(0),
        "bias": pytest.approx(0),
        "p95": pytest.approx(0),
        "spearman": pytest.approx(1),
        "rows": 4,
    }
    assert score(cases, [], seen(1.1))["decode"]["bias"] == pytest.approx(0.1)
    assert score(cases, [], seen(0.8))["decode"]["mape"] == pytest.approx(0.2)
    assert score(cases, [], seen(0.8))["prefill"]["mape"] is None
