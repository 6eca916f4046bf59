"""Experts on a GPU: a token's rows added up, and an expert's feed-forward as grouped products with one kernel between them.

torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportPrivateUsage=false, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from meshwise.workers.trainer.ops import grouped_products
from meshwise.workers.trainer.ops.fused_projections import GATES, activation_of
from meshwise.workers.trainer.ops.shared_memory import holds_large_tiles

ELEMENTS_AT_ONCE = 1024  # elements of a row that a program processes at a time
PAD_ROWS_PER_PROGRAM = 16  # rows that a program checks for padding


@triton.jit
def _sum(rows, places, out, width, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Add up the rows of one token, in float32."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(CHOSEN):
        place = tl.load(places + token * CHOSEN + choice)
        total += tl.load(rows + place * width + at, inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), inside)


@torch.library.custom_op("meshwise::sum_rows", mutates_args=())
def sum_rows(rows: Tensor, places: Tensor, chosen: int) -> Tensor:
    """Return the sum of every `chosen` rows at these places."""
    out = rows.new_empty(len(places) // chosen, rows.shape[1])
    run: Any = _sum[(len(out), triton.cdiv(rows.shape[1], ELEMENTS_AT_ONCE))]
    run(rows.contiguous(), places, out, rows.shape[1], chosen, ELEMENTS_AT_ONCE)
    return out


@sum_rows.register_fake
def _(rows: Tensor, places: Tensor, chosen: int) -> Tensor:
    return rows.new_empty(places.shape[0] // chosen, rows.shape[1])


@triton.jit
def _spread(x, places, choices, out, width, tokens, size, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, PADS: tl.constexpr):  # noqa: N803
    """Read one token and write it to the rows of its choices; programs after those of the tokens write zeros to rows of padding."""
    program = tl.program_id(0)
    if program < tokens:
        for first in range(0, width, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(x + program.to(tl.int64) * width + at, at < width)
            for choice in tl.static_range(CHOSEN):
                place = tl.load(places + program * CHOSEN + choice)
                tl.store(out + place * width + at, value, at < width)
    else:
        rows = (program - tokens) * PADS + tl.arange(0, PADS)
        empty = tl.load(choices + rows, rows < size, other=0) == tokens * CHOSEN
        if tl.max(empty.to(tl.int32), 0) == 1:
            for first in range(0, width, BLOCK):
                at = first + tl.arange(0, BLOCK)[None, :]
                zeros = tl.zeros((PADS, BLOCK), out.dtype.element_ty)
                tl.store(out + rows.to(tl.int64)[:, None] * width + at, zeros, empty[:, None] & (at < width))


@torch.library.custom_op("meshwise::spread_rows", mutates_args=())
def spread_rows(x: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
    """Return the token of each row, given the row of each choice and the choice in each row; zeros for the choice after the last. A token
    has `chosen` choices and is read once."""
    out = x.new_empty(len(choices), x.shape[1])
    run: Any = _spread[(len(x) + triton.cdiv(len(choices), PAD_ROWS_PER_PROGRAM),)]
    block = min(ELEMENTS_AT_ONCE, triton.next_power_of_2(x.shape[1]))
    run(x.contiguous(), places, choices, out, x.shape[1], len(x), len(choices), chosen, block, PAD_ROWS_PER_PROGRAM)
    return out


@spread_rows.register_fake
def _(x: Tensor, places: Tensor, choices: Tensor, chosen: int) -> Tensor:
    return x.new_empty(choices.shape[0], x.shape[1])


@torch.library.custom_op("meshwise::wide_product", mutates_args=())
def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x weight^T of bfloat16 matrices in float32."""
    return torch.mm(x, weight.T, out_dtype=torch.float32)


@wide_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32)


