"""Joined products with adapters: in Triton's interpreter here, and on a GPU in test_adapters_on_gpu.py."""

from pathlib import Path

import pytest

from support.nursery import Nursery


@pytest.mark.slow
def test_joined_products_compute_what_separate_layers_do(interpreted: Nursery) -> None:
    interpreted.run(str(Path(__file__).with_name("adapted_kernels_worker.py")))
