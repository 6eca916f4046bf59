"""The TTT-Linear kernels compute what the plain loop does in float64, at random rates, weights, gains and token_idx."""

import json

import pytest
import torch

from meshwise.workers.trainer.models.ttt.dispatch import why_no_kernels
from support.nursery import SUPPORT, Nursery

LIMITS = {"float32": 1e-5, "float16": 1e-2, "decoding": 1e-5, "compiled": 1e-5}
"""float16 rounds to one part in 2,048."""


@pytest.fixture(scope="module")
def measured(interpreted: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    seen = tmp_path_factory.mktemp("ttt-linear") / "seen.json"
    interpreted.run(str(SUPPORT / "ttt_linear_worker.py"), str(seen))
    return json.loads(seen.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["float32 with a tail", "float32, less than a mini-batch", "float16", "decoding", "compiled"])
def test_outputs_and_all_gradients_are_those_of_the_float64_loop(measured: dict[str, dict[str, float]], case: str) -> None:
    limit = next(value for word, value in LIMITS.items() if case.startswith(word))
    for name, off in measured[case].items():
        assert off < limit, f"{case}: {name} is {off:.1e} off"  # a NaN is not below


@pytest.mark.parametrize(
    ("dtype", "head", "tokens", "word"),
    [(torch.bfloat16, 64, 16, "CUDA"), (torch.float32, 64, 16, "cpu")],
)
def test_no_kernels_without_cuda(dtype: torch.dtype, head: int, tokens: int, word: str) -> None:
    assert word in why_no_kernels(torch.device("cpu"), dtype, head, tokens)
