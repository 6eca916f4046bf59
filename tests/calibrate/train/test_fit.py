"""Fits: known coefficients are recovered, a left-out group has no influence, and a written calibration is read back."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwise.calibrate.train.fit import fit, fit_leaving_out, prior_for, problems
from meshwise.calibrate.train.make import TrainCalibrationResult, make
from meshwise.calibrate.train.score import near_best
from meshwise.catalogue import records
from meshwise.catalogue.calibrations import COEFFICIENTS, Calibration, coefficients
from meshwise.catalogue.levels import Levels
from meshwise.errors import UserError
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import predict
from support.measured_rows import built_in, read

TRUTH = replace(Calibration(), matmul=0.66, memory=0.6, link=0.5, layer_gap=5e-4, context=4e9, activations=1.2)


def seen(cases: list[Case], calibration: Calibration) -> list[Case]:
    """Return the rows with the seconds of a machine that the calibration describes exactly."""
    values = predict(cases, calibration)
    pairs = zip(cases, values.seconds.tolist(), values.memory.tolist(), strict=True)
    return [replace(case, seconds=seconds, memory=memory, ran=True) for case, seconds, memory in pairs]


@pytest.fixture(scope="module")
def bloom() -> list[Case]:
    """The runs of 25 February: one shape, so quick to evaluate."""
    return [case for case in built_in("bloom_prequel")[0] if case.date == "2022-02-25"]


def test_coefficients_of_an_exactly_modelled_machine_are_recovered(bloom: list[Case]) -> None:
    cases = seen(bloom, TRUTH)
    found = predict(cases, fit(cases, Calibration()))
    np.testing.assert_allclose(found.seconds, [case.seconds for case in cases], rtol=0.01)
    np.testing.assert_allclose(found.memory, [case.memory for case in cases], rtol=0.01)


def test_a_fit_is_closer_than_its_prior_and_keeps_shares_below_one(bloom: list[Case]) -> None:
    prior = Calibration()
    fitted = fit(bloom, prior)
    timed = [case for case in bloom if case.timed]

    def error(calibration: Calibration) -> float:
        return float(np.mean(np.abs(predict(timed, calibration).seconds / [case.seconds for case in timed] - 1)))

    assert error(fitted) < 0.6 * error(prior)
    assert all(0 < getattr(fitted, name) <= one.most for name, one in coefficients(Calibration).items())


def test_coefficients_that_a_table_does_not_determine_stay_at_the_prior(bloom: list[Case]) -> None:
    """No BLOOM row uses flash attention, and a table without memory leaves the memory coefficients alone."""
    fitted = fit([replace(case, memory=float("nan")) for case in bloom], Calibration())
    assert fitted.flash == pytest.approx(Calibration().flash, rel=1e-3)
    assert (fitted.context, fitted.activations) == (Calibration().context, Calibration().activations)


def test_a_run_that_hung_does_not_distort_the_fit(bloom: list[Case]) -> None:
    """Twice the best of its group or more is no measurement of a layout, and is not fitted."""
    cases = seen(bloom, TRUTH)
    hung = [*cases[:-1], replace(cases[-1], seconds=10 * cases[-1].seconds)]
    assert predict(cases, fit(hung, Calibration())).seconds == pytest.approx(
        predict(cases, fit(cases[:-1], Calibration())).seconds, rel=1e-3
    )


def test_the_prediction_of_a_left_out_row_does_not_depend_on_its_time(bloom: list[Case]) -> None:
    timed = [case for case in bloom if case.timed]
    rows = [case.row_id for case in timed]
    slower = [replace(timed[0], seconds=1.3 * timed[0].seconds), *timed[1:]]
    before, after = (fit_leaving_out(cases, Calibration(), rows).left_out.seconds[0] for cases in (timed, slower))
    assert after == pytest.approx(before, rel=0.005)


def test_leaving_rows_out_equals_a_new_fit_to_the_others(bloom: list[Case]) -> None:
    """A few steps from the fit of all rows reach the same coefficients as a fit from the prior."""
    groups = [case.layout["tp"] for case in bloom]
    quick = fit_leaving_out(bloom, Calibration(), groups).left_out
    for group in set(groups):
        inside = [i for i, other in enumerate(groups) if other == group]
        fresh = predict(
            [bloom[i] for i in inside],
            fit([case for case, other in zip(bloom, groups, strict=True) if other != group], Calibration()),
        )
        np.testing.assert_allclose(quick.seconds[inside], fresh.seconds, rtol=0.03)
        np.testing.assert_allclose(quick.memory[inside], fresh.memory, rtol=0.005)


def test_the_fit_of_all_rows_is_the_same_with_and_without_leaving_out(bloom: list[Case]) -> None:
    fitted = fit_leaving_out(bloom, Calibration(), [case.row_id for case in bloom])
    assert fitted.calibration == fit(bloom, Calibration())
    np.testing.assert_allclose(fitted.inside.seconds, predict(bloom, fitted.calibration).seconds)


def test_a_single_group_cannot_be_left_out(bloom: list[Case]) -> None:
    with pytest.raises(UserError, match="all rows are in one group"):
        fit_leaving_out(bloom, Calibration(), ["same"] * len(bloom))


def test_a_table_has_the_weight_of_at_most_200_rows() -> None:
    cases = built_in("vtrain_a100_single_node")[0]
    (posed,) = problems(cases, Calibration())
    assert np.sum(posed.problem.weight**2) == pytest.approx(200)
    assert posed.kind == "seconds"


def test_a_fit_starts_from_kernels_of_the_architecture_and_never_from_training_runs() -> None:
    for table in ("nanotron_h100_small", "bloom_prequel", "maxtext_tpu"):
        prior = prior_for(built_in(table)[0][0])
        assert not prior.frameworks
        assert not prior.chips


def test_a_fit_to_a_shipped_table_does_not_start_from_levels_that_were_fitted_to_it(
    bloom: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would count twice; any other table starts from what is known of chip, framework and network."""
    case = bloom[0]
    known = Levels(framework={case.work.framework.key: {"exposed_tp": 0.123}}, fitted_on="bloom_prequel, nanotron_h100_small")
    monkeypatch.setattr("meshwise.calibrate.train.fit.levels", lambda: known)
    assert prior_for(case).exposed_tp == Calibration().exposed_tp
    assert prior_for(replace(case, table="mine")).exposed_tp == 0.123


