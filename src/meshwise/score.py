"""How well predictions meet measurements: error, rank, the time lost by what would be picked, memory, and two baselines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwise.calibration import Calibration
from meshwise.cost.train import Cost, Question, price
from meshwise.layout import Floats, Layouts
from meshwise.measure import Case


@dataclass(frozen=True)
class Prediction:
    seconds: Floats
    memory: Floats


def predict(cases: Sequence[Case], calibration: Calibration) -> Prediction:
    """Seconds and bytes of every case, priced in blocks that share a model and a machine."""
    seconds, memory = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    for rows in _blocks(cases).values():
        some = [cases[i] for i in rows]
        cost = _price(some, calibration)
        seconds[rows], memory[rows] = cost.step, cost.peak
    return Prediction(seconds, memory)


def _blocks(cases: Sequence[Case]) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        node = case.cluster.nodes[0][1]
        network = case.cluster.network.bandwidth if case.cluster.network else 0.0
        key = (
            case.model.name,
            node.devices,
            node.chips[0][1].key,
            network,
            case.work.framework,
            case.work.seq,
            case.work.precision,
        )
        found.setdefault(key, []).append(i)
    return found


def _price(cases: list[Case], calibration: Calibration) -> Cost:
    """Where a table does not say the micro-batch, the largest that divides is not assumed: the best that the model sees is."""
    from dataclasses import replace

    batch = np.array([case.work.batch for case in cases])
    axes = {name: np.array([case.layout[name] for case in cases]) for name in cases[0].layout}
    first = cases[0]
    unknown = axes["mbs"] == 0
    best: Cost | None = None
    for mbs in (1, 2, 4, 8, 16) if unknown.any() else (1,):
        trial = np.where(unknown, mbs, axes["mbs"])
        per_replica = batch // (axes["dp_replicate"] * axes["dp_shard"])
        valid = ~unknown | (per_replica % trial == 0)
        layouts = Layouts.of(**(axes | {"mbs": np.where(valid, trial, 1)}))
        cost = price(Question.of(first.model, first.cluster, replace(first.work, batch=batch), calibration), layouts)
        best = cost if best is None else _faster(best, cost, valid, float(first.cluster.nodes[0][1].chips[0][1].memory))
    assert best is not None
    return best


def _faster(a: Cost, b: Cost, valid: NDArray[np.bool_], capacity: float) -> Cost:
    better = valid & (b.step < a.step) & (b.peak < capacity)
    time = {name: np.where(better, b.time[name], a.time[name]) for name in a.time}
    return Cost(time, {name: np.where(better, b.memory[name], a.memory[name]) for name in a.memory})
