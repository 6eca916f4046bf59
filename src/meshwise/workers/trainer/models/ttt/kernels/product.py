"""A weight times one vector per sequence, fused with the norm before and the gate or residual after it, for decoding."""

# Triton's language is not Python: a kernel's arguments and loops have their own types
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS, WARPS = 4, 4  # rows and warps of a program: 768 rows then make 192 programs, more than an H200's 132 multiprocessors


@triton.jit
def product(
    x, gain, shift, weight, above, residual, out, rows, width, eps,
    K: tl.constexpr, R: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out = residual + W y, or silu(W y) (above y), with y = x, RMSNorm(x) or LayerNorm(x) rounded to the weight's precision. x (batch,
    width), W and above (rows, width), K the next power of two of width. Grid: rows / R, batch."""
    batch = tl.program_id(1)
    k = tl.arange(0, K)
    inside = k < width
    # load the weights first: the reads are in flight while x is normalized
    r = tl.program_id(0) * R + tl.arange(0, R)
    at = r.to(tl.int64)[:, None] * width + k[None, :]
    mask = (r < rows)[:, None] & inside[None, :]
    w = tl.load(weight + at, mask=mask, other=0.0)
    if GATED:
        w_above = tl.load(above + at, mask=mask, other=0.0)
    y = tl.load(x + batch * width + k, mask=inside, other=0.0).to(tl.float32)
    if NORM == "layer":
        y = tl.where(inside, y - tl.sum(y, 0) / width, 0.0)
    if NORM != "none":
        y *= tl.rsqrt(tl.sum(y * y, 0) / width + eps) * tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    if NORM == "layer":
        y += tl.load(shift + k, mask=inside, other=0.0).to(tl.float32)
    y = y.to(weight.dtype.element_ty).to(tl.float32)[None, :]
    result = tl.sum(w.to(tl.float32) * y, 1)
    if GATED:
        result = result * tl.sigmoid(result) * tl.sum(w_above.to(tl.float32) * y, 1)
    if ADD:
        result += tl.load(residual + batch * rows + r, mask=r < rows, other=0.0).to(tl.float32)
    tl.store(out + batch * rows + r, result.to(out.dtype.element_ty), mask=r < rows)


def multiply(
    x: Tensor, weight: Tensor, dtype: torch.dtype = torch.float32, norm: nn.RMSNorm | nn.LayerNorm | None = None,
    gated_by: Tensor | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return (batch, rows) of `dtype` from x (batch, width)."""
    rows, width = weight.shape
    out = x.new_empty(len(x), rows, dtype=dtype)
    kind = "none" if norm is None else "layer" if isinstance(norm, nn.LayerNorm) else "rms"
    gain = x if norm is None or norm.weight is None else norm.weight
    shift = norm.bias if isinstance(norm, nn.LayerNorm) else x
    eps = 0.0 if norm is None or norm.eps is None else norm.eps
    given = (x, gain, shift, weight, weight if gated_by is None else gated_by, x if residual is None else residual, out)
    options = {"K": triton.next_power_of_2(width), "R": ROWS, "NORM": kind, "num_warps": WARPS}
    product[(-(-rows // ROWS), len(x))](*given, rows, width, eps, GATED=gated_by is not None, ADD=residual is not None, **options)
    return out
