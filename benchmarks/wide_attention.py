"""Attention of wide heads with soft caps, by tiles: `python benchmarks/wide_attention.py` on a GPU.

Prints milliseconds of each kernel at Gemma 2 2B's and 9B's shapes for several tiles, beside FlexAttention and cuBLAS, and the distance
from FlexAttention's results. The table is written to $OUT/gemma.json too.
"""

# ruff: noqa: N803
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from meshwise.workers.trainer.ops import attention, wide_attention
from meshwise.workers.trainer.ops.attention import UNSHARDED, Rule, attend, make_scores
from meshwise.workers.trainer.ops.wide_attention import Tile, Tiles, run_backward, run_forward

SHAPES = {"gemma-2-2b": (4, 8, 4, 2048, 256), "gemma-2-9b": (2, 16, 8, 4096, 256)}
CAP, FACTOR = 50.0, 1 / 16
FORWARD = [Tile(128, 64, 0, 8, 2), Tile(128, 32, 0, 8, 3), Tile(64, 32, 0, 4, 2), Tile(64, 64, 0, 4, 2), Tile(128, 32, 0, 8, 2)]
SCORES = [Tile(64, 64, 64, 4, 3), Tile(64, 64, 64, 4, 2), Tile(64, 64, 64, 4, 4), Tile(128, 64, 64, 8, 3)]
PRODUCTS = [
    Tile(128, 0, 64, 8, 4),
    Tile(128, 0, 64, 8, 3),
    Tile(128, 0, 32, 8, 6),
    Tile(64, 0, 64, 4, 2),
    Tile(128, 0, 128, 8, 2),
]


VARIANTS = {
    "joined": [Tile(64, 64, 64, 4, 2), Tile(64, 64, 64, 4, 3), Tile(128, 64, 64, 8, 2)],
    "lasting": [Tile(128, 128, 64, 8, 3), Tile(64, 64, 64, 4, 3), Tile(64, 64, 64, 4, 2)],
    "loop": [Tile(128, 32, 256, 8, 2), Tile(64, 64, 256, 4, 1)],
}
"""Other kernels for the scores, and their tiles."""


@triton.jit
def finish(
    raw, outer, sums, deltas, softmax, by_scores, mine, first, key, seq, bend, cap, slope, ROWS: tl.constexpr, KEYS: tl.constexpr
):
    row = first + tl.arange(0, ROWS)
    total = cap - tl.load(sums + mine * seq + row, row < seq, other=float("inf"))
    delta = tl.load(deltas + mine * seq + row, row < seq, other=0.0)
    root = tl.rsqrt(1 + tl.exp2(raw * bend))
    below = root * root
    power = tl.exp2(total[:, None] - 2 * cap * below)
    power = tl.where(row[:, None] >= (key + tl.arange(0, KEYS))[None, :], power, 0.0)
    grad = power * (outer - delta[:, None]) * (below - below * below) * slope
    softmax.store([mine, first, key], power.to(softmax.dtype).reshape(1, ROWS, KEYS))
    by_scores.store([mine, first, key], grad.to(by_scores.dtype).reshape(1, ROWS, KEYS))


