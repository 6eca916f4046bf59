"""Spaces that tests of `tune` share: every layout of an 8B model on two nodes of H100, and a space of one node."""

from dataclasses import replace
from functools import cache

import numpy as np

from meshwise.calibrate.train.fit import with_logs
from meshwise.cost.layout import Floats
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.space import Space


@cache
def question(nodes: int = 2) -> Question:
    return lookup.question(
        TrainAsk(model="llama-3.1-8b", on=f"{nodes}x8xh100-sxm", batch="256", seq="4096", framework="nanotron")
    )


@cache
def space(nodes: int = 2) -> Space:
    return Space.search(question(nodes))


def seconds_with(nodes: int, shifts: dict[str, float]) -> Floats:
    """Return the seconds of every candidate on a machine whose coefficients differ by these logarithms."""
    q = question(nodes)
    for name, shift in shifts.items():
        logs = np.array([np.log(getattr(q.calibration, name)) + shift])
        q = replace(q, calibration=with_logs(q.calibration, (name,), logs))
    layouts = space(nodes).layouts
    assert layouts is not None
    return evaluate(q, layouts).step


def ran(row: int, seconds: float) -> Observation:
    return Observation(row, seconds=seconds, memory=float(space().memory[row]))