def test_a_fit_moves_only_coefficients_with_a_width() -> None:
    fitted = {name for name, one in coefficients(Calibration).items() if one.width}
    assert {"matmul", "link", "layer_launch", "context"} <= fitted
    assert not {"tile", "depth", "devices", "memory_spread"} & fitted
    assert all(one.most >= getattr(Calibration(), name) for name, one in coefficients(Calibration).items())


@pytest.fixture(scope="module")
def made() -> TrainCalibrationResult:
    return make(["korthikanti2022_iteration"], date="2026-01-02", architectures=["Ampere"])


def test_a_written_calibration_is_read_back_to_four_digits(made: TrainCalibrationResult) -> None:
    again = records.read(Calibration, tomllib.loads(made.text), "x.toml")
    for name in COEFFICIENTS:
        assert getattr(again, name) == pytest.approx(getattr(made.calibration, name), rel=1e-3)
    assert again.chips == ("a100-80gb-sxm",)
    assert again.frameworks == ("megatron",)
    assert again.architectures == ("Ampere",)
    assert (again.fitted_on, again.date, again.rows) == ("korthikanti2022_iteration", "2026-01-02", 10)


def test_a_calibration_states_its_errors_on_left_out_rows(made: TrainCalibrationResult) -> None:
    (low,), (high,) = made.calibration.low, made.calibration.high  # ten rows are too few to tell ranges apart
    assert 0 < low == high < 0.2
    assert made.calibration.devices == 2240  # of the largest run in the table
    assert made.calibration.memory_spread == Calibration().memory_spread  # no memory in that table
    assert "Left out: time " in made.text.splitlines()[0]
    assert made.left_out["time"]["mape"] > made.in_sample["time"]["mape"]


def test_rows_of_several_chips_are_refused(tmp_path: Path) -> None:
    read(tmp_path, {}, {"gpu": "H100-80GB"})
    with pytest.raises(UserError, match=r"several chips \(a100-80gb-sxm, h100-sxm\)"):
        make([str(tmp_path / "runs.csv")], date="")


@pytest.mark.slow
def test_a_group_that_matters_moves_the_fit_when_it_is_left_out() -> None:
    """With shares at their bound of 1, where a careless step would stand still and call the fit of all rows the fit of the others."""
    cases = built_in("nanotron_h100_small")[0]
    prior, groups = prior_for(cases[0]), [case.setting for case in cases]
    group = next(case.setting for case in cases if case.model.decoder.hidden == 4096 and case.cluster.devices == 64)
    fitted = fit_leaving_out(cases, prior, groups)
    inside = [i for i in near_best(cases) if groups[i] == group]
    fresh = predict([cases[i] for i in inside], fit([case for case in cases if case.setting != group], prior)).seconds
    quick, all_rows = fitted.left_out.seconds[inside], fitted.inside.seconds[inside]
    assert np.mean(np.abs(np.log(quick / fresh))) < 0.4 * np.mean(np.abs(np.log(all_rows / fresh)))


# Chips whose prior has no CPU launches.


@pytest.mark.slow
def test_a_calibration_of_tpus_needs_no_launch_times() -> None:
    """A compiled program launches nothing layer by layer: launch times of 0 have no logarithm, and are not fitted."""
    cases = [case for case in built_in("maxtext_tpu")[0] if case.chip.key == "tpu-v5e"]
    prior = prior_for(cases[0])
    assert 0 in (prior.layer_launch, prior.layer_gap, prior.stage_launch)
    fitted = fit_leaving_out(cases, prior, [case.row_id for case in cases])
    assert np.isfinite(fitted.left_out.seconds).all()
    for name in COEFFICIENTS:
        assert getattr(prior, name) > 0 or getattr(fitted.calibration, name) == 0


@pytest.mark.slow
def test_calibrate_on_the_tpu_table_is_a_calibration_or_one_line(tmp_path: Path) -> None:
    """The table has several chips; rows of one of them are a calibration with its errors."""
    with pytest.raises(UserError, match="the rows are of several chips"):
        make(["maxtext_tpu"], date="")
    header, *lines = find_table("maxtext_tpu").read_text().splitlines()
    path = tmp_path / "v5e.csv"
    path.write_text("\n".join([header, *(line for line in lines if "v5e" in line.lower())]))
    found = make([str(path)], date="2026-01-02")
    assert found.calibration.chips == ("tpu-v5e",)
    assert 0 < found.left_out["time"]["mape"] < 1
