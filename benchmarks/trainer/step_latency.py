"""Seconds of a step of gloo's rings between the hosts: rank 0 writes the median of small all-gathers over their steps, as a probe does.

torchrun -m step_latency OUT
"""

import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BYTES, REPEATS = 1024, 20


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    whole = torch.zeros(BYTES // 4 // world * world)
    parts = list(whole.chunk(world))
    seconds: list[float] = []
    for _ in range(REPEATS):
        dist.barrier()
        began = time.perf_counter()
        dist.all_gather(parts, parts[dist.get_rank()].clone())
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(str(statistics.median(seconds) / (world - 1)), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
