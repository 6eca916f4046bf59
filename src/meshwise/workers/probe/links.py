"""Links between devices: collectives over message and group sizes, and point-to-point messages."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from meshwise.workers.probe.clock import MAX_REPEATS, MIN_REPEATS, Clock, Timing
from meshwise.workers.probe.rows import Row, row

ALL_TO_ALL = "all-to-all"
SIZES = {"cuda": (2**26, 2**10, 2**22, 2**16, 2**28, 2**13, 2**19), "cpu": (2**20, 2**10, 2**16, 2**22, 2**13, 2**24)}
"""Bytes of the whole array, ordered so that the first two give a bandwidth and a latency."""


def group_sizes(world: int, per_node: int) -> list[tuple[int, int]]:
    """Return the group sizes and strides to try: 2, 4, ... neighbouring ranks, all of a node, all ranks, and one rank per node."""
    near = [size for size in (2, 4, 8, 16) if size < world] + [world]
    groups = [(size, 1) for size in dict.fromkeys([world, min(world, per_node), *near]) if size > 1]
    nodes = world // per_node
    return [*groups, *([(nodes, per_node)] if nodes > 1 and per_node > 1 else [])]


def collectives(clock: Clock, stop: float, *, to_all: bool = False) -> Iterator[Row]:
    """Time collectives; `to_all`: an all-to-all too. Every rank
    calls this with the same sizes and repeats; ranks outside a group wait at a barrier."""
    world, rank = dist.get_world_size(), dist.get_rank()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    sizes = SIZES[clock.device.type]
    groups = [(size, stride, cast(dist.ProcessGroup, dist.new_group(list(range(0, size * stride, stride)))))
        for size, stride in group_sizes(world, per_node)]  # fmt: skip
    left = len(groups) * len(sizes)
    for i, bytes_ in enumerate(sizes):
        for size, stride, group in groups:
            each = _from_rank_0((stop - time.monotonic()) / left, clock.device)
            left -= 1
            if each < 0 and i > 1:
                continue
            if rank % stride or rank >= size * stride:
                dist.barrier()
                continue
            for what, work in _collectives(clock.device, group, size, bytes_, to_all).items():
                timing = _time(clock, group, work, max(0.0, each) / 4)
                nodes = len({r // per_node for r in range(0, size * stride, stride)})
                yield row("wire", timing, what=what, group=size, nodes=nodes, stride=stride, size=bytes_)
            dist.barrier()
    yield from _messages(clock, per_node, world, stop)


def _from_rank_0(seconds: float, device: torch.device) -> float:
    """Return rank 0's value on all ranks: with different numbers of repeats they would wait for each other forever."""
    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.broadcast(value, 0)
    return float(value)


def _collectives(
    device: torch.device, group: dist.ProcessGroup, size: int, bytes_: int, to_all: bool
) -> dict[str, Callable[[], object]]:
    renamed = hasattr(dist, "all_gather_single")  # in torch 2.13
    gather: Any = getattr(dist, "all_gather_single" if renamed else "all_gather_into_tensor")
    scatter: Any = getattr(dist, "reduce_scatter_single" if renamed else "reduce_scatter_tensor")
    whole = torch.randn(max(size, bytes_ // 4 // size * size), device=device)
    part = torch.randn(len(whole) // size, device=device)
    found: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group=group),  # repeated sums would overflow
        "all-gather": lambda: gather(whole, part, group=group),
        "reduce-scatter": lambda: scatter(part, whole, dist.ReduceOp.MAX, group=group),
    }
    if to_all:
        found[ALL_TO_ALL] = lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
    return found


def _time(clock: Clock, group: dist.ProcessGroup, work: Callable[[], object], seconds: float) -> Timing:
    """Time one call by the host's clock, with as many repeats as the slowest rank of the group has time for."""
    work()
    first = clock.once(work)
    slowest = torch.tensor([first], dtype=torch.float64, device=clock.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / max(1e-7, float(slowest)))))
    return Timing.of([clock.once(work) for _ in range(repeats)])


def _messages(clock: Clock, per_node: int, world: int, stop: float) -> Iterator[Row]:
    """Time messages from rank 0 to its neighbour, and to the first rank of the next node."""
    rank, pairs = dist.get_rank(), dict.fromkeys([1, per_node] if world > per_node else [1])
    for other in pairs:
        for bytes_ in SIZES[clock.device.type][:4]:
            repeats = int(_from_rank_0(20 if time.monotonic() < stop else MIN_REPEATS, clock.device))
            if rank in (0, other):
                data = torch.randn(bytes_ // 4, device=clock.device)
                samples = [
                    clock.once(lambda data=data, other=other: _ping_pong(data, rank, other)) / 2 for _ in range(repeats + 2)
                ]
                nodes = 1 + (other >= per_node)
                yield row("wire", Timing.of(samples[2:]), what="point-to-point", group=2, nodes=nodes, stride=other, size=bytes_)
            dist.barrier()


def _ping_pong(data: Tensor, rank: int, other: int) -> None:
    if rank == 0:
        dist.send(data, other)
        dist.recv(data, other)
    else:
        dist.recv(data, 0)
        dist.send(data, 0)
