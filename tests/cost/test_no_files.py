"""No formula reads a file: everything that the catalogue knows is looked up before, and given as an argument."""

import builtins
import io
import os
from typing import Any, NoReturn

import pytest

from meshwise.catalogue import files
from meshwise.catalogue.calibrations import Calibration, ServeCalibration
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost import goodput, interval
from meshwise.cost.layout import Layouts
from meshwise.cost.serve.layouts import layouts, place
from meshwise.cost.serve.memory.buffers import footprints
from meshwise.cost.serve.memory.cache import layer_caches
from meshwise.cost.serve.passes.speed import speed
from meshwise.cost.serve.rig import Rig
from meshwise.cost.train.step import evaluate, layer_and_head, peak
from meshwise.cost.work import Reliability
from support.serve_questions import question as serve_question
from support.train_questions import question as train_question


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to open files, and clear the caches, so that a look-up in the catalogue fails too."""

    def refuse(name: object, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError(f"{name} was opened")

    files.clear()
    for module in (builtins, io, os):
        monkeypatch.setattr(module, "open", refuse)


TRAIN = train_question("mixtral-8x7b", "2x8xh100-sxm", "torchtitan", batch=64)
TORUS = train_question("llama-3-8b", "tpu-v5p:4x4x8", "maxtext", batch=128)
SERVE, CPU = serve_question(), find_chip("cpu")


@pytest.mark.usefixtures("no_files")
def test_the_fixture_fails_when_the_catalogue_is_read() -> None:
    with pytest.raises(AssertionError, match="was opened"):
        find_framework("torchtitan")


@pytest.mark.usefixtures("no_files")
def test_training_is_evaluated_without_files() -> None:
    for q in (TRAIN, TORUS):
        layouts = Layouts.of(dp_shard=q.cluster.devices, zero=1)
        cost = evaluate(q, layouts)
        assert (cost.step > 0).all()
        assert (peak(q, layouts) == cost.peak).all()
        assert layer_and_head(q, layouts)[0]["matmul"] > 0
        parts = {part: float(seconds[0]) for part, seconds in cost.time.items()}
        low, high = interval.step(Calibration(), parts, q.cluster.devices, mixed=True)
        assert low < 1 < high
    assert goodput.goodput(Reliability(), 1024, checkpoint_bytes=1e12).effective > 0


@pytest.mark.usefixtures("no_files")
def test_serving_is_evaluated_without_files() -> None:
    rig, number = Rig.of(SERVE.cluster, CPU), 0
    for layout in layouts(SERVE.engine, SERVE.model, SERVE.cards, SERVE.rooms):
        if len(layout.cards) == len(SERVE.cards):
            request = SERVE.cache_request(1)
            placed = place(layout, SERVE.model, SERVE.weights, layer_caches(SERVE.model, SERVE.runtime, request))
            assert footprints(SERVE.model, SERVE.runtime, placed, request)
            found = speed(SERVE.model, SERVE.weights, placed, rig, SERVE.runtime, SERVE.work, lambda _: ServeCalibration())
            assert found.step > 0
            number += 1
    assert number == 3  # split by layers, by rows and by tensors
