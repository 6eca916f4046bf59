"""FlexAttention's backward kernel with several launches, for heads of 256 with soft caps, on a GPU.

python benchmarks/kernels/flex_tiles.py

Prints milliseconds of forward and backward at Gemma 2 2B's shapes, and writes the fastest to $OUT/flex.json.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
import triton.testing

from meshwise.workers.trainer.ops import attention
from meshwise.workers.trainer.ops.attention import UNSHARDED, Rule, attend, make_scores

BATCH, HEADS, SHARED, SEQ, SIZE = 4, 8, 4, 2048, 256


def tiles(m1: int, n1: int, m2: int, n2: int, warps: int, stages: int) -> dict[str, int]:
    blocks = {"bwd_BLOCK_M1": m1, "bwd_BLOCK_N1": n1, "bwd_BLOCK_M2": m2, "bwd_BLOCK_N2": n2}
    return blocks | {"bwd_num_warps": warps, "bwd_num_stages": stages}


CASES: dict[str, dict[str, int]] = {
    "torch's own": {},
    "64 64, 8 warps, 1 stage": tiles(64, 64, 64, 64, 8, 1),
    "64 64, 8 warps, 2 stages": tiles(64, 64, 64, 64, 8, 2),
    "32 64, 8 warps, 1 stage": tiles(32, 64, 64, 32, 8, 1),
    "32 64, 8 warps, 2 stages": tiles(32, 64, 64, 32, 8, 2),
    "32 64, 4 warps, 2 stages": tiles(32, 64, 64, 32, 4, 2),
    "64 32, 4 warps, 2 stages": tiles(64, 32, 32, 64, 4, 2),
    "32 32, 4 warps, 2 stages": tiles(32, 32, 32, 32, 4, 2),
    "32 128, 8 warps, 1 stage": tiles(32, 128, 128, 32, 8, 1),
}


def main() -> None:
    dice = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, heads, SEQ, SIZE, generator=dice, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for heads in (HEADS, SHARED, SHARED)
    )
    rule = Rule(SIZE**-0.5, cap=50.0)
    scores = make_scores(rule, UNSHARDED, SEQ, q.device, SIZE)
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        attention.WIDE_TILES = case
        torch._dynamo.reset()
        attention._compiled.clear()  # pyright: ignore[reportPrivateUsage]
        try:
            y = attend(q, k, v, scores, rule, UNSHARDED, False)
            grad = torch.randn_like(y)
            run = lambda y=y, grad=grad: torch.autograd.grad(y, (q, k, v), grad, retain_graph=True)  # noqa: E731
            ms = triton.testing.do_bench(run, return_mode="median")
            found[name] = {"ms": ms, "tiles": case}
            print(f"{name:<28}{ms:>8.3f} ms", flush=True)
            best = min(found.values(), key=lambda row: row["ms"])
            (Path(os.environ.get("OUT", ".")) / "flex.json").write_text(json.dumps(best), encoding="utf-8")
        except Exception as error:
            print(f"{name:<28} failed: {str(error).splitlines()[0][:100]}", flush=True)


if __name__ == "__main__":
    main()
