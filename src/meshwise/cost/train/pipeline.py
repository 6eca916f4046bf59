"""The critical path of a pipeline schedule, in closed form.

Arrays have a row per stage and a column per layout. `schedule.py` simulates the same schedules event by event, and tests compare the two.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meshwise.cost.layout import Floats


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one micro-batch by pass. `weight` holds the weight gradients where a schedule may defer them, otherwise 0."""

    forward: Floats
    backward: Floats
    weight: Floats

    def take(self, rows: Floats) -> "PassTimes":
        return PassTimes(self.forward[rows], self.backward[rows], self.weight[rows])


@dataclass(frozen=True)
class Stages:
    """Sampled stages of each layout in order, the first and the last among them."""

    number: Floats
    before: Floats  # layers on all stages before this one
    layers: Floats


def makespan(stages: Stages, layer: PassTimes, head: PassTimes, m: Floats, pp: Floats) -> Floats:
    """Return seconds from the first forward pass of `m` micro-batches to the end of the last backward pass, in 1F1B or, where weight
    gradients are deferred, ZB-H1 (arXiv:2401.10241). Worked for equal stages of f + b: (m + p - 1)(f + b). The longest path stays on one
    stage s from its first backward pass to its last forward pass. Before that, a later stage i may run p - 1 - i micro-batches ahead, as
    fast as the slowest stage feeds it, and the first backward pass returns from i to s; after that, the same in reverse."""
    last = stages.number == pp - 1
    f, b, w = (
        stages.layers * per_layer + last * per_head
        for per_layer, per_head in ((layer.forward, head.forward), (layer.backward, head.backward), (layer.weight, head.weight))
    )
    ahead = pp - 1 - stages.number
    steady = ahead <= m - 1  # otherwise a stage runs all its forward passes first
    entered = stages.before * layer.forward + f
    left = stages.before * layer.backward  # backward passes of the stages before this one
    through = stages.before * (layer.forward + layer.backward) + f + b
    fed = np.where(steady, ahead * _max_up_to_here(f) + through, -np.inf)
    start = _max_from_here(fed) - through
    start = np.where(last, np.maximum(start, _without_weights(start, ahead, steady, f + b, last, np.minimum(m, pp) - 1)), start)
    end = _max_from_here(entered + b + _drain(stages.number, ahead, b, w, left, m))
    total = start + (m - 1 - ahead) * (f + b) + np.maximum(0.0, m - pp) * w + end
    return np.where(steady, total, 0.0).max(axis=0)


def _max_from_here(value: Floats) -> Floats:
    """Return the maximum over each stage and all later ones."""
    return _max_up_to_here(value[::-1])[::-1]


def _max_up_to_here(value: Floats) -> Floats:
    """Return the maximum over each stage and all earlier ones. For few rows of many columns this is faster than np.maximum.accumulate."""
    running = value.copy()
    for previous, current in pairwise(running):
        np.maximum(previous, current, out=current)
    return running


def _without_weights(start: Floats, ahead: Floats, steady: Floats, busy: Floats, last: Floats, first: Floats) -> Floats:
    """Return how late the last stage starts its weight gradients, after `first` micro-batches, if another stage was slower until then."""
    slowest = np.where(steady & ~last, start + (first - ahead) * busy, -np.inf).max(axis=0)
    return slowest - first * busy


def _drain(number: Floats, ahead: Floats, b: Floats, w: Floats, left: Floats, m: Floats) -> Floats:
    """Return seconds from the backward pass after a stage's last forward pass to the end of the step. The remaining backward passes run
    at the speed of the slowest earlier stage, with weight gradients in between; then that stage's own deferred weight gradients, or those
    of an earlier stage."""
    deferred = _max_up_to_here(np.minimum(m, number + 1) * w - left)
    between = np.maximum(0.0, m - 1 - number)
    slowest: Floats = ahead * b + np.minimum(ahead, between) * w + deferred
    for k in (0, 1):  # where all stages between the first and the last are equal, no other can be slower
        slowest[k:] = np.maximum(slowest[k:], ahead[k:] * b[k] + np.minimum(ahead[k:], between[k]) * w[k] + deferred[k])
    return left + slowest


def sampled_stages(pp: Floats, m: Floats, every: bool) -> Floats:
    """Return stage numbers that include the slowest: all of them (`every`), or, where the middle stages are equal, the first, the second,
    the first with a steady state, the last but one and the last."""
    if every:
        numbers: Floats = np.arange(float(pp.max()))
        return np.minimum(numbers[:, None], pp - 1)
    between = np.maximum(0, pp - 2)
    second = np.minimum(1, between)
    return np.stack([np.zeros_like(pp), second, np.clip(pp - m, second, between), between, pp - 1])
