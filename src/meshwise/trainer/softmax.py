"""Cross-entropy and its gradient by the logits, in one kernel and in place: each logit is read from memory once and written once."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
WARPS = 32
"""As many as a block may have: the fewer rows are under way at once, the more of them the cache still holds for the second reading."""


@triton.jit
def _rows(logits, stride, targets, losses, vocabulary, width, share, BLOCK: tl.constexpr):  # noqa: N803
    """One row: loss = ln sum exp(z) - z[target]; z becomes softmax(z) - 1[target]. A row stays in cache for the second reading."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    picked = tl.load(start + target).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        z = tl.load(start + first + columns, first + columns < vocabulary, other=-float("inf")).to(tl.float32)
        above = tl.maximum(most, z)
        # a lane that saw nothing yet has minus infinity for both, whose difference is no number
        total = tl.where(above == -float("inf"), 0.0, total * tl.exp(most - above) + tl.exp(z - above))
        most = above
    peak = tl.max(most, 0)
    whole = peak + tl.log(tl.sum(total * tl.exp(most - peak), 0))
    tl.store(losses + row, (whole - picked) * share)
    for first in range(0, width, BLOCK):
        at = first + columns
        z = tl.load(start + at, at < vocabulary, other=-float("inf")).to(tl.float32)
        slope = (tl.exp(z - whole) - tl.where(at == target, 1.0, 0.0)) * share
        tl.store(start + at, slope.to(logits.dtype.element_ty), at < width)


def slopes(logits: Tensor, targets: Tensor, vocabulary: int, share: float) -> Tensor:
    """The losses of rows of logits (tokens, width), which become their gradient; both times `share`. Past the vocabulary it is zero."""
    losses = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    run: Any = _rows[(len(targets),)]
    run(logits, logits.stride(0), targets, losses, vocabulary, logits.shape[1], share, BLOCK, num_warps=WARPS)
    return losses
