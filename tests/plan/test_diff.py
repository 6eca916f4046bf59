"""Two saved plans side by side: the question, the figures and the parts that differ."""

import dataclasses
from pathlib import Path

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.train.plan import TrainPlan


@pytest.fixture(scope="module")
def plans() -> tuple[TrainPlan, TrainPlan]:
    return tuple(api.plan("llama-3-8b", on="8xh100-sxm", batch=batch, framework="fsdp") for batch in (64, 128))  # type: ignore[return-value]


def test_a_diff_of_files_has_what_was_asked_and_what_changed(plans: tuple[TrainPlan, TrainPlan], tmp_path: Path) -> None:
    paths = [plan.save(tmp_path / f"{i}.json") for i, plan in enumerate(plans)]
    found = api.diff(*paths)
    assert [(one.name, one.mine, one.other) for one in found.figures if one.kind == "asked"] == [("--batch", "64", "128")]
    step = next(figure for figure in found.figures if figure.name == "step")
    assert (step.mine, step.other) == (plans[0].best.step, plans[1].best.step)
    parts = [one for one in found.figures if one.kind == "time"]
    gains = [abs(part.other - part.mine) for part in parts]
    assert gains == sorted(gains, reverse=True)
    assert sum(part.other - part.mine for part in parts) == pytest.approx(step.other - step.mine, rel=0.02)
    assert found.data == ()


def test_a_plan_does_not_differ_from_itself_and_other_data_are_told(plans: tuple[TrainPlan, TrainPlan]) -> None:
    same = api.diff(plans[0], plans[0])
    assert {one.kind for one in same.figures} == {"figures"}
    assert same.data == ()
    older = dataclasses.replace(plans[0], versions={**plans[0].versions, "calibration": "another"})
    assert api.diff(plans[0], older).data == ("calibration",)


def test_plans_of_two_verbs_are_refused(plans: tuple[TrainPlan, TrainPlan]) -> None:
    with pytest.raises(UserError, match="A is a plan of 'plan' and B of 'serve'"):
        api.diff(plans[0], api.serve("qwen3-8b", on="1x4090"))
