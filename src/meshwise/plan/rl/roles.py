"""Training on generated answers: the seconds of each phase, and the bytes of each model that takes part in a step."""

import math
from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue.rl_programs import Overheads, RlProgram, Trainer
from meshwise.cost.axes import OFFLOAD, Bounds, layout_name
from meshwise.cost.finetune import FULL
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import Cost, evaluate, host_memory, host_needs
from meshwise.cost.work import Objective
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.lengths import Answers
from meshwise.plan.rl_fields import NO_MODEL
from meshwise.plan.train import lookup
from meshwise.plan.train.search import divisors, search

STATES = ("weights", "gradients", "optimizer")
LAYOUTS_SEARCHED = 16  # layouts to ask the search for, of each of which it keeps near-ties: few fit beside the other models
SMALLER_MEMORY_FACTOR = 0.98  # a slower training phase is worth trying where it leaves at least 2% more memory to the engine
RESIDENT_MEMORY_KINDS = ("weights", "optimizer", "context")  # kinds of memory that stay on a device while answers are generated
PACKED_SHARE = 0.95  # share of a packed row that answers fill: rows of --seq tokens, the longest answers first
MIN_CUT_TOKENS = 4096
"""Tokens of a sequence on each device of context parallelism, at least: recipes of these programs cut longer sequences only."""
PADDED_TOGETHER = 4
"""Answers of a micro-batch that are padded to the longest of them. An assumption: the search chooses the micro-batch later."""
PHASES = ("old log-probabilities", "reference", "teacher", "critic", "reward", "update")


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training phases on some devices."""

    framework: str
    layout: str
    axes: dict[str, int | str]
    phases: dict[str, float]
    """Seconds by phase: passes for log-probabilities, of reference, teacher, critic and reward model, and the update."""
    roles: dict[str, float]  # bytes of a device by role: policy, reference, teacher, critic, reward, activations, other
    resident: float  # bytes that stay while answers are generated, unless they are moved to host memory
    mfu: float  # FLOPs of the update over what the devices could do in its seconds

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())

    @property
    def peak(self) -> float:
        return sum(self.roles.values())


@dataclass(frozen=True)
class Roles:
    """The models beside the policy; None where there is none."""

    reference: bool
    critic: Question | None
    reward: Question | None
    teacher: Question | None


def roles_of(ask: TrainAsk, program: RlProgram, q: Question) -> Roles:
    """Return the other models of a question, each as a question of its own on the same devices."""
    plain = replace(q, work=replace(q.work, finetune=FULL))
    critic = _other(plain, ask.critic, head=False) if ask.objective == "ppo" else None
    named = ask.reward or ("" if ask.objective == "ppo" else "function")
    reward = None if named in NO_MODEL else _other(plain, named, head=False)
    teacher = _other(plain, ask.teacher, head=True) if ask.objective == "gkd" else None
    return Roles(q.work.objective.reference, critic, reward, teacher)


def _other(q: Question, name: str, *, head: bool) -> Question:
    """Return the question of another model; of the policy's own where no name is given."""
    model = find.find_model(name) if name else q.model
    return replace(q, model=model if head else lookup.without_head(model))


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


def row_tokens(ask: TrainAsk, program: RlProgram, answers: Answers) -> float:
    """Return the tokens that an answer with its prompt fills in a micro-batch."""
    how = ask.rows or program.rows
    if how == "longest":
        return float(ask.seq)
    if how == "padded":
        return min(float(ask.seq), ask.prompt + answers.longest_of(PADDED_TOGETHER))
    return (ask.prompt + answers.mean) / PACKED_SHARE


def with_rows(q: Question, tokens: float, updates: int) -> Question:
    """Return the question with rows of --seq tokens that hold all answers of one update; as many as devices can share evenly."""
    rows = math.ceil(tokens / q.work.seq / updates)
    unit = max((n for n in divisors(q.cluster.devices) if n <= max(1, rows / 4)), default=1)
    return replace(q, work=replace(q.work, batch=math.ceil(rows / unit) * unit))


def trainings(ask: TrainAsk, program: RlProgram, trainer: Trainer, q: Question, answers: Answers, o: Overheads) -> list[Training]:
    """Return the training phases that fit, fastest first; each slower one leaves more memory for generation. State is offloaded only if
    nothing fits otherwise; empty if that does not suffice."""
    q = with_rows(q, answers.number * row_tokens(ask, program, answers), ask.updates)
    bounds = _meet(trainer, ask.bounds, ask.seq, q.cluster.devices)
    if bounds is None:
        return []
    found = _fitting(ask, program, q, bounds, o)
    if not found and q.work.framework.offload and "offload" not in ask.bounds:
        found = _fitting(ask, program, q, {**bounds, "offload": (0, len(OFFLOAD) - 1)}, o)
    kept: list[Training] = []
    for one in sorted(found, key=lambda training: (training.seconds, training.resident)):
        if not kept or one.resident < kept[-1].resident * SMALLER_MEMORY_FACTOR:
            kept.append(one)
    return kept


