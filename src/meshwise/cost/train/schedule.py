"""Pipeline schedules: in which order a stage runs its operations, and when each of them starts and ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FORWARD, BACKWARD, WEIGHT = range(3)
"""What an operation does. A schedule that splits the backward pass puts the gradients of weights into operations of their own."""
Op = tuple[int, int, int]
"""Pass, model chunk and micro-batch."""


@dataclass(frozen=True)
class Run:
    """Struct of arrays, one element per operation, stage by stage in the order in which each runs them."""

    stage: Array
    what: Array
    chunk: Array
    microbatch: Array
    start: Array
    end: Array

    def rows(self, which: Array | slice = slice(None)) -> list[tuple[int, int, int, int]]:
        """Stage, pass, chunk and micro-batch of each operation, or of some."""
        columns = (self.stage, self.what, self.chunk, self.microbatch)
        return list(zip(*(column[which].tolist() for column in columns), strict=True))

    @property
    def makespan(self) -> float:
        return float(self.end.max())


def order(schedule: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> list[Op]:
    """Everything one stage does in a step, first to last."""
    if schedule == "interleaved":
        return list(_interleaved(stage, stages, microbatches, chunks))
    if schedule == "zero-bubble":
        return list(_zero_bubble(stage, stages, microbatches))
    return list(_alternating(_whole(microbatches, FORWARD), _whole(microbatches, BACKWARD), stages - 1 - stage))


def _whole(microbatches: int, what: int) -> list[Op]:
    return [(what, 0, j) for j in range(microbatches)]


def _alternating(forward: list[Op], backward: list[Op], ahead: int) -> Iterator[Op]:
    """`ahead` passes forward, then one forward and one backward in turn, then what is left backward (1F1B, arXiv:2104.04473, 2.2.1)."""
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for i, op in enumerate(forward[ahead:]):
        yield op
        yield backward[i]
    yield from backward[len(forward) - ahead :]


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Op]:
    """Chunks take turns, each for as many micro-batches as there are stages; backward they go the other way (arXiv:2104.04473, 2.2.2).

    A stage runs ahead by a round of every chunk but one, and twice the stages behind it.
    """
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
    """1F1B whose gradients of weights wait `stage` micro-batches: so all stages hold as many activations as the first (ZB-H1,
    arXiv:2401.10241, 2.3)."""
    for what, chunk, j in order("1f1b", stage, stages, microbatches):
        yield what, chunk, j
        if what == BACKWARD and j >= stage:
            yield WEIGHT, chunk, j - stage
    yield from ((WEIGHT, 0, j) for j in range(max(0, microbatches - stage), microbatches))


def play(schedule: str, seconds: Array, microbatches: int, between: float = 0.0) -> Run:
    """A step of a schedule: every operation as soon as its stage is free and what it needs is there.

    `seconds` has an entry for each pass, stage and chunk; `between` is how long a result is on its way from one stage to another.
    """
    stages, chunks = int(seconds.shape[1]), int(seconds.shape[2])
    orders = [order(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    starts = _starts(orders, seconds.tolist(), microbatches, between)
    what, chunk, microbatch = np.array([op for line in orders for op in line], dtype=np.int64).T
    stage = np.repeat(np.arange(stages), [len(line) for line in orders])
    start = np.array([one for line in starts for one in line])
    return Run(stage, what, chunk, microbatch, start, start + seconds[what, stage, chunk])


def _starts(orders: list[list[Op]], seconds: list[list[list[float]]], microbatches: int, between: float) -> list[list[float]]:
    """When each operation of each stage starts. A stage runs until it waits for another, which wakes it when it has gone on."""
    stages = len(orders)
    needs = _needs(stages, len(seconds[0][0]), between)
    ended = [[[[-1.0] * microbatches for _ in one] for one in kind] for kind in seconds]
    starts: list[list[float]] = [[] for _ in orders]
    free = [0.0] * stages
    awake = list(range(stages))
    while awake:
        stage = awake.pop()
        line, mine, now = orders[stage], starts[stage], free[stage]
        before = len(mine)
        for i in range(before, len(line)):
            what, chunk, j = line[i]
            need = needs[what][stage][chunk]
            if need is not None:
                at, where, part, late = need
                ready = ended[at][where][part][j]
                if ready < 0.0:
                    break
                now = max(now, ready + late)
            mine.append(now)
            now += seconds[what][stage][chunk]
            ended[what][stage][chunk][j] = now
        free[stage] = now
        if len(mine) > before and stages > 1:
            awake += {(stage + 1) % stages, (stage - 1) % stages}
    if any(len(mine) < len(line) for mine, line in zip(starts, orders, strict=True)):
        raise AssertionError("stages wait for each other")
    return starts


def _needs(stages: int, chunks: int, between: float) -> list[list[list[tuple[int, int, int, float] | None]]]:
    """For each pass, stage and chunk the pass, stage and chunk before it, and how long its result is on its way."""

    def need(what: int, stage: int, chunk: int) -> tuple[int, int, int, float] | None:
        late = between if stages > 1 else 0.0
        if what == WEIGHT:
            return BACKWARD, stage, chunk, 0.0
        if what == FORWARD:
            place = chunk * stages + stage - 1
            return (FORWARD, place % stages, place // stages, late) if place >= 0 else None
        place = chunk * stages + stage + 1
        if place < chunks * stages:
            return BACKWARD, place % stages, place // stages, late
        return FORWARD, stage, chunk, 0.0

    return [[[need(what, stage, chunk) for chunk in range(chunks)] for stage in range(stages)] for what in range(3)]
