"""TTT-MLP's kernels on a GPU in bfloat16, against the plain form in float64. Skipped without a GPU."""

import pytest
import torch

from meshwise.workers.trainer.models.ttt.dispatch import MLP, why_no_kernels
from support.ttt_mlp_cases import NAMES, far, inputs, plain

if not torch.cuda.is_available() or why_no_kernels(torch.device("cuda:0"), torch.bfloat16, 64, 16, MLP):
    pytest.skip("no GPU that the kernels support", allow_module_level=True)

from meshwise.workers.trainer.models.ttt.kernels.mlp import ttt_mlp

LIMITS = {"b1": 2e-2}
"""Of errors. The gradient of b1 feeds back into itself at every mini-batch: after 256 of them it is 1.2% off, by rounding alone, which the
kernels' Python on a CPU with 16-bit tensors shows too."""


@pytest.mark.parametrize(("batch", "batches", "heads"), [(1, 1, 1), (2, 4, 3), (1, 256, 1), (16, 3, 12), (64, 1, 4)])
def test_outputs_and_gradients_are_near_the_plain_form_s(batch: int, batches: int, heads: int) -> None:
    torch.manual_seed(batch)
    given = [one.cuda() for one in inputs(batch, batches, heads, 64, 16)]
    given[3] /= 64
    half = [one.bfloat16() if i < 3 else one.float() for i, one in enumerate(given)]
    ups = torch.randn_like(half[0])
    found: list[list[torch.Tensor]] = []
    for run, start in ((ttt_mlp, half), (plain, [one.double() for one in half])):
        here = [one.detach().requires_grad_() for one in start]
        out = run(*here)
        found.append([out.detach(), *torch.autograd.grad(out, here, ups.to(out.dtype))])
    errors = dict(zip(NAMES, far(found[0], found[1]), strict=True))
    assert [name for name, error in errors.items() if not error < LIMITS.get(name, 1e-2)] == [], errors
