"""The TTT-Linear kernels compute what the plain loop does in float64, at random rates, weights, gains and token_idx."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from meshwise.trainer.models.ttt.dispatch import unserved

LIMITS = {"float32": 1e-5, "float16": 1e-2, "decoding": 1e-5}
"""float16 rounds to one part in 2,048."""


@functools.cache
def interpreted() -> dict[str, dict[str, float]]:
    """Triton's interpreter is chosen when triton is imported, so it has a process of its own."""
    worker = Path(__file__).with_name("ttt_linear_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker)], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["float32 with a tail", "float32, less than a mini-batch", "float16", "decoding"])
def test_outputs_and_all_gradients_are_those_of_the_float64_loop(case: str) -> None:
    pytest.importorskip("triton")
    limit = next(value for word, value in LIMITS.items() if case.startswith(word))
    for name, off in interpreted()[case].items():
        assert off < limit, f"{case}: {name} is {off:.1e} off"  # a NaN is not below


@pytest.mark.parametrize(
    ("dtype", "head", "tokens", "word"),
    [(torch.bfloat16, 64, 16, "CUDA"), (torch.float32, 64, 16, "cpu")],
)
def test_no_kernels_without_cuda(dtype: torch.dtype, head: int, tokens: int, word: str) -> None:
    assert word in unserved(torch.device("cpu"), dtype, head, tokens)
