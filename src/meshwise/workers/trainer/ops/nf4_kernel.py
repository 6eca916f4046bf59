"""A Triton kernel that turns 4-bit weights into 16 bits, right before a product reads them: nf4 with double quantization."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BYTES_PER_PROGRAM = 1024  # bytes of packed weights that one program reads


@triton.jit
def _dequantize(
    packed, codes, scales, levels, out, size, groups, steps,
    HALF: tl.constexpr, GROUP: tl.constexpr, BYTES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write two weights per byte: level[half a byte] x scale of its block; HALF bytes make a block, GROUP blocks share a scale."""
    at = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    inside = at < size
    both = tl.load(packed + at, inside, other=0).to(tl.int32)
    block = at // HALF
    code = tl.load(codes + block, inside, other=0).to(tl.float32)
    most = (code - steps) * (tl.load(scales + block // GROUP, inside, other=0.0) / steps) + tl.load(scales + groups)
    first = tl.load(levels + (both >> 4)) * most
    second = tl.load(levels + (both & 15)) * most
    pair = tl.program_id(0).to(tl.int64) * (2 * BYTES) + tl.arange(0, 2 * BYTES)
    tl.store(out + pair, tl.interleave(first, second).to(out.dtype.element_ty), pair < 2 * size)


@cache
def _levels(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def run_dequantize(
    matrix: "tuple[Tensor, Tensor, Tensor]", out: Tensor, values: tuple[float, ...], block: int, group: int, steps: int
) -> None:
    """Write the weights of an nf4 matrix (packed, codes, scales) to `out`, in its type."""
    packed, codes, scales = matrix
    run: Any = _dequantize[(triton.cdiv(packed.numel(), BYTES_PER_PROGRAM),)]
    run(
        packed, codes, scales, _levels(values, out.device), out, packed.numel(), scales.numel() - 1, float(steps),
        block // 2, group, BYTES_PER_PROGRAM,
    )  # fmt: skip
