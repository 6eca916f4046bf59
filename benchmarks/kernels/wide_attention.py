"""Attention of wide heads with soft caps, by tiles: `python benchmarks/kernels/wide_attention.py` on a GPU.

Prints milliseconds of each kernel at Gemma 2 2B's and 9B's shapes for several tiles, beside FlexAttention and cuBLAS, and the distance
from FlexAttention's results. The table is written to $OUT/wide_attention.json too.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from meshwise.workers.trainer.ops import attention, wide_attention
from meshwise.workers.trainer.ops.attention import UNSHARDED, Rule, attend, make_scores
from meshwise.workers.trainer.ops.wide_attention import Tile, Tiles, run_backward, run_forward

SHAPES = {"gemma-2-2b": (4, 8, 4, 2048, 256), "gemma-2-9b": (2, 16, 8, 4096, 256)}
CAP, FACTOR = 50.0, 1 / 16
FORWARD = [Tile(128, 64, 0, 8, 2), Tile(128, 32, 0, 8, 3), Tile(64, 32, 0, 4, 2), Tile(64, 64, 0, 4, 2), Tile(128, 32, 0, 8, 2)]
SCORES = [
    Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 128, 64, 4, 3), Tile(128, 64, 64, 4, 3), Tile(64, 64, 64, 4, 2),
    Tile(64, 64, 64, 4, 4), Tile(128, 128, 128, 8, 2), Tile(64, 256, 64, 8, 3), Tile(128, 64, 64, 8, 3),
]  # fmt: skip
PRODUCTS = [Tile(128, 0, 64, 8, 3), Tile(128, 0, 32, 8, 6), Tile(64, 0, 64, 4, 2), Tile(128, 0, 128, 8, 2)]
"""Tiles tried beside the chosen ones."""


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


def case(shape: str, table: list[dict[str, Any]], wide: bool) -> None:
    batch, heads, shared, seq, size = SHAPES[shape]
    dice = torch.Generator("cuda").manual_seed(0)
    joined = torch.randn(batch, seq, heads + 2 * shared, size, generator=dice, device="cuda").bfloat16()
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in joined.split([heads, shared, shared], 2))
    rule = Rule(FACTOR, cap=CAP)
    scores = make_scores(rule, UNSHARDED, seq, q.device, size)._replace(plain=False)
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
    for tile in FORWARD if wide else FORWARD[:1]:
        timed(table, shape, f"forward {tile}", lambda tile=tile: run_forward(a, b, c, FACTOR, CAP, tile))
    every = [chosen]
    every += [replace(chosen, scores=tile) for tile in SCORES if wide] + [
        replace(chosen, products=tile) for tile in PRODUCTS if wide
    ]
    for tiles in every:
        name = f"backward {tiles.scores} {tiles.products}".replace("Tile", "")
        timed(table, shape, name, lambda tiles=tiles: run_backward(grad, a, b, c, out, sums, FACTOR, CAP, tiles))
    left = torch.randn(batch * shared, seq, heads // shared * seq, device="cuda").bfloat16()
    rows = torch.randn(batch * shared, heads // shared * seq, size, device="cuda").bfloat16()
    timed(table, shape, "cuBLAS, all keys by all queries", lambda: left @ rows)


def main() -> None:
    table: list[dict[str, Any]] = []
    for shape in SHAPES:
        case(shape, table, shape == "gemma-2-2b")
        (Path(os.environ.get("OUT", ".")) / "wide_attention.json").write_text(json.dumps(table), encoding="utf-8")
        torch._dynamo.reset()
        attention._compiled.clear()  # pyright: ignore[reportPrivateUsage]
    print(f"{wide_attention.AT_ONCE / 2**30:.1f} GiB of scores at a time")


if __name__ == "__main__":
    main()
