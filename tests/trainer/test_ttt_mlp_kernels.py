"""TTT-MLP's Triton kernels in Triton's interpreter on the CPU: outputs and every gradient are those of the plain form in float64."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from meshwise.trainer.models.ttt.dispatch import MLP, unserved

pytest.importorskip("triton")
torch = pytest.importorskip("torch")


@cache
def measured() -> dict[str, dict[str, float]]:
    """In a process of its own: Triton looks at the variable once, when kernels are defined."""
    with TemporaryDirectory() as folder:
        seen = Path(folder, "seen.json")
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("ttt_mlp_kernels_worker.py")), str(seen)],
            env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(seen.read_text())


@pytest.mark.parametrize(
    "case", ["several mini-batches", "one mini-batch", "a long mini-batch", "a layer", "a layer with a tail"]
)
def test_kernels_compute_the_plain_form_and_all_its_gradients(case: str) -> None:
    seen = measured()[case]
    # written so that NaN fails
    assert [name for name, error in seen.items() if not error < 1e-5] == []
    assert len(seen) > 10


def test_a_layer_on_a_cpu_is_not_served() -> None:
    assert "not on cpu" in unserved(torch.device("cpu"), torch.bfloat16, 64, 16, MLP)
