"""Training on generated answers: the time of a step and the bytes of each model that takes part in it."""

from dataclasses import dataclass, replace

import numpy as np

from meshwise.cost.axes import OFFLOAD, Bounds, layout_name
from meshwise.cost.finetune import FULL
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, evaluate, host_memory, host_needs
from meshwise.cost.work import Objective
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import search

VALUE = Objective("value", forwards=2, vocabulary=False)
"""PPO's value model: trained like the policy, with one output. It reads each answer once when it was generated, and so does the reward
model, which is as large."""
STATES = ("weights", "gradients", "optimizer")
LAYOUTS_SEARCHED = 64
"""Layouts to ask the search for: many are near-ties, and few fit beside the other models."""
SMALLER_MEMORY_FACTOR = 0.98
"""A slower training phase is worth trying where it leaves at least 2% more memory to the engine."""
RESIDENT_MEMORY_KINDS = ("weights", "optimizer", "context")
"""Kinds of memory that stay on a device while answers are generated."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training phase on some devices."""

    layout: str
    seconds: float
    """Seconds of a step over all answers, the passes of reference and value model included."""
    roles: dict[str, float]
    """Bytes of a device by role: policy, reference, value, reward, activations, other."""
    resident: float
    """Bytes that stay while answers are generated."""

    @property
    def peak(self) -> float:
        return sum(self.roles.values())


def part_of(q: Question, devices: int) -> Question | None:
    """Return the question on some of the devices: of one node, or whole nodes; None where nodes would be cut."""
    node, count = q.cluster.node, q.cluster.node_count
    if count == 1:
        shape = (1, replace(node, chips=((devices, q.chip),)))
    elif devices % node.devices == 0:
        shape = (devices // node.devices, node)
    else:
        return None
    return replace(q, cluster=replace(q.cluster, nodes=(shape,), torus=()))


def trainings(ask: TrainAsk, q: Question) -> list[Training]:
    """Return the training phases that fit, fastest first; each slower one leaves more memory for generation. State is offloaded only if
    nothing fits otherwise; empty if that does not suffice."""
    found = _fitting(q, dict(ask.bounds))
    if not found and q.work.framework.offload and "offload" not in ask.bounds:
        found = _fitting(q, {**ask.bounds, "offload": (0, len(OFFLOAD) - 1)})
    kept: list[Training] = []
    for one in sorted(found, key=lambda training: (training.seconds, training.resident)):
        if not kept or one.resident < kept[-1].resident * SMALLER_MEMORY_FACTOR:
            kept.append(one)
    return kept


def _fitting(q: Question, bounds: Bounds) -> list[Training]:
    """Return every training phase that fits, with the states of the value and reward model beside those of the policy."""
    searched = search(q, bounds=bounds, top=LAYOUTS_SEARCHED)
    layouts, cost = searched.layouts, searched.cost
    if not len(layouts):
        return []
    none = np.zeros(len(layouts))
    value = _value(q) if q.work.objective.name == "ppo" else None
    own = evaluate(value, layouts) if value else None
    reward = _reference(replace(q, work=replace(q.work, finetune=FULL)), layouts) if value else none
    reference = none if q.work.finetune.adapts else _reference(q, layouts)
    extra = sum((own.memory[kind] for kind in STATES), reward) if own else reward
    fits = cost.peak + extra <= q.chip.memory * (1 - q.work.reserve)
    if value:
        fits &= host_needs(q, layouts) + host_needs(value, layouts) <= host_memory(q)
    return [_training(layouts, cost, own, float(reward[i]), float(reference[i]), i) for i in np.flatnonzero(fits).tolist()]


def _training(layouts: Layouts, cost: Cost, value: Cost | None, reward: float, reference: float, i: int) -> Training:
    kinds = {name: float(values[i]) for name, values in cost.memory.items()}
    own = {name: float(value.memory[name][i]) for name in STATES} if value else {}
    roles = {
        "policy": sum(kinds[name] for name in STATES) - reference, "reference": reference, "value": sum(own.values()),
        "reward": reward, "activations": kinds["activations"] + kinds["logits"], "other": kinds["context"],
    }  # fmt: skip
    resident = sum(kinds[name] for name in RESIDENT_MEMORY_KINDS) + own.get("weights", 0.0) + own.get("optimizer", 0.0) + reward
    seconds = float(cost.step[i]) + (float(value.step[i]) if value else 0.0)
    return Training(layout=layout_name(layouts.row(i)), seconds=seconds, roles=roles, resident=resident)


def _value(q: Question) -> Question:
    """Return the question of training the value model."""
    return replace(q, model=lookup.without_head(q.model), work=replace(q.work, objective=VALUE))


def _reference(q: Question, layouts: Layouts) -> Floats:
    """Return the bytes of the reference: what the objective adds to the weights."""
    weights = (
        evaluate(replace(q, work=replace(q.work, objective=replace(q.work.objective, reference=has))), layouts).memory["weights"]
        for has in (True, False)
    )
    return next(weights) - next(weights)
