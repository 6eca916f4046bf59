"""Training on generated answers: the time of a step and the bytes of each model that takes part in it."""

from dataclasses import dataclass, replace

import numpy as np

from meshwise.cost.axes import layout_name
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.objective import Objective
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, evaluate
from meshwise.cost.tuning import FULL
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import search

VALUE = Objective("value", forwards=2, vocabulary=False)
"""PPO's value model: trained like the policy, with one output. It reads each answer once when it was generated, and so does the reward
model, which is as large."""
STATES = ("weights", "gradients", "optimizer")
RESIDENT = ("weights", "optimizer", "context")
"""Kinds of memory that stay on a device while answers are generated."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training phase on some devices."""

    layout: str
    seconds: float
    """Of a step over all answers, the passes of reference and value model included."""
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


def train(ask: TrainAsk, q: Question) -> Training | None:
    """Return the fastest training phase whose models all fit; None where they do not."""
    found = search(q, bounds=ask.bounds, top=4)
    if not len(found.layouts):
        return None
    room = q.chip.memory * (1 - q.work.reserve)
    value = _value(q, found.layouts) if q.work.objective.name == "ppo" else None
    reward = _reward(q, found.layouts) if value else np.zeros(len(found.layouts))
    extra = sum((value.memory[kind] for kind in STATES), reward) if value else reward
    seconds = found.cost.step + (value.step if value else 0.0)
    fits = np.flatnonzero(found.cost.peak + extra <= room)
    if not len(fits):
        return None
    best = int(fits[np.argmin(seconds[fits])])
    return _training(q, found.layouts, found.cost, value, reward, best, float(seconds[best]))


def _training(q: Question, layouts: Layouts, cost: Cost, value: Cost | None, reward: Floats, i: int, seconds: float) -> Training:
    kinds = {name: float(values[i]) for name, values in cost.memory.items()}
    reference = _reference(q, layouts.take(np.array([i]))) if not q.work.tuning.adapts else 0.0
    own = {name: float(value.memory[name][i]) for name in STATES} if value else {}
    roles = {
        "policy": sum(kinds[name] for name in STATES) - reference,
        "reference": reference,
        "value": sum(own.values()),
        "reward": float(reward[i]),
        "activations": kinds["activations"] + kinds["logits"],
        "other": kinds["context"],
    }
    resident = sum(kinds[name] for name in RESIDENT) + own.get("weights", 0.0) + own.get("optimizer", 0.0) + float(reward[i])
    return Training(layout=layout_name(layouts.row(i)), seconds=seconds, roles=roles, resident=resident)


def _value(q: Question, layouts: Layouts) -> Cost:
    """Return the cost of training the value model with the layouts of the policy."""
    return evaluate(replace(q, model=lookup.without_head(q.model), work=replace(q.work, objective=VALUE)), layouts)


def _reward(q: Question, layouts: Layouts) -> Floats:
    """Return the bytes of a reward model in 16 bits, sharded as the reference is."""
    whole = replace(q, work=replace(q.work, tuning=FULL))
    return np.array([_reference(whole, layouts.take(np.array([i]))) for i in range(len(layouts))])


def _reference(q: Question, layout: Layouts) -> float:
    """Return the bytes of the reference: what the objective adds to the weights."""
    alone = replace(q, work=replace(q.work, objective=replace(q.work.objective, reference=False)))
    without = evaluate(alone, layout).memory["weights"][0]
    work = replace(q.work, objective=replace(q.work.objective, reference=True))
    return float(evaluate(replace(q, work=work), layout).memory["weights"][0] - without)