def _wide_product_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _wide_product_gradients(ctx: Any, by_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients. That of the output is rounded to 16 bits, like the gradients of all other products."""
    x, weight = ctx.saved_tensors
    by_out = by_out.to(x.dtype)
    return by_out @ weight, by_out.T @ x


wide_product.register_autograd(_wide_product_gradients, setup_context=_wide_product_save)


@triton.jit
def _gate_row(both, out, by_both, shares, by_shares, width, BLOCK: tl.constexpr, BACK: tl.constexpr, KIND: tl.constexpr):  # noqa: N803
    """Compute h = a(g) u w for one row [g u] of share w. If BACK, `out` holds e, the gradient of h: writes the gradient
    [e w u a'(g), e w a(g)] of the row and sum(e a(g) u) of its share, and h over e."""
    row = tl.program_id(0).to(tl.int64)
    share = tl.load(shares + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < width
        g = tl.load(both + 2 * row * width + at, inside, other=0.0).to(tl.float32)
        u = tl.load(both + (2 * row + 1) * width + at, inside, other=0.0).to(tl.float32)
        s, slope = activation_of(g, KIND)
        if BACK:
            e = tl.load(out + row * width + at, inside, other=0.0).to(tl.float32)
            total += e * g * s * u
            tl.store(by_both + 2 * row * width + at, (e * share * u * slope).to(both.dtype.element_ty), inside)
            tl.store(by_both + (2 * row + 1) * width + at, (e * share * g * s).to(both.dtype.element_ty), inside)
        tl.store(out + row * width + at, (g * s * u * share).to(both.dtype.element_ty), inside)
    if BACK:
        tl.store(by_shares + row, tl.sum(total, 0))


def _run_gate(both: Tensor, out: Tensor, shares: Tensor, activation: str, by: tuple[Tensor, Tensor] | None = None) -> None:
    """Run forward; or, if `by` is given, write the gradients of `both` and of the shares there from out's, and overwrite that with out."""
    run: Any = _gate_row[(len(out),)]
    by_both, by_shares = (both, shares) if by is None else by
    block = min(ELEMENTS_AT_ONCE, triton.next_power_of_2(out.shape[1]))
    run(both, out, by_both, shares, by_shares, out.shape[1], block, by is not None, GATES[activation])


def squares_of_gradients(gate_up: Tensor, down: Tensor) -> Tensor | None:
    """Return the leaf to give to `expert_product` as `squares`; None if the gradients are not whole tiles of their kernel."""
    tiles = [grouped_products.weight_tiles(weight.shape) for weight in (gate_up, down)]
    return torch.zeros(sum(tiles), device=gate_up.device, requires_grad=True) if all(tiles) else None


@torch.library.custom_op("meshwise::expert_product", mutates_args=())
def expert_product(
    rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ends: Tensor, squares: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """Return down (a(gate x) * up x) times its share for each row x, by the matrices of its expert; and the products in brackets.
    `squares`, if given, has no influence on the outputs. What the backward pass leaves as its gradient are the sums of squares of the
    tiles of both weights' gradients: autograd brings them where they are needed, also out of compiled and recomputed blocks."""
    both, inner = _gated_by_experts(rows, gate_up, shares, ends, activation)
    return torch._grouped_mm(inner, down.transpose(-2, -1), offs=ends), both


@expert_product.register_fake
def _(
    rows: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ends: Tensor, squares: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape[0], down.shape[1]), rows.new_empty(rows.shape[0], gate_up.shape[1])


def _gated_by_experts(rows: Tensor, gate_up: Tensor, shares: Tensor, ends: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the products of rows with gate and up of their experts side by side, and gated: by one kernel where its tiles fit."""
    if holds_large_tiles(rows.device) and grouped_products.fits_gated(gate_up):
        return grouped_products.gated_product_by_rows(rows, gate_up, shares, ends, GATES[activation])
    both = torch._grouped_mm(rows, gate_up.transpose(-2, -1), offs=ends)
    inner = rows.new_empty(len(rows), gate_up.shape[1] // 2)
    _run_gate(both, inner, shares, activation)
    return both, inner


def _by_experts(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows by the matrices (experts, inputs, outputs) of their experts, by the faster kernel where its tiles fit."""
    if holds_large_tiles(rows.device) and grouped_products.fits(weights):
        return grouped_products.product_by_rows(rows, weights, ends)
    return torch._grouped_mm(rows, weights, offs=ends)


def _by_weights(left: Tensor, right: Tensor, ends: Tensor, squared: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of the experts' matrices, and the sums of squares of its tiles if they are wanted."""
    if squared:
        return grouped_products.product_by_weights(left, right, ends)
    return torch._grouped_mm(left.transpose(-2, -1), right, offs=ends), left.new_empty(0, dtype=torch.float32)


@torch.library.custom_op("meshwise::expert_product_backward", mutates_args=())
def _expert_product_backward(
    by_out: Tensor, rows: Tensor, both: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ends: Tensor,
    squared: bool, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients with respect to rows, gate and up, down, and shares; and the sums of squares of the two in the middle."""
    by_out = by_out.contiguous()
    between = _by_experts(by_out, down, ends)
    by_both, by_shares = torch.empty_like(both), torch.empty_like(shares)
    _run_gate(both, between, shares, activation, (by_both, by_shares))
    by_down, of_down = _by_weights(by_out, between, ends, squared)
    by_gate_up, of_gate_up = _by_weights(by_both, rows, ends, squared)
    return _by_experts(by_both, gate_up, ends), by_gate_up, by_down, by_shares, torch.cat((of_gate_up, of_down))


@_expert_product_backward.register_fake
def _(
    by_out: Tensor, rows: Tensor, both: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, ends: Tensor,
    squared: bool, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    tiles = sum(grouped_products.weight_tiles(weight.shape) for weight in (gate_up, down)) if squared else 0
    return (
        rows.new_empty(rows.shape), gate_up.new_empty(gate_up.shape), down.new_empty(down.shape),
        shares.new_empty(shares.shape), shares.new_empty(tiles, dtype=torch.float32),
    )  # fmt: skip


def _expert_product_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    rows, gate_up, down, shares, ends, squares, ctx.activation = inputs
    ctx.squared = squares is not None
    ctx.save_for_backward(rows, output[1], gate_up, down, shares, ends)
    ctx.set_materialize_grads(False)


def _expert_product_gradients(ctx: Any, by_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *gradients, squares = _expert_product_backward(by_out, *ctx.saved_tensors, ctx.squared, ctx.activation)
    return *gradients, None, squares if ctx.squared else None, None


expert_product.register_autograd(_expert_product_gradients, setup_context=_expert_product_save)
