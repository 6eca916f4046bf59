"""Cross-entropy and its gradient with respect to the logits, in one in-place kernel: each logit is read once and written once.

A second kernel multiplies that gradient by the incoming one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 16
DEEP = 2
"""Logits that a lane compares before it exponentiates, which saves exponentials. The fastest of 12 launch configurations on an H200 over
rows of 50,304 and 128,256 logits: 2.2 and 2.6 TB/s; a copy reaches 4.2. Rows held in registers spilled and took twice as long."""


@triton.jit
def _rows(
    logits, stride, targets, losses, vocabulary, width, share, cap,
    CAPPED: tl.constexpr, DEEP: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Compute one row: loss = ln sum exp(z) - z[target]; z becomes softmax(z) - 1[target]. A row stays in cache for the second read. If
    CAPPED, z is cap tanh(logit / cap), and the gradient is times 1 - tanh^2. tanh is 2 sigmoid(2 x) - 1."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    share = tl.where(target < 0, 0.0, share)
    picked = tl.load(start + tl.maximum(target, 0)).to(tl.float32)
    if CAPPED:
        picked = cap * (2 * tl.sigmoid(picked * (2 / cap)) - 1)
    columns = tl.arange(0, BLOCK)
    deep = tl.arange(0, DEEP)[:, None] * BLOCK + columns[None, :]
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, DEEP * BLOCK):
        z = tl.load(start + first + deep, first + deep < vocabulary, other=-float("inf")).to(tl.float32)
        if CAPPED:
            z = tl.where(first + deep < vocabulary, cap * (2 * tl.sigmoid(z * (2 / cap)) - 1), -float("inf"))
        above = tl.maximum(most, tl.max(z, 0))
        # a lane that has seen nothing yet has minus infinity for both, whose difference is NaN
        total = tl.where(above == -float("inf"), 0.0, total * tl.exp(most - above) + tl.sum(tl.exp(z - above[None, :]), 0))
        most = above
    peak = tl.max(most, 0)
    whole = peak + tl.log(tl.sum(total * tl.exp(most - peak), 0))
    tl.store(losses + row, (whole - picked) * share)
    for first in range(0, width, BLOCK):
        at = first + columns
        z = tl.load(start + at, at < vocabulary, other=-float("inf")).to(tl.float32)
        if CAPPED:
            tanh = 2 * tl.sigmoid(z * (2 / cap)) - 1
            slope = (tl.exp(cap * tanh - whole) - tl.where(at == target, 1.0, 0.0)) * (1 - tanh * tanh) * share
        else:
            slope = (tl.exp(z - whole) - tl.where(at == target, 1.0, 0.0)) * share
        tl.store(start + at, slope.to(logits.dtype.element_ty), at < width)


def loss_and_gradient(logits: Tensor, targets: Tensor, vocabulary: int, share: float, cap: float = 0.0) -> Tensor:
    """Return the losses of rows of logits (tokens, width), and overwrite the logits with their gradient; both zero for targets below 0.
    Both are multiplied by `share`. The gradient is zero past the vocabulary. With a cap, logits become cap x tanh(logit / cap) first."""
    losses = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    run: Any = _rows[(len(targets),)]
    run(logits, logits.stride(0), targets, losses, vocabulary, logits.shape[1], share, cap, cap > 0, DEEP, BLOCK, num_warps=WARPS)
    return losses


@triton.jit
def _times(x, factor, size, BLOCK: tl.constexpr):  # noqa: N803
    """Multiply x by factor in place, in float32."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    product = tl.load(x + at, at < size).to(tl.float32) * tl.load(factor)
    tl.store(x + at, product.to(x.dtype.element_ty), at < size)


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply x in place by a scalar on the device."""
    run: Any = _times[(triton.cdiv(x.numel(), BLOCK),)]
    run(x, factor.float(), x.numel(), BLOCK)
    return x
