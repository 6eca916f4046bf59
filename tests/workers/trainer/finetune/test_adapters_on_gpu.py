"""Adapters on a GPU: kernels against plain PyTorch, and captured steps against steps launched kernel by kernel. Skipped without a GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwise.workers.trainer.ops.adapted import adapted_gate, adapted_linear
from meshwise.workers.trainer.ops.nf4 import Quantized, dequantize, quantize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WORKER = Path(__file__).with_name("adapted_steps_worker.py")


def test_the_nf4_kernel_writes_what_the_cpu_computes() -> None:
    weight = torch.randn(640, 1088)
    stored = quantize(weight)
    expected = dequantize(list(stored), 1088, torch.float32)
    assert torch.equal(quantize(weight.cuda()).packed.cpu(), stored.packed)
    found = dequantize([part.cuda() for part in Quantized(*stored)], 1088, torch.float32)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-7)


def distances(found: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> list[float]:
    pairs = zip(found, right, strict=True)
    return [float((one.detach().double() - other.detach()).norm() / other.detach().norm()) for one, other in pairs]


# torch warns once per process, where the thread of the backward pass is the first to call cuBLAS, and makes the context itself
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning")
@pytest.mark.parametrize(("gate", "keep"), [(False, False), (True, False), (True, True)])
def test_products_with_adapters_are_near_float64(gate: bool, keep: bool) -> None:
    tokens, inputs, outputs, rank = 512, 1024, 768, 48
    x = torch.randn(tokens, inputs * (2 if gate else 1), device="cuda")
    given: list[Any] = [x, torch.randn(outputs, inputs, device="cuda") / 32, torch.randn(rank, inputs, device="cuda") / 32]
    given.append(torch.randn(outputs, rank, device="cuda") / 8)
    half = [part.bfloat16().requires_grad_() for part in given]
    half[1].requires_grad_(False)
    wide = [part.detach().double().requires_grad_() for part in half]
    inner = torch.nn.functional.silu(wide[0][:, :inputs]) * wide[0][:, inputs:] if gate else wide[0]
    expected = inner @ wide[1].T + inner @ wide[2].T @ wide[3].T
    y = (
        adapted_gate(half[0], [half[1]], half[2], half[3], "silu", keep)[0]
        if gate
        else adapted_linear(half[0], [half[1]], *half[2:])[0]
    )
    outer = torch.randn_like(expected)
    right = torch.autograd.grad(expected, [wide[0], *wide[2:]], outer)
    found = torch.autograd.grad(y, [half[0], *half[2:]], outer.bfloat16())
    far = distances((y, *found), (expected, *right))
    assert max(far) < 0.01, far


@pytest.mark.parametrize("method", ["lora", "dora", "qlora", "freeze"])
def test_a_captured_step_has_the_losses_of_one_launched_kernel_by_kernel(method: str) -> None:
    done = subprocess.run([sys.executable, str(WORKER), method], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = json.loads(done.stdout.splitlines()[-1])
    for name, found in losses.items():
        assert found["plain"][-1] < found["plain"][0], (name, found)
        for one, other in zip(found["plain"], found["captured"], strict=True):
            assert abs(one - other) < 0.01 * one, (name, found)
