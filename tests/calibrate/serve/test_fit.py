"""The fit of a served model's coefficients: known ones are found, undetermined ones keep their prior, outliers hardly move it."""

from dataclasses import replace
from math import nan

import pytest

from meshwise.calibrate.serve.fit import fit, predict_leaving_out
from meshwise.catalogue.calibrations import ServeCalibration, serve_prior
from meshwise.runs.serve.case import ServeCase
from meshwise.runs.serve.predict import predict
from support.serve_tables import built_in

TRUTH = ServeCalibration(stream=0.85, layer=6e-5, hop=4e-4, product=0.4, narrow=0.9)


@pytest.fixture(scope="module")
def cards() -> list[ServeCase]:
    """Return the runs on RTX 3090 with the speeds of a machine with these coefficients."""
    found = [case for case in built_in("xiongjiedai_llama3_bench")[0] if case.chip.key == "rtx3090" and case.ran]
    speeds = predict(found, TRUTH)
    return [
        replace(
            case,
            decode=speed.decode if case.decode > 0 else nan,
            prefill=speed.prefill if case.prefill > 0 else nan,
        )
        for case, speed in zip(found, speeds, strict=True)
    ]


def errors(cases: list[ServeCase], calibration: ServeCalibration) -> list[float]:
    return [
        abs(speed.decode / case.decode - 1)
        for case, speed in zip(cases, predict(cases, calibration), strict=True)
        if case.decode > 0
    ]


def test_coefficients_of_a_synthetic_machine_are_recovered(cards: list[ServeCase]) -> None:
    found = fit(cards, ServeCalibration())
    assert max(errors(cards, found)) < 0.02 < max(errors(cards, ServeCalibration()))
    assert found.hop == pytest.approx(TRUTH.hop, rel=0.15)


def test_a_coefficient_that_no_row_determines_stays_at_its_prior(cards: list[ServeCase]) -> None:
    alone = fit([case for case in cards if len(case.rig.chips) == 1], ServeCalibration())
    assert (alone.hop, alone.row) == pytest.approx((ServeCalibration().hop, ServeCalibration().row), rel=1e-3)
    assert fit([], ServeCalibration()) == ServeCalibration()


def test_a_run_that_hung_hardly_distorts_the_fit(cards: list[ServeCase]) -> None:
    hung = [replace(cards[0], decode=cards[0].decode / 20), *cards[1:]]
    assert max(errors(cards, fit(hung, ServeCalibration()))) < 0.06


@pytest.mark.slow
def test_left_out_rows_are_predicted_by_a_fit_to_the_others(cards: list[ServeCase]) -> None:
    left = predict_leaving_out(cards, [case.group for case in cards], [ServeCalibration()] * len(cards))
    assert len(left) == len(cards)
    wrong = [abs(s.decode / c.decode - 1) for c, s in zip(cards, left, strict=True) if c.decode > 0]
    assert sum(wrong) / len(wrong) < 0.03
    nothing = predict_leaving_out(cards, [0] * len(cards), [ServeCalibration()] * len(cards))
    assert nothing == predict(cards, ServeCalibration())


def test_a_fit_to_the_3b_predicts_the_8b() -> None:
    """The shipped calibration is fitted to the 8B; this one to the 3B."""
    small, large = (built_in(f"h200_transformers_{size}b")[0] for size in (3, 8))
    made = fit(small, serve_prior(small[0].chip, "transformers"))
    speeds = predict(large, made)
    assert max(abs(s.decode / c.decode - 1) for c, s in zip(large, speeds, strict=True)) < 0.1
    assert max(abs(s.prefill / c.prefill - 1) for c, s in zip(large, speeds, strict=True)) < 0.15
