"""Tests of the workers run on torch with one thread."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Threads of several test processes compete for the same cores: tiny tensors then take ten times as long as on one thread."""
    torch.set_num_threads(1)
