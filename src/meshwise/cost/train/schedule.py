"""Pipeline schedules: the order in which each stage runs its operations, and a simulation of when each starts and ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FORWARD, BACKWARD, WEIGHT = range(3)
"""The pass of an operation. A schedule that splits the backward pass has separate operations for weight gradients."""
Op = tuple[int, int, int]  # (pass, model chunk, micro-batch)


@dataclass(frozen=True)
class Simulation:
    """A simulated step. Struct of arrays, one element per operation: stage by stage, each in its own order."""

    stage: Array
    kind: Array  # pass: FORWARD, BACKWARD or WEIGHT
    chunk: Array
    microbatch: Array
    start: Array
    end: Array

    def rows(self, which: Array | slice = slice(None)) -> list[tuple[int, int, int, int]]:
        """Return (stage, pass, chunk, micro-batch) of all operations, or of those selected by `which`."""
        columns = (self.stage, self.kind, self.chunk, self.microbatch)
        return list(zip(*(column[which].tolist() for column in columns), strict=True))

    @property
    def makespan(self) -> float:
        return float(self.end.max())


def order(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Op]:
    """Return all operations of one stage in a step, in order."""
    if schedule == "interleaved":
        return list(_interleaved(stage, stages, microbatches, chunks))
    if schedule == "zero-bubble":
        return list(_zero_bubble(stage, stages, microbatches))
    ahead = 0 if schedule == "naive" else stages - 1 - stage
    return list(_alternating(_whole(microbatches, FORWARD), _whole(microbatches, BACKWARD), ahead))


def _whole(microbatches: int, kind: int) -> list[Op]:
    """Return one operation per micro-batch, for a stage with a single model chunk."""
    return [(kind, 0, j) for j in range(microbatches)]


def _alternating(forward: list[Op], backward: list[Op], ahead: int) -> Iterator[Op]:
    """Yield `ahead` forward passes, then forward and backward in turn, then the remaining backward ones (arXiv:2104.04473, 2.2.1)."""
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for i, op in enumerate(forward[ahead:]):
        yield op
        yield backward[i]
    yield from backward[len(forward) - ahead :]


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Op]:
    """Yield chunks in turn, each for as many micro-batches as there are stages; backward in reverse order (arXiv:2104.04473, 2.2.2). A
    stage runs ahead by one round of every chunk but one, plus twice the number of later stages."""
    turns = [
        (chunk, j)
        for start in range(0, microbatches, stages)
        for chunk in range(chunks)
        for j in range(start, min(start + stages, microbatches))
    ]
    forward = [(FORWARD, chunk, j) for chunk, j in turns]
    backward = [(BACKWARD, chunks - 1 - chunk, j) for chunk, j in turns]
    yield from _alternating(forward, backward, 2 * (stages - 1 - stage) + (chunks - 1) * stages)


def _zero_bubble(stage: int, stages: int, microbatches: int) -> Iterator[Op]:
    """Yield 1F1B with weight gradients deferred by `stage` micro-batches, so that all stages hold as many activations as the first (ZB-H1,
    arXiv:2401.10241, 2.3)."""
    for kind, chunk, j in order("1f1b", stage, stages, microbatches):
        yield kind, chunk, j
        if kind == BACKWARD and j >= stage:
            yield WEIGHT, chunk, j - stage
    yield from ((WEIGHT, 0, j) for j in range(max(0, microbatches - stage), microbatches))


def simulate(schedule: str, seconds: Array, microbatches: int, between: float = 0.0) -> Simulation:
    """Simulate a step: every operation starts as soon as its stage is free and its input has arrived. `seconds` has an entry for each
    (pass, stage, chunk); `between` is the time to send a result from one stage to another."""
    stages, chunks = int(seconds.shape[1]), int(seconds.shape[2])
    orders = [order(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    starts = _starts(orders, seconds.tolist(), microbatches, between)
    kind, chunk, microbatch = np.array([op for line in orders for op in line], dtype=np.int64).T
    stage = np.repeat(np.arange(stages), [len(line) for line in orders])
    start = np.array([start for line in starts for start in line])
    return Simulation(stage, kind, chunk, microbatch, start, start + seconds[kind, stage, chunk])


def _starts(orders: list[list[Op]], seconds: list[list[list[float]]], microbatches: int, between: float) -> list[list[float]]:
    """Return the start of each operation of each stage. A stage runs until it waits for another, which wakes it on progress."""
    stages = len(orders)
    needs = _needs(stages, len(seconds[0][0]), between)
    ended = [[[[-1.0] * microbatches for _ in chunks] for chunks in per_stage] for per_stage in seconds]
    starts: list[list[float]] = [[] for _ in orders]
    free = [0.0] * stages
    awake = list(range(stages))
    while awake:
        stage = awake.pop()
        stage_ops, stage_starts, now = orders[stage], starts[stage], free[stage]
        before = len(stage_starts)
        for i in range(before, len(stage_ops)):
            kind, chunk, j = stage_ops[i]
            need = needs[kind][stage][chunk]
            if need is not None:
                needed_kind, needed_stage, needed_chunk, delay = need
                ready = ended[needed_kind][needed_stage][needed_chunk][j]
                if ready < 0.0:
                    break
                now = max(now, ready + delay)
            stage_starts.append(now)
            now += seconds[kind][stage][chunk]
            ended[kind][stage][chunk][j] = now
        free[stage] = now
        if len(stage_starts) > before and stages > 1:
            awake += {(stage + 1) % stages, (stage - 1) % stages}
    if any(len(stage_starts) < len(stage_ops) for stage_starts, stage_ops in zip(starts, orders, strict=True)):
        raise AssertionError("deadlock: stages wait for each other")
    return starts


def _needs(stages: int, chunks: int, between: float) -> list[list[list[tuple[int, int, int, float] | None]]]:
    """Return for each (pass, stage, chunk) the (pass, stage, chunk) whose result it needs, and the time to send that result."""

    def need(kind: int, stage: int, chunk: int) -> tuple[int, int, int, float] | None:
        delay = between if stages > 1 else 0.0
        if kind == WEIGHT:
            return BACKWARD, stage, chunk, 0.0
        if kind == FORWARD:
            place = chunk * stages + stage - 1
            return (FORWARD, place % stages, place // stages, delay) if place >= 0 else None
        place = chunk * stages + stage + 1
        if place < chunks * stages:
            return BACKWARD, place % stages, place // stages, delay
        return FORWARD, stage, chunk, 0.0

    return [[[need(kind, stage, chunk) for chunk in range(chunks)] for stage in range(stages)] for kind in range(3)]