def _meet(trainer: Trainer, asked: Bounds, seq: int, devices: int) -> Bounds | None:
    """Return the bounds of a question within those of a trainer; None where they exclude each other. Sequences are cut only where every
    device keeps MIN_CUT_TOKENS of them, unless the question says otherwise."""
    bounds = dict(asked)
    for axis, (least, most) in trainer.bounds.items():
        if axis == "zero" and devices == 1:  # nothing to shard over
            continue
        usual = min(most, max(1, seq // MIN_CUT_TOKENS)) if axis == "cp" else most
        low, high = asked.get(axis, (least, usual))
        bounds[axis] = (max(low, least), min(high, most))
        if bounds[axis][0] > bounds[axis][1]:
            return None
    return bounds


def _fitting(ask: TrainAsk, program: RlProgram, q: Question, bounds: Bounds, o: Overheads) -> list[Training]:
    """Return every training phase that fits, with the states of the other models beside those of the policy."""
    searched = search(q, bounds=bounds, top=LAYOUTS_SEARCHED)
    layouts = searched.layouts
    kept = np.flatnonzero(_doubles(layouts))
    if not len(kept):
        return []
    layouts = layouts.take(kept)
    models = roles_of(ask, program, q)
    update = evaluate(_passes(q, 0), layouts)
    reading = evaluate(_passes(q, 1), layouts).step - update.step
    phases = {"update": o.phase + ask.updates * o.training * update.step}
    forward = o.phase + o.training * ask.updates * reading
    phases["old log-probabilities"] = forward if program.old_log_prob else np.zeros(len(layouts))
    if models.reference:
        phases["reference"] = forward
    memory: dict[str, Floats] = {
        "reference": _held(q, layouts) if models.reference and not q.work.finetune.adapts else np.zeros(len(layouts))
    }
    host = host_needs(q, layouts)
    if models.critic:
        alone = evaluate(_passes(models.critic, 0), layouts)
        values = evaluate(_passes(models.critic, 1), layouts).step - alone.step
        phases["critic"] = 2 * o.phase + ask.updates * o.training * (alone.step + values)
        memory["critic"] = sum((alone.memory[kind] for kind in STATES), np.zeros(len(layouts)))
        host = host + host_needs(models.critic, layouts)
    for name, other in (("reward", models.reward), ("teacher", models.teacher)):
        if other:
            values = evaluate(_passes(other, 1), layouts).step - evaluate(_passes(other, 0), layouts).step
            phases[name] = o.phase + ask.updates * o.training * values
            memory[name] = _held(other, layouts)
    extra = sum(memory.values(), np.zeros(len(layouts)))
    fits = update.peak + extra <= q.chip.memory * (1 - q.work.reserve)
    fits &= host <= host_memory(q)
    return [_training(q, layouts, update, phases, memory, ask.updates, i) for i in np.flatnonzero(fits).tolist()]


def _doubles(layouts: Layouts) -> Floats:
    """Return which layouts have tensor, context and expert parallelism of 1, 2, 4, 8, ...: the degrees that these programs are run with."""
    return np.all([(degree & (degree - 1)) == 0 for degree in (layouts.tp, layouts.cp, layouts.ep)], axis=0)


def _passes(q: Question, forwards: int) -> Question:
    """Return the question with this many passes without gradients, and no reference."""
    vocabulary = any(op.name == "head" for _, op in q.model.placed)
    objective = Objective(q.work.objective.name, forwards=forwards, vocabulary=vocabulary)
    return replace(q, work=replace(q.work, objective=objective))


def _held(q: Question, layouts: Layouts) -> Floats:
    """Return the bytes of a frozen copy of a model: what a reference adds to the weights."""
    plain = replace(q, work=replace(q.work, finetune=FULL))
    weights = (
        evaluate(replace(plain, work=replace(plain.work, objective=Objective("", reference=has))), layouts).memory["weights"]
        for has in (True, False)
    )
    return next(weights) - next(weights)


def _training(
    q: Question, layouts: Layouts, cost: Cost, phases: dict[str, Floats], memory: dict[str, Floats], updates: int, i: int
) -> Training:
    kinds = {name: float(values[i]) for name, values in cost.memory.items()}
    others = {name: float(values[i]) for name, values in memory.items()}
    seconds = {name: float(phases[name][i]) for name in PHASES if name in phases}
    states = sum(kinds[name] for name in STATES)
    passing = sum(kinds.values()) - states - kinds["context"]
    roles = {"policy": states, **others, "activations": passing, "other": kinds["context"]}
    resident = sum(kinds[name] for name in RESIDENT_MEMORY_KINDS) + sum(others.values())
    peak = q.cluster.devices * q.chip.flops.get("bf16", max(q.chip.flops.values()))
    flops = q.model.flops(updates * float(q.work.batch_tokens), q.work.seq)
    row = layouts.row(i)
    return Training(
        framework=q.work.framework.key, layout=layout_name(row), axes=row, phases=seconds, roles=roles,
        resident=resident, mfu=float(flops) / (seconds["update"] * peak),
    )  # fmt: skip
