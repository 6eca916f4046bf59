"""Where a layout puts its ranks."""

import math
from typing import Any

import pytest

from meshwise import api
from meshwise.plan.train.mesh import AXES

QUESTIONS: dict[str, dict[str, Any]] = {
    "bloom": {"model": "bloom-176b", "on": "jean-zay:48", "batch": "2048x2048"},
    "torus": {"model": "llama-3-70b", "on": "tpu-v5p:8x8x16", "batch": "4M"},
    "experts": {"model": "mixtral-8x7b", "on": "4x8xh100-sxm", "batch": "256x4096"},
    "one node": {"model": "llama-3-8b", "on": "8xh100-sxm", "batch": "64"},
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_axes_multiply_to_the_devices_and_stages_hold_every_layer(question: str) -> None:
    plan = api.plan(**QUESTIONS[question], top=5)
    for choice in plan.choices:
        mesh = plan.mesh(choice)
        assert tuple(mesh.sizes) == AXES
        assert math.prod(mesh.sizes.values()) == mesh.devices == choice.devices
        assert mesh.stages[0][0] == 0
        assert mesh.stages[-1][1] == plan.question().model.decoder.layers
        assert all(before[1] == after[0] for before, after in zip(mesh.stages, mesh.stages[1:], strict=False))
        assert [each.name for each in mesh.communicators if mesh.devices % (each.size * each.stride)] == []


def test_every_axis_of_a_torus_is_filled() -> None:
    plan = api.plan(**QUESTIONS["torus"])
    mesh = plan.mesh()
    assert mesh.torus == (16, 8, 8)
    assert [math.prod(extents) for extents in mesh.laid] == list(mesh.torus)


def test_tensor_parallel_groups_stay_in_a_node_and_stages_do_not() -> None:
    mesh = api.plan(**QUESTIONS["bloom"], fix="tp=4,pp=12").mesh()
    nodes = {each.name: each.nodes for each in mesh.communicators}
    assert nodes["tp"] == 1
    assert nodes["pp"] == 12
