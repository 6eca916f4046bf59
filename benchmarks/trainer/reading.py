"""Time to read a batch of 8 x 2048 tokens: inline, and the wait that remains in a loop of 30 ms steps that reads ahead.

Needs torch and the standard library only, as a worker: `PYTHONPATH=src python benchmarks/trainer/reading.py [cuda]`.
"""

import random
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from meshwise.workers.trainer.contract.settings import Layout, Settings, TokenFile
from meshwise.workers.trainer.data.batches import Batches
from meshwise.workers.trainer.data.samples import local_batch

STEPS = 60
STEP = 0.030
"""Seconds of a step of Llama 125M on an H200 at 546,000 tok/s."""


class SingleRank:
    """The only rank of a run on one device."""

    replica = 0

    def at(self, axis: str) -> int:
        return 0


def timed(settings: Settings) -> tuple[float, float]:
    """Return the median milliseconds of a batch read inline, and of the wait for a batch that was read ahead."""
    rank = cast(Any, SingleRank())
    inline: list[float] = []
    for step in range(STEPS):
        began = time.perf_counter()
        local_batch(settings, rank, step)
        inline.append(time.perf_counter() - began)
    waits: list[float] = []
    with Batches(settings, rank) as batches:
        for _ in range(STEPS):
            began = time.perf_counter()
            tokens, _ = next(batches)
            if settings.device == "cuda":
                tokens = tokens.to("cuda", non_blocking=True)
            waits.append(time.perf_counter() - began)
            time.sleep(STEP)
    return 1e3 * statistics.median(inline), 1e3 * statistics.median(waits)


def main() -> None:
    device = "cuda" if "cuda" in sys.argv[1:] else "cpu"
    dice = random.Random(0)
    model = {"model_type": "llama", "vocab_size": 50257}
    with tempfile.TemporaryDirectory() as folder:
        path, count = Path(folder, "a.bin"), 1 << 24
        path.write_bytes(struct.pack("<65536H", *(dice.randrange(50257) for _ in range(65536))) * (count >> 16))
        file = TokenFile(str(path), 0, count, 2)
        print(f"{'8 x 2048 tokens':<16} {'inline':>10} {'read ahead':>12}   torch {torch.__version__}, {device}")
        for name, files in (("embedded text", ()), ("token file", (file,))):
            settings = Settings(
                name=name, model=model, layout=Layout(), batch=8, seq=2048, steps=STEPS, data=files, device=device
            )
            inline, waits = timed(settings)
            print(f"{name:<16} {inline:>7.3f} ms {waits:>9.3f} ms", flush=True)


if __name__ == "__main__":
    main()
