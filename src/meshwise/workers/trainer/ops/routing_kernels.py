"""The choices of experts on a GPU: the best ones of each token, counted, and arranged by expert, each by one or two launches.

A choice is one expert of one token. torch.compile sees opaque operations with known shapes, and a CUDA graph may hold them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportGeneralTypeIssues=false
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # choices of one program: 65,536 of them occupy nearly all multiprocessors of an H200
PAIRS_AT_ONCE = 4096  # pairs of choice (or token) and expert that a program compares at a time


@triton.jit
def _choose(scores, out, tokens, count, CHOSEN: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    """Write the experts with the best scores of each token, the best first; of equal ones, the first."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, EXPERTS)
    inside = (row < tokens)[:, None] & (lane < count)[None, :]
    bits = tl.load(scores + row[:, None] * count + lane[None, :], inside, other=0.0).to(tl.int32, bitcast=True)
    # whole numbers in the order of the floats; a NaN is the best, and no score is as small as what was chosen before
    taken = -(2**31)
    order = tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), taken)
    for choice in tl.static_range(CHOSEN):
        best = tl.argmax(order, 1)
        tl.store(out + row * CHOSEN + choice, best.to(tl.int64), row < tokens)
        order = tl.where(lane[None, :] == best[:, None], taken, order)


@torch.library.custom_op("meshwise::best_experts", mutates_args=())
def best_experts(scores: Tensor, chosen: int) -> Tensor:
    """Return the experts (tokens, chosen) with the best scores (tokens, experts)."""
    out = torch.empty(len(scores), chosen, dtype=torch.int64, device=scores.device)
    wide = triton.next_power_of_2(scores.shape[1])
    rows = max(1, PAIRS_AT_ONCE // 2 // wide)
    run: Any = _choose[(triton.cdiv(len(scores), rows),)]
    run(scores.contiguous(), out, len(scores), scores.shape[1], chosen, wide, rows)
    return out


@best_experts.register_fake
def _(scores: Tensor, chosen: int) -> Tensor:
    return scores.new_empty(scores.shape[0], chosen, dtype=torch.int64)


@triton.jit
def _count(experts, counts, choices, size, each, count, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):  # noqa: N803
    """Count the choices of each expert in one block of a group of `each`; write the number of choices to `size` elements of `choices`."""
    block, group = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, BLOCK, ROWS):
        at = block * BLOCK + first + tl.arange(0, ROWS)
        expert = tl.load(experts + group * each + at, at < each, other=-1)
        total += tl.sum((expert[:, None] == lane[None, :]).to(tl.int32), 0)
    tl.store(counts + (group * tl.num_programs(0) + block) * count + lane, total, lane < count)
    for first in range(block * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(choices + at, tl.zeros((BLOCK,), tl.int64) + each, at < size)


@triton.jit
def _place(
    experts, counts, places, choices, ends, number, count,
    ALIGNED: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Give every choice of one block its row: after the choices of its expert in earlier blocks, and before it in this one."""
    block, blocks = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, EXPERTS)
    loads = tl.zeros((EXPERTS,), tl.int32)
    earlier = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, blocks, ROWS):
        other = first + tl.arange(0, ROWS)
        inside = (other < blocks)[:, None] & (lane < count)[None, :]
        found = tl.load(counts + other[:, None] * count + lane[None, :], inside, other=0)
        loads += tl.sum(found, 0)
        earlier += tl.sum(tl.where((other < block)[:, None], found, 0), 0)
    padded = (loads + ALIGNED - 1) // ALIGNED * ALIGNED
    stops = tl.cumsum(padded, 0)
    if block == 0:
        tl.store(ends + lane, stops, lane < count)
    free = stops - padded + earlier
    for first in range(0, BLOCK, ROWS):
        at = block * BLOCK + first + tl.arange(0, ROWS)
        expert = tl.load(experts + at, at < number, other=-1)
        mine = (expert[:, None] == lane[None, :]).to(tl.int32)
        place = tl.sum(mine * (free[None, :] + tl.cumsum(mine, 0) - mine), 1).to(tl.int64)
        tl.store(places + at, place, at < number)
        tl.store(choices + place, at.to(tl.int64), at < number)
        free += tl.sum(mine, 0)


def _run_count(experts: Tensor, groups: int, count: int, choices: Tensor | None) -> Tensor:
    """Return the choices of each expert (groups, blocks, experts); write their number to all of `choices`, if given."""
    each = experts.numel() // groups
    counts = torch.empty(groups, _blocks(each), count, dtype=torch.int32, device=experts.device)
    run: Any = _count[(counts.shape[1], groups)]
    size, filled = (0, experts) if choices is None else (len(choices), choices)
    run(experts, counts, filled, size, each, count, *_sizes(count))
    return counts


def _blocks(number: int) -> int:
    """Return the number of blocks; at least one, which writes zero counts."""
    return max(1, -(-number // BLOCK))


def _sizes(count: int) -> tuple[int, int, int]:
    """Return the power of 2 that holds all experts, the choices of a block, and those that are compared at a time."""
    wide = triton.next_power_of_2(count)
    return wide, BLOCK, min(BLOCK, max(16, PAIRS_AT_ONCE // wide))


@torch.library.custom_op("meshwise::count_choices", mutates_args=())
def count_choices(experts: Tensor, count: int) -> Tensor:
    """Return the choices of each expert by block (groups, blocks, experts), given the expert of each choice (groups, choices)."""
    return _run_count(experts.contiguous(), len(experts), count, None)


@count_choices.register_fake
def _(experts: Tensor, count: int) -> Tensor:
    return experts.new_empty(experts.shape[0], _blocks(experts.shape[1]), count, dtype=torch.int32)


@torch.library.custom_op("meshwise::arrange_choices", mutates_args=())
def arrange_choices(experts: Tensor, count: int, size: int, aligned: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row of each choice, the choice in each of `size` rows, and the end of each expert's rows, a multiple of `aligned`. A
    counting sort: choices of one expert stay in order."""
    experts = experts.contiguous()
    places, choices, ends = _arranged(experts, count, size)
    counts = _run_count(experts, 1, count, choices)
    run: Any = _place[(counts.shape[1],)]
    run(experts, counts, places, choices, ends, len(experts), count, aligned, *_sizes(count))
    return places, choices, ends


@arrange_choices.register_fake
def _(experts: Tensor, count: int, size: int, aligned: int) -> tuple[Tensor, Tensor, Tensor]:
    return _arranged(experts, count, size)


def _arranged(experts: Tensor, count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        experts.new_empty(experts.shape[0], dtype=torch.int64),
        experts.new_empty(size, dtype=torch.int64),
        experts.new_empty(count, dtype=torch.int32),
    )
