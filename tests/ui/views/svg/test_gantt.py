"""The picture of a step: a row per stage, readable, and nothing outside of its frame."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.timeline import simulate_step
from meshwise.ui.views.svg.gantt import gantt
from support.steps import chosen, eight_stages, steps
from support.train_questions import question


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    ("axes", "words"),
    [({}, "1f1b"), ({"schedule": 1, "vpp": 2}, "interleaved"), ({"schedule": 2}, "zero-bubble")],
    ids=["1f1b", "interleaved", "zero-bubble"],
)
def test_a_picture_names_schedule_stages_and_colours(axes: dict[str, int], words: str) -> None:
    labels = texts(gantt(eight_stages(**axes), "dp1 tp8 pp8"))
    assert labels[0] == f"{words}: dp1 tp8 pp8"
    assert "16 micro-batches" in labels[1]
    assert {f"stage {stage}" for stage in range(8)} <= set(labels)
    assert ("gradients of weights" in labels) == (words == "zero-bubble")
    assert {"forward", "tensor-parallel", "optimizer"} <= set(labels)


def test_the_middle_of_a_long_step_is_left_out() -> None:
    q = question("llama-3-8b", "8x8xh100-sxm", "torchtitan", batch=512)
    svg = gantt(simulate_step(q, chosen(q, {"pp": 8, "tp": 8})), "long")
    assert "…" in texts(svg)
    assert {"0", "1", "2"} <= set(texts(svg))
    assert "256" not in texts(svg)
    assert len(svg) < 200_000
    assert "…" not in texts(gantt(eight_stages(), "short"))


@settings(max_examples=60, deadline=None)
@given(steps())
def test_everything_is_drawn_inside_of_the_picture(case: tuple[Question, Choice]) -> None:
    svg = ElementTree.fromstring(gantt(simulate_step(*case), "any"))
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    for path in svg.iter("{http://www.w3.org/2000/svg}path"):
        across = [float(x) for x in re.findall(r"[MH]([-\d.]+)", path.attrib["d"])]
        down = [float(y) for y in re.findall(r"(?:V|M[-\d.]+ )([-\d.]+)", path.attrib["d"])]
        assert 0 <= min(across) <= max(across) <= width
        assert 0 <= min(down) <= max(down) <= height
