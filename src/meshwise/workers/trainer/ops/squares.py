"""The sum of squares of many tensors, at the speed of memory: torch's own reads 16-bit gradients at half of it.

Each program writes its own sum, so that the result does not depend on the order in which programs run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS, AT_ONCE = 1056, 4096
"""Programs that add up one tensor, eight on each multiprocessor of an H100 or H200, and elements that each reads at a time."""
MIN_OWN_LAUNCH_ELEMENTS = 2**20  # elements from which on a tensor has launches of its own; torch adds up all smaller ones at once


@triton.jit
def _squares(x, sums, size, BLOCK: tl.constexpr):  # noqa: N803
    total = tl.zeros((BLOCK,), tl.float32)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(size, step)):
        value = tl.load(x + at, at < size, other=0.0).to(tl.float32)
        total += value * value
        at += step
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))


def sum_of_squares(tensors: list[Tensor]) -> Tensor:
    """Return the sum of the squares of all elements, in float32."""
    large = [tensor for tensor in tensors if tensor.numel() >= MIN_OWN_LAUNCH_ELEMENTS and tensor.is_contiguous()]
    found = torch.empty(len(large), PROGRAMS, device=tensors[0].device)
    for tensor, sums in zip(large, found, strict=True):
        run: Any = _squares[(PROGRAMS,)]
        run(tensor, sums, tensor.numel(), AT_ONCE)
    chosen = {id(tensor) for tensor in large}
    small = [tensor for tensor in tensors if id(tensor) not in chosen]
    if not small:
        return found.sum()
    norms = torch.stack(torch._foreach_norm(small, 2, torch.float32))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return found.sum() + norms.square().sum()
