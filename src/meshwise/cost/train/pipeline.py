"""How long stages take that wait for each other: the critical path of a schedule, in closed form.

Stages are named by rows of an array and layouts by its columns. `meshwise.cost.train.schedule` plays the same schedules out event by event, and
tests hold the two together.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwise.cost.layout import Floats


@dataclass(frozen=True)
class Pace:
    """Seconds of one micro-batch by pass: forward, backward, and of the backward pass what a schedule may put off, the gradients of
    weights."""

    forward: Floats
    backward: Floats
    weight: Floats

    def take(self, rows: Floats) -> "Pace":
        return Pace(self.forward[rows], self.backward[rows], self.weight[rows])


@dataclass(frozen=True)
class Stages:
    """Some stages of each layout in their order, the first and the last among them, and what they hold."""

    number: Floats
    before: Floats
    """Layers on the stages before each."""
    layers: Floats


def makespan(stages: Stages, layer: Pace, head: Pace, m: Floats, pp: Floats) -> Floats:
    """From the first forward pass of `m` micro-batches to the end of the last backward pass, in 1F1B or, where there is weight work to put
    off, ZB-H1 (arXiv:2401.10241).

    Worked for equal stages of f + b: (m + p - 1)(f + b). The longest path stays on one stage s from its first backward pass to its last
    forward pass. Before that, a stage i behind it may run p - 1 - i micro-batches ahead as fast as the slowest stage feeds it, and the
    first backward pass comes back from i to s; after that, the same the other way round.
    """
    last = stages.number == pp - 1
    f, b, w = (
        stages.layers * one + last * other
        for one, other in ((layer.forward, head.forward), (layer.backward, head.backward), (layer.weight, head.weight))
    )
    ahead = pp - 1 - stages.number
    steady = ahead <= m - 1  # else a stage runs all its forward passes first
    entered = stages.before * layer.forward + f
    left = stages.before * layer.backward  # on the way back, above this stage
    through = stages.before * (layer.forward + layer.backward) + f + b
    fed = np.where(steady, ahead * _up_to_here(f) + through, -np.inf)
    start = _from_here_on(fed) - through
    start = np.where(last, np.maximum(start, _without_weights(start, ahead, steady, f + b, last, np.minimum(m, pp) - 1)), start)
    end = _from_here_on(entered + b + _way_out(stages.number, ahead, b, w, left, m))
    total = start + (m - 1 - ahead) * (f + b) + np.maximum(0.0, m - pp) * w + end
    return np.where(steady, total, 0.0).max(axis=0)


def _from_here_on(value: Floats) -> Floats:
    """The largest of each stage and those behind it."""
    return _up_to_here(value[::-1])[::-1]


def _up_to_here(value: Floats) -> Floats:
    """The largest of each stage and those before it; over few rows of many layouts, quicker than numpy's own way."""
    found = value.copy()
    for before, here in pairwise(found):
        np.maximum(before, here, out=here)
    return found


def _without_weights(start: Floats, ahead: Floats, steady: Floats, busy: Floats, last: Floats, first: Floats) -> Floats:
    """How late the last stage is when its weight gradients begin, behind `first` micro-batches, if another stage was slower until then."""
    slowest = np.where(steady & ~last, start + (first - ahead) * busy, -np.inf).max(axis=0)
    return slowest - first * busy


def _way_out(number: Floats, ahead: Floats, b: Floats, w: Floats, left: Floats, m: Floats) -> Floats:
    """From the backward pass that follows a stage's last forward pass to the end of the step.

    The backward passes still to come run on the slowest of the stages before it, with the weight gradients between them; then that
    stage's own put-off weight gradients, or those of a stage above.
    """
    put_off = _up_to_here(np.minimum(m, number + 1) * w - left)
    between = np.maximum(0.0, m - 1 - number)
    slowest: Floats = ahead * b + np.minimum(ahead, between) * w + put_off
    for k in (0, 1):  # where stages are equal but for the first and the last, no other can be slower
        slowest[k:] = np.maximum(slowest[k:], ahead[k:] * b[k] + np.minimum(ahead[k:], between[k]) * w[k] + put_off[k])
    return left + slowest


def sampled(pp: Floats, m: Floats, every: bool) -> Floats:
    """Stages among which the slowest is: all, or where those between the first and the last are equal, the ends of their row and the
    first that has a steady state."""
    if every:
        numbers: Floats = np.arange(float(pp.max()))
        return np.minimum(numbers[:, None], pp - 1)
    between = np.maximum(0, pp - 2)
    second = np.minimum(1, between)
    return np.stack([np.zeros_like(pp), second, np.clip(pp - m, second, between), between, pp - 1])
