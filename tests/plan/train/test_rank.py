"""The first row is the one to act on: it fits, it is near what was measured, and what a bolder one would gain is said."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwise as mw
from meshwise.catalogue import evidence
from meshwise.cost import interval
from meshwise.cost.layout import Layouts
from meshwise.plan.train.plan import TrainPlan
from meshwise.plan.train.rank import Rank, extrapolated

QUESTION: dict[str, Any] = {"model": "llama-3-70b", "on": "64x8xh100-sxm", "batch": "4M", "framework": "megatron"}


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return mw.plan(**QUESTION)


@given(st.floats(1e9, 1e12), st.floats(0.01, 0.3))
def test_the_chance_of_fitting_is_that_of_a_normal_distribution(needs: float, spread: float) -> None:
    capacity = 80e9
    expected = 0.5 * (1 + math.erf(math.log(capacity / needs) / spread / math.sqrt(2)))
    assert interval.fits(np.array([needs]), capacity, spread)[0] == pytest.approx(expected, abs=1e-6)


def test_rows_that_may_not_fit_come_after_those_that_fit(plan: TrainPlan) -> None:
    risky = [row.p_fit < 0.95 for row in plan.choices if row.name != plan.evidence.usual]  # type: ignore[union-attr]
    assert risky == sorted(risky)
    assert plan.best.p_fit >= 0.95
    assert not plan.best.may_not_fit


def test_a_faster_row_that_may_not_fit_is_named_with_its_chance(plan: TrainPlan) -> None:
    assert plan.risky is not None
    assert plan.risky.step < plan.best.step
    assert plan.risky.p_fit < 0.95


def test_accepting_every_risk_ranks_by_expected_time_alone() -> None:
    bold = mw.plan(**QUESTION, risk="100%")
    q = bold.question()
    rows = bold.choices[: bold.ask.top]
    factors = [float(Rank.of(q, Layouts.from_row(row.layout), np.array([row.needs])).factor[0]) for row in rows]
    expected = [row.step * factor for row, factor in zip(rows, factors, strict=True)]
    assert expected == pytest.approx(sorted(expected), rel=1e-6)
    assert bold.risky is None


def test_the_program_s_usual_cuts_are_among_the_rows(plan: TrainPlan) -> None:
    assert plan.evidence is not None
    assert plan.evidence.usual in {row.name for row in plan.choices}
    assert "llama-3" in plan.evidence.usual_run


def test_a_layout_beyond_every_measured_one_is_extrapolated(plan: TrainPlan) -> None:
    known = evidence.bounds(("megatron", "megatron-bridge"), "gpu")
    base = {"tp": 1, "dp_shard": 16}
    inside = Layouts.of(**base, cp=1, pp=8)
    beyond = Layouts.of(**base, cp=4 * known.largest["cp"], pp=8)
    assert extrapolated(plan.question(), inside)[0] == 0
    assert extrapolated(plan.question(), beyond)[0] >= 2


def test_a_ring_over_short_sequences_is_no_free_lunch() -> None:
    times = [
        mw.plan(**QUESTION, fix=[f"tp=4,pp=4,cp={cp},vpp=1,recompute=full"], top=1).best.time["attention"] for cp in (1, 2, 4, 8)
    ]
    assert times == sorted(times)
    assert times[-1] > 1.3 * times[0]


def test_a_plan_of_a_program_without_measured_runs_says_so() -> None:
    found = mw.plan(model="llama-3.2-1b", on="8xh100-sxm", batch="64x2048", framework="ddp")
    assert found.evidence is not None
    assert "nothing of this program was measured" in found.evidence.sentence


def test_a_plan_says_what_it_rests_on_and_what_would_narrow_it(plan: TrainPlan) -> None:
    lines = plan.believe()
    assert lines[0].startswith("Calibration h100-megatron: fitted on")
    assert sum("predicted without its table" in line for line in lines) == 5
    assert any(line.startswith("What would narrow it most") for line in lines)
