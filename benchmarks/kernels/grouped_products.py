"""Grouped products of OLMoE's experts on one GPU: our Triton kernels in several launches against torch's.

Prints TFLOP/s of each product and writes $OUT/grouped.json; run on the GPU machine.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from meshwise.workers.trainer.ops.experts import EXPERT_ROWS_MULTIPLE
from meshwise.workers.trainer.ops.grouped_products import Tile, gated_product_by_rows, product_by_rows, product_by_weights

TILES = [
    Tile(), Tile(flat=False), Tile(stages=4), Tile(128, 128, 64, 8, 4), Tile(128, 128, 64, 4, 4), Tile(256, 128, 64, 8, 3),
    Tile(128, 256, 64, 8, 4, False),
]  # fmt: skip
Run = Callable[[], torch.Tensor]
EXPERTS, CHOICES, HIDDEN, WIDTH = 64, 65536, 2048, 1024


def loads(kind: str) -> torch.Tensor:
    """Return the rows of each expert: all tokens choose the same eight experts, or each is chosen about as often."""
    if kind == "eight":
        found = torch.zeros(EXPERTS, dtype=torch.int64)
        found[::8] = CHOICES // 8
        return found
    return torch.bincount(torch.randint(EXPERTS, (CHOICES,), generator=torch.Generator().manual_seed(0)), minlength=EXPERTS)


def milliseconds(run: Run) -> float:
    timed: Any = triton.testing.do_bench
    return float(timed(run, warmup=15, rep=40, return_mode="median"))


class Inputs:
    """Rows and weights for one kind of load, and both ways of the six products: forward, rows' gradients and weights' gradients."""

    def __init__(self, kind: str) -> None:
        padded = (loads(kind) + EXPERT_ROWS_MULTIPLE - 1) // EXPERT_ROWS_MULTIPLE * EXPERT_ROWS_MULTIPLE
        self.ends, self.size = padded.cumsum(0).int().cuda(), CHOICES + EXPERTS * EXPERT_ROWS_MULTIPLE
        dice = torch.Generator("cuda").manual_seed(1)
        self.wide, self.narrow = (torch.randn(self.size, n, generator=dice, device="cuda").bfloat16() for n in (HIDDEN, WIDTH))
        self.gate_up = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=dice, device="cuda").bfloat16() * 0.02
        self.down = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=dice, device="cuda").bfloat16() * 0.02

    def theirs(self) -> dict[str, Run]:
        mm: Any = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
        ends = self.ends
        return {
            "gate_up": partial(mm, self.wide, self.gate_up.transpose(-2, -1), offs=ends),
            "down": partial(mm, self.narrow, self.down.transpose(-2, -1), offs=ends),
            "gate_up back": partial(mm, self.wide, self.gate_up, offs=ends),
            "down back": partial(mm, self.wide, self.down, offs=ends),
            "gate_up weights": partial(mm, self.wide.T, self.wide, offs=ends),
            "down weights": partial(mm, self.wide.T, self.narrow, offs=ends),
        }

    def ours(self, tile: Tile) -> dict[str, Run]:
        shares = self.wide.new_ones(self.size, dtype=torch.float32)
        return {
            "gate_up": lambda: gated_product_by_rows(self.wide, self.gate_up, shares, self.ends, 0, tile)[0],
            "gate_up back": partial(product_by_rows, self.wide, self.gate_up, self.ends, tile),
            "down back": partial(product_by_rows, self.wide, self.down, self.ends, tile),
            "gate_up weights": lambda: product_by_weights(self.wide, self.wide, self.ends, tile)[0],
            "down weights": lambda: product_by_weights(self.wide, self.narrow, self.ends, tile)[0],
        }


def rate(name: str, run: Run) -> float:
    """Return TFLOP/s."""
    return (2 if name.startswith("gate_up") else 1) * 2 * CHOICES * HIDDEN * WIDTH / milliseconds(run) / 1e9


def judged(name: str, run: Run, right: torch.Tensor, last: int) -> float | str:
    """Return TFLOP/s, or why there are none."""
    try:
        far = float((run()[:last].float() - right[:last].float()).norm() / right[:last].float().norm())
        return rate(name, run) if far < 0.01 else f"wrong by {far:.3g}"
    except Exception as error:  # a launch that does not fit is one result among others
        return f"{type(error).__name__}: {str(error)[:80]}"


def main() -> None:
    results: dict[str, dict[str, float | str]] = {}
    for kind in ("eight", "even"):
        inputs = Inputs(kind)
        theirs = inputs.theirs()
        for name, run in theirs.items():
            results[f"{kind}, {name}"] = {"torch": rate(name, run)}
        for tile in TILES if kind == "eight" else TILES[:3]:
            for name, run in inputs.ours(tile).items():
                label = "x".join(map(str, tile))
                results[f"{kind}, {name}"][label] = judged(name, run, theirs[name](), int(inputs.ends[-1]))
        Path(os.environ.get("OUT", "."), "grouped.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    for name, found in results.items():
        cells = ", ".join(f"{key} {value:.0f}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items())
        print(f"{name}: {cells}")


if __name__ == "__main__":
    main()
