"""Pipeline schedules: in which order a stage runs its operations, and when each of them starts and ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

FORWARD, BACKWARD, WEIGHT = range(3)
"""What an operation does. A schedule that splits the backward pass puts the gradients of weights into operations of their own."""
Op = tuple[int, int, int]
"""Pass, model chunk and micro-batch."""


@dataclass(frozen=True)
class Run:
    """Struct of arrays, one element per operation, in the order in which each stage runs them."""

    stage: Array
    what: Array
    chunk: Array
    microbatch: Array
    start: Array
    end: Array

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


def simulate(orders: list[list[Op]], seconds: Array, microbatches: int, between: float = 0.0) -> Run:
    """Start and end of every operation: each as soon as its stage is free and what it needs is there.

    `seconds` has an entry for each pass, stage and chunk; `between` is on the way from one stage to the next.
    """
    stages, chunks = seconds.shape[1:]
    took = seconds.tolist()
    # done[what][stage][chunk * microbatches + j]
    done = [[[-1.0] * (chunks * microbatches) for _ in range(stages)] for _ in range(3)]
    at, free = [0] * stages, [0.0] * stages
    begun: list[list[float]] = [[] for _ in range(stages)]
    awake = list(range(stages - 1, -1, -1))
    while awake:
        stage = awake.pop()
        line, i, now, mine = orders[stage], at[stage], free[stage], begun[stage]
        woken: set[int] = set()
        while i < len(line):
            what, chunk, j = line[i]
            slot = chunk * microbatches + j
            ready = 0.0
            if what == FORWARD:
                if stage:
                    ready = done[FORWARD][stage - 1][slot]
                elif chunk:
                    ready = done[FORWARD][-1][slot - microbatches]
                else:
                    ready = -between
            elif what == BACKWARD:
                if stage < stages - 1:
                    ready = done[BACKWARD][stage + 1][slot]
                elif chunk < chunks - 1:
                    ready = done[BACKWARD][0][slot + microbatches]
                else:
                    ready = done[FORWARD][stage][slot] - between
            if what != WEIGHT:
                if ready == -1.0:
                    break
                now = max(now, ready + between)
            mine.append(now)
            now += took[what][stage][chunk]
            done[what][stage][slot] = now
            i += 1
            if what != WEIGHT:
                woken.add((stage + (1 if what == FORWARD else -1)) % stages)
        at[stage], free[stage] = i, now
        awake += woken - {stage} if stages > 1 else ()
    if any(i < len(line) for i, line in zip(at, orders, strict=True)):
        raise AssertionError("stages wait for each other")
    return None, max(free), begun, done