@triton.jit
def scores_by_loop(
    q, by_out, k, v, sums, deltas, softmax, by_scores, seq, heads, count, bend, cap, slope,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute what wide_scores does, with a tile of queries that stays while keys pass by."""
    first, mine = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS, tl.program_id(1)
    batch, head = mine // heads, mine % heads
    queries = q.load([batch, head, first, 0]).reshape(ROWS, SIZE)
    grads = by_out.load([batch, head, first, 0]).reshape(ROWS, SIZE)
    for key in range(0, first + ROWS, KEYS):
        raw = tl.dot(queries, k.load([batch, head // GROUP, key, 0]).reshape(KEYS, SIZE).T)
        outer = tl.dot(grads, v.load([batch, head // GROUP, key, 0]).reshape(KEYS, SIZE).T)
        finish(raw, outer, sums, deltas, softmax, by_scores, mine, first, key, seq, bend, cap, slope, ROWS, KEYS)


@triton.jit
def scores_joined(
    q, by_out, k, v, sums, deltas, softmax, by_scores, seq, heads, count, bend, cap, slope,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute what wide_scores does, both products in one loop."""
    key, first, mine = tl.program_id(0) * KEYS, tl.program_id(1) * ROWS, tl.program_id(2)
    if key < first + ROWS:
        batch, head = mine // heads, mine % heads
        raw, outer = tl.zeros((ROWS, KEYS), tl.float32), tl.zeros((ROWS, KEYS), tl.float32)
        for at in range(0, SIZE, STEP):
            queries = q.load([batch, head, first, at]).reshape(ROWS, STEP)
            raw = tl.dot(queries, k.load([batch, head // GROUP, key, at]).reshape(KEYS, STEP).T, raw)
            grads = by_out.load([batch, head, first, at]).reshape(ROWS, STEP)
            outer = tl.dot(grads, v.load([batch, head // GROUP, key, at]).reshape(KEYS, STEP).T, outer)
        finish(raw, outer, sums, deltas, softmax, by_scores, mine, first, key, seq, bend, cap, slope, ROWS, KEYS)


@triton.jit
def scores_lasting(
    q, by_out, k, v, sums, deltas, softmax, by_scores, seq, heads, count, bend, cap, slope,
    GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute what wide_scores does; each program computes tiles one after the other, and fetches the next while it finishes one."""
    side = tl.cdiv(seq, ROWS)
    each = side // 2 * (side + 1)  # a row and its mirror image have side + 1 tiles of keys
    for tile in tl.range(tl.program_id(0), each * count, tl.num_programs(0), flatten=True):
        mine = tile // each
        low, at_row = tile % each // (side + 1), tile % each % (side + 1)
        high = at_row < side - low
        first = tl.where(high, side - 1 - low, low) * ROWS
        key = tl.where(high, at_row, at_row - side + low) * KEYS
        batch, head = mine // heads, mine % heads
        raw, outer = tl.zeros((ROWS, KEYS), tl.float32), tl.zeros((ROWS, KEYS), tl.float32)
        for at in range(0, SIZE, STEP):
            queries = q.load([batch, head, first, at]).reshape(ROWS, STEP)
            raw = tl.dot(queries, k.load([batch, head // GROUP, key, at]).reshape(KEYS, STEP).T, raw)
            grads = by_out.load([batch, head, first, at]).reshape(ROWS, STEP)
            outer = tl.dot(grads, v.load([batch, head // GROUP, key, at]).reshape(KEYS, STEP).T, outer)
        finish(raw, outer, sums, deltas, softmax, by_scores, mine, first, key, seq, bend, cap, slope, ROWS, KEYS)


def kernels(run: Callable[[], Any], times: int = 6) -> dict[str, float]:
    """Return milliseconds per call of each kernel."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    return {row.key[:60]: row.self_device_time_total / 1e3 / times for row in seen.key_averages() if row.self_device_time_total}


def timed(table: list[dict[str, Any]], shape: str, name: str, run: Callable[[], Any]) -> None:
    began = time.perf_counter()
    try:
        found = kernels(run)
    except Exception as error:
        found = {}
        print(f"{shape:<12}{name:<46} failed: {str(error).splitlines()[0][:90]}", flush=True)
    for kernel, ms in found.items():
        print(f"{shape:<12}{name:<46}{kernel:<34}{ms:>8.4f} ms", flush=True)
    table.append({"shape": shape, "case": name, "ms": found, "took": round(time.perf_counter() - began, 1)})


def variants(shape: str, table: list[dict[str, Any]], q: Any, k: Any, v: Any, by_out: Any, sums: Any) -> None:
    batch, heads, shared, seq, size = SHAPES[shape]
    softmax, by_scores = (torch.zeros(batch * heads, seq, seq, device="cuda", dtype=q.dtype) for _ in range(2))
    numbers = wide_attention._numbers(FACTOR, CAP)  # pyright: ignore[reportPrivateUsage]
    of_heads, of_tiles = wide_attention._heads, wide_attention._tiles_of  # pyright: ignore[reportPrivateUsage]
    for name, tile in [(name, tile) for name, tiles in VARIANTS.items() for tile in tiles]:
        rows, keys = triton.cdiv(seq, tile.rows), triton.cdiv(seq, tile.columns)
        if name == "loop":
            run: Any = scores_by_loop[(rows, batch * heads)]
        elif name == "joined":
            run = scores_joined[(keys, rows, batch * heads)]
        else:
            held = 4 * (tile.stages * tile.step * (tile.rows + tile.columns) + tile.rows * tile.columns)
            run = scores_lasting[(132 * (232448 // held),)]
        given = [of_heads(x, tile.rows, tile.step) for x in (q, by_out)] + [of_heads(x, tile.columns, tile.step) for x in (k, v)]
        made = [of_tiles(x, tile.rows, tile.columns) for x in (softmax, by_scores)]
        rest = (seq, heads, batch * heads, *numbers, 4 * FACTOR, heads // shared, tile.rows, tile.columns, size, tile.step)
        softmax.zero_()
        call = lambda run=run, given=given, made=made, rest=rest, tile=tile: run(*given, sums, sums, *made, *rest, **tile.launch)  # noqa: E731
        timed(table, shape, f"{name} {tile}", call)
        print(f"rows sum to {softmax.float().sum(-1).mean().item():.5f}", flush=True)


def case(shape: str, table: list[dict[str, Any]], wide: bool, brief: bool) -> None:
    batch, heads, shared, seq, size = SHAPES[shape]
    dice = torch.Generator("cuda").manual_seed(0)
    joined = torch.randn(batch, seq, heads + 2 * shared, size, generator=dice, device="cuda").bfloat16()
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in joined.split([heads, shared, shared], 2))
    rule = Rule(FACTOR, cap=CAP)
    if brief:
        a, b, c = (x.detach() for x in (q, k, v))
        out, sums = run_forward(a, b, c, FACTOR, CAP, Tiles().forward)
        for tile in SCORES:
            tiles = Tiles(scores=tile)
            timed(table, shape, f"backward {tile}", lambda tiles=tiles: run_backward(out, a, b, c, out, sums, FACTOR, CAP, tiles))
        variants(shape, table, a, b, c, out, sums)
        return
    scores = make_scores(rule, UNSHARDED, seq, q.device, size)._replace(causal=False)
    right = attend(q, k, v, scores, rule, UNSHARDED, False)
    grad = torch.randn(right.shape, generator=dice, device="cuda").bfloat16()
    expected = right, *torch.autograd.grad(right, (q, k, v), grad, retain_graph=True)
    timed(table, shape, "FlexAttention backward", lambda: torch.autograd.grad(right, (q, k, v), grad, retain_graph=True))
    a, b, c = (x.detach() for x in (q, k, v))
    with torch.no_grad():
        timed(table, shape, "FlexAttention forward", lambda: attend(a, b, c, scores, rule, UNSHARDED, False))
    chosen = Tiles()
    out, sums = run_forward(a, b, c, FACTOR, CAP, chosen.forward)
    found = out, *run_backward(grad, a, b, c, out, sums, FACTOR, CAP, chosen)
    far = [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(found, expected, strict=True)]
    print(f"{shape}: out, by_q, by_k, by_v are {', '.join(f'{x:.2e}' for x in far)} from FlexAttention's", flush=True)
    for tile in FORWARD[:1]:
        timed(table, shape, f"forward {tile}", lambda tile=tile: run_forward(a, b, c, FACTOR, CAP, tile))
    every = [replace(chosen, scores=tile) for tile in SCORES]
    for tiles in every:
        name = f"backward {tiles.scores} {tiles.products}".replace("Tile", "")
        timed(table, shape, name, lambda tiles=tiles: run_backward(grad, a, b, c, out, sums, FACTOR, CAP, tiles))
    if wide:
        variants(shape, table, a, b, c, grad, sums)
    left = torch.randn(batch * shared, seq, heads // shared * seq, device="cuda").bfloat16()
    rows = torch.randn(batch * shared, heads // shared * seq, size, device="cuda").bfloat16()
    timed(table, shape, "cuBLAS, all keys by all queries", lambda: left @ rows)


def main() -> None:
    table: list[dict[str, Any]] = []
    for shape in list(SHAPES)[:1] if "--scores" in sys.argv else SHAPES:
        case(shape, table, shape == "gemma-2-2b", "--scores" in sys.argv)
        (Path(os.environ.get("OUT", ".")) / "gemma.json").write_text(json.dumps(table), encoding="utf-8")
        torch._dynamo.reset()
        attention._compiled.clear()  # pyright: ignore[reportPrivateUsage]
    print(f"{wide_attention.AT_ONCE / 2**30:.1f} GiB of scores at a time")


if __name__ == "__main__":
    main()
