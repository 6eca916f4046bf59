"""Weights in 4 bits: the nearest of 16 quantiles of a normal distribution, one scale per 64 weights, itself in 8 bits (arXiv:2305.14314).

A weight takes 4 + 8/64 + 32/(64 x 256) bits. The scales of blocks are stored as their distance from the mean scale, in 255 even steps of
the largest distance among 256 blocks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import NamedTuple

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.finetune.method import NF4_BLOCK as BLOCK

LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Values of nf4 (arXiv:2305.14314, appendix E)."""
GROUP_BLOCKS = 256  # blocks whose scales share a scale
SCALE_STEPS = 127
WEIGHTS_AT_ONCE = 1 << 24  # weights that are quantized at a time, so that their float32 copies take little memory


class Quantized(NamedTuple):
    """A matrix in nf4."""

    packed: Tensor  # two weights a byte, row by row, the first in the upper half
    codes: Tensor  # the scale of each block, a byte
    scales: Tensor  # the scale of each group of blocks, then the mean scale of all blocks; float32


def empty(rows: int, columns: int) -> Quantized:
    """Return tensors for a matrix of this shape, whose values are still to be set."""
    blocks = rows * columns // BLOCK
    return Quantized(
        torch.empty(rows * columns // 2, dtype=torch.uint8),
        torch.empty(blocks, dtype=torch.uint8),
        torch.empty(-(-blocks // GROUP_BLOCKS) + 1, dtype=torch.float32),
    )


def quantize(weight: Tensor) -> Quantized:
    """Return the nearest matrix in nf4; a multiple of BLOCK weights."""
    flat = weight.detach().reshape(-1)
    levels = torch.tensor(LEVELS, device=flat.device)
    middles = (levels[1:] + levels[:-1]) / 2
    packed: list[Tensor] = []
    largest: list[Tensor] = []
    for part in flat.split(WEIGHTS_AT_ONCE):
        blocks = part.float().view(-1, BLOCK)
        most = blocks.abs().amax(1)
        index = torch.bucketize(blocks / most.clamp(min=1e-30)[:, None], middles).to(torch.uint8).view(-1, 2)
        packed.append(index[:, 0] << 4 | index[:, 1])
        largest.append(most)
    codes, scales = _quantize_scales(torch.cat(largest))
    return Quantized(torch.cat(packed), codes, scales)


def _quantize_scales(most: Tensor) -> tuple[Tensor, Tensor]:
    mean = most.mean()
    padded = torch.nn.functional.pad(most - mean, (0, -len(most) % GROUP_BLOCKS)).view(-1, GROUP_BLOCKS)
    scale = padded.abs().amax(1)
    steps = torch.round(padded / scale.clamp(min=1e-30)[:, None] * SCALE_STEPS) + SCALE_STEPS
    return steps.to(torch.uint8).flatten()[: len(most)], torch.cat((scale, mean[None]))


def dequantize(parts: list[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    """Return matrices of `columns` columns one below another; `parts` are packed, codes and scales of each in turn."""
    matrices = [Quantized(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    counts = [2 * each.packed.numel() for each in matrices]
    whole = torch.empty(sum(counts), dtype=dtype, device=parts[0].device)
    for each, out in zip(matrices, whole.split(counts), strict=True):
        if out.is_cuda:
            from meshwise.workers.trainer.ops.nf4_kernel import run_dequantize

            run_dequantize(each, out, LEVELS, BLOCK, GROUP_BLOCKS, SCALE_STEPS)
        else:
            out.copy_(_values(each))
    return whole.view(-1, columns)


def _values(each: Quantized) -> Tensor:
    """Return the weights in float32, in the order of operations of the kernel."""
    levels = torch.tensor(LEVELS, device=each.packed.device)
    index = torch.stack((each.packed >> 4, each.packed & 15), 1).flatten().long()
    group = each.scales[:-1].repeat_interleave(GROUP_BLOCKS)[: len(each.codes)]
    most = (each.codes.float() - SCALE_STEPS) * (group / SCALE_STEPS) + each.scales[-1]
    return levels[index] * most.repeat_interleave(BLOCK)
