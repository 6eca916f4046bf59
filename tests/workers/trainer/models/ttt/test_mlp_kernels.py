"""TTT-MLP's Triton kernels in Triton's interpreter on the CPU: outputs and every gradient are those of the plain form in float64."""

import json

import pytest
import torch

from meshwise.workers.trainer.models.ttt.dispatch import MLP, why_no_kernels
from support.nursery import SUPPORT, Nursery


@pytest.fixture(scope="module")
def measured(interpreted: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    seen = tmp_path_factory.mktemp("ttt-mlp") / "seen.json"
    interpreted.run(str(SUPPORT / "ttt_mlp_worker.py"), str(seen))
    return json.loads(seen.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "several mini-batches",
        "one mini-batch",
        "a long mini-batch",
        "a layer",
        "a layer with a tail",
        "a layer with joined projections",
    ],
)
def test_kernels_compute_the_plain_form_and_all_its_gradients(measured: dict[str, dict[str, float]], case: str) -> None:
    seen = measured[case]
    # written so that NaN fails
    assert [name for name, error in seen.items() if not error < 1e-5] == []
    assert len(seen) > 10


def test_a_layer_on_a_cpu_does_not_use_the_kernels() -> None:
    assert "not cpu" in why_no_kernels(torch.device("cpu"), torch.bfloat16, 64, 16, MLP)
