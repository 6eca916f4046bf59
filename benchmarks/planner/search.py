"""Speed of the search: layouts evaluated per second on one core, a whole question from process start to table, and its memory.

Peers, same kind of machine, one core (their own searches): calculon 143 layouts/s, SimuMax 4.8, llm-analysis 1,633 (no search).
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # one core is one core

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from meshwise.cost.train.step import evaluate
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import BLOCK_SIZE, blocks, search

BLOOM = TrainAsk(model="bloom-176b", on="jean-zay:48", batch=2048, seq=2048, framework="torchtitan")
LARGE_ASK = TrainAsk(model="llama-3.1-405b", on="2048x8xh100-sxm", batch=2048, seq=8192, framework="torchtitan")
EXPERTS = TrainAsk(model="deepseek-v3", on="256x8xh800-sxm", batch=15360, seq=4096, framework="megatron")
POD = TrainAsk(model="llama-3-70b", on="tpu-v5p:16x20x28", batch=1024, seq=4096, framework="maxtext")
EVALUATED = {"BLOOM on 384 GPUs": BLOOM, "405B": LARGE_ASK, "DeepSeek-V3": EXPERTS, "70B on a TPU pod": POD}
COMMAND = [str(Path(sys.executable).parent / "meshwise"), "plan", "bloom-176b", "--on", "jean-zay:48", "--batch", "2048x2048"]
LARGE = [*COMMAND[:2], "llama-3-405b", "--on", "2048x8xh100-sxm", "--batch", "16M", "--seq", "8k", "--framework", "torchtitan"]


def layouts_per_second(ask: TrainAsk) -> float:
    """Return layouts per second through the whole cost model, time and memory: best of 7 runs of about 300,000 layouts."""
    question, block, _ = next(iter(blocks(lookup.question(ask), {}, (), {})))
    repeats = max(1, 300_000 // len(block))
    best = 0.0
    for _ in range(7):
        start = time.process_time()
        for _ in range(repeats):
            evaluate(question, block)
        best = max(best, repeats * len(block) / (time.process_time() - start))
    return best


def searched_per_second(ask: TrainAsk) -> float:
    """Return layouts per second of a whole search: enumeration, rules, memory of all, time of those that fit. Best of 5."""
    question = lookup.question(ask)
    best = 0.0
    for _ in range(5):
        start = time.process_time()
        result = search(question, top=10)
        best = max(best, result.evaluated / (time.process_time() - start))
    return best


def run(command: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak megabytes of a command."""
    program = "import resource,subprocess,sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    start = time.perf_counter()
    out = subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True, text=True).stdout
    return time.perf_counter() - start, float(out)


def main() -> None:
    large = searched_per_second(LARGE_ASK)
    rates = {name: layouts_per_second(ask) for name, ask in EVALUATED.items()}
    walls, sizes = zip(*(run(COMMAND) for _ in range(5)), strict=True)
    large_wall, large_size = run(LARGE)
    print(
        f"blocks of up to {BLOCK_SIZE:,} layouts; peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )
    print(f"{'':58} measured        must        aim")
    print(f"{'layouts per second, one core, a whole search (405B)':58} {large:12,.0f} {1_000_000:11,} {5_000_000:10,}")
    for name, rate in rates.items():
        print(f"{f'  time and memory of every layout, {name}':58} {rate:12,.0f} {1_000_000:11,} {5_000_000:10,}")
    print(f"{'BLOOM on 384 GPUs, process start to table, s':58} {statistics.median(walls):12.2f} {2:11} {0.5:10}")
    print(f"{'  peak memory, MB':58} {max(sizes):12.0f} {500:11} {200:10}")
    print(f"{'Llama 3 405B on 16,384 H100, process start to table, s':58} {large_wall:12.2f}")
    print(f"{'  peak memory, MB':58} {large_size:12.0f} {500:11} {200:10}")


if __name__ == "__main__":
    main()
