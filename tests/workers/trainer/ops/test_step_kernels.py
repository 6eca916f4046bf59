"""The kernels of a step: in Triton's interpreter here, and on a GPU in test_kernels_on_gpu.py."""

from pathlib import Path

import pytest

from support.nursery import Nursery


@pytest.mark.slow
def test_kernels_compute_what_plain_pytorch_does(interpreted: Nursery) -> None:
    interpreted.run(str(Path(__file__).with_name("step_kernels_worker.py")))
