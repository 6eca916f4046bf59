"""Time what-if questions on one core: `--vary nodes=8..512` and `--cheapest` from process start, and a single point of the former."""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # one core is one core

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from meshwise.plan.ask import TrainAsk
from meshwise.plan.axes import TRAIN_AXES
from meshwise.plan.train.vary import answer_point
from meshwise.plan.vary import parse, variants

ASK = TrainAsk(model="llama-3-70b", on="h100-sxm", batch=512, seq=8192, framework="megatron", tokens=15e12)
PLAN = [str(Path(sys.executable).parent / "meshwise"), "plan", "llama-3-70b", "--batch", "4M", "--seq", "8k", "--tokens", "15T"]
NODES = [*PLAN, "--on", "h100-sxm", "--vary", "nodes=8..512"]
CHEAPEST = [*PLAN, "--within", "90d", "--cheapest"]


def timed(command: list[str]) -> tuple[float, float]:
    """Return wall seconds and CPU seconds; other work on a shared machine lengthens only the former."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def points() -> list[float]:
    """Return the CPU seconds of each point, without its reason."""
    seconds: list[float] = []
    for variant in variants(ASK, parse(["nodes=8..512"], TRAIN_AXES, ASK), TRAIN_AXES):
        start = time.process_time()
        answer_point(variant)
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    each = [statistics.median(times) for times in zip(*(points() for _ in range(5)), strict=True)]
    print(f"{'':58} {'wall':>8} {'CPU':>8} {'must':>8}")
    print(f"{'slowest point of --vary, s':58} {'':8} {max(each):8.3f} {0.1:8}")
    for label, command, must in (
        ("--vary nodes=8..512, Llama 3 70B, s", NODES, "2"),
        ("--cheapest --within 90d over three chips, s", CHEAPEST, ""),
    ):
        walls, cores = zip(*(timed(command) for _ in range(5)), strict=True)
        print(f"{label:58} {statistics.median(walls):8.2f} {statistics.median(cores):8.2f} {must:>8}")


if __name__ == "__main__":
    main()
