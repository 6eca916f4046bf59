"""Joint fits: levels that several sources share are recovered, and a source that is left out has no influence."""

from dataclasses import replace

import numpy as np
import pytest

from joint import JointFit, predict_with
from meshwise.calibrate.train.fit import Point, Problem
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.levels import Levels
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch
from sources import sampled
from support.measured_rows import built_in

TRUTH = Levels(
    chip={"Ampere": {"matmul": 0.65}},
    framework={"megatron": {"step": 0.3}, "megatron-deepspeed": {"step": 0.05}},
    fabric={"infiniband": {"network": 0.8}},
)


def seen(cases: list[Case], known: Levels) -> list[Case]:
    """Return the rows with the seconds of machines that the levels describe exactly."""
    seconds = predict_with(known, Batch.of(cases)).seconds.tolist()
    return [replace(case, seconds=one) for case, one in zip(cases, seconds, strict=True)]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Rows of two tables on A100: four models of Megatron-LM, one of Megatron-DeepSpeed."""
    bloom = [case for case in built_in("bloom_prequel")[0] if case.timed and case.date == "2022-02-25"]
    return seen([*built_in("korthikanti2022_iteration")[0], *bloom[:6]], TRUTH)


@pytest.fixture(scope="module")
def solved(cases: list[Case]) -> tuple[JointFit, Problem, Point]:
    fit = JointFit(cases, "speed")
    return fit, *fit.solve()


def test_levels_that_describe_all_rows_exactly_are_found(cases: list[Case], solved: tuple[JointFit, Problem, Point]) -> None:
    """The offset of a source takes what chip, framework and network leave unexplained, so it is small here."""
    fit, problem, at = solved
    measured = np.log([case.seconds for case in cases])
    before, after = (float(np.mean(np.abs(values - measured))) for values in (problem.values(problem.start), at.values))
    assert after < 0.3 * before
    found = fit.levels(at.logs)
    assert found.chip["Ampere"]["matmul"] == pytest.approx(0.65, rel=0.15)
    assert np.abs(at.logs[len(fit.cells) :]).max() < 0.1


def test_a_row_depends_on_its_own_levels_only(cases: list[Case], solved: tuple[JointFit, Problem, Point]) -> None:
    """Slopes by the coefficients of another framework are 0, so that its rows do not move them."""
    fit, _, at = solved
    for i, case in enumerate(cases):
        for column, (level, key, _) in enumerate(fit.cells):
            if level == "framework" and key != case.work.framework.key:
                assert at.slopes[i, column] == 0


def test_a_source_left_out_is_predicted_without_its_times(cases: list[Case], solved: tuple[JointFit, Problem, Point]) -> None:
    """Its framework is then at its prior: no other row knows it. The chip is known from the others."""
    fit, problem, at = solved
    left = fit.leaving_out(problem, at, lambda case: case.table == "bloom_prequel")
    whole, prior = fit.levels(at.logs), Calibration()
    for name, value in left.framework["megatron-deepspeed"].items():
        assert value == pytest.approx(getattr(prior, name), rel=0.02)
    assert left.chip["Ampere"]["matmul"] == pytest.approx(whole.chip["Ampere"]["matmul"], rel=0.15)


def test_a_large_source_is_sampled_evenly() -> None:
    cases = built_in("vtrain_a100_single_node")[0]
    chosen = sampled(cases)
    assert 30 <= len(chosen) <= 60
    assert len({case.model.name for case in chosen}) > 3
