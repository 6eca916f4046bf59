"""RolloutPlan: how to train on answers that the model generates: every split of the devices, the fastest first."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from meshwise.catalogue import records
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.question import Question
from meshwise.cost.work import OBJECTIVES
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.roles import Training, part_of, trainings
from meshwise.plan.rl.rollout import Rollout, generate
from meshwise.plan.train import fallback, lookup, remedies

COLOCATED = "all devices in turn"
PHASES = ("rollout", "training", "sync")
UNLINKED_RATE = 16e9
"""Bytes per second between devices of which no link is known: PCIe 3.0 x16."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Devices that train and devices that generate; all do both in turn where they are the same."""

    name: str
    train_devices: int
    rollout_devices: int
    step: float
    """Seconds per step."""
    phases: dict[str, float]
    """Seconds by phase: rollout, training, sync."""
    answers_per_second: float
    tokens_per_second: float
    """Tokens of answers."""
    memory: dict[str, float]
    """Bytes of the fullest training device by role, and of the engine on a generating device."""
    peaks: dict[str, float]
    """Bytes of the fullest device while it trains and while it generates; devices that do both free the engine's memory while they train,
    and activations and gradients while they generate."""
    train_layout: str
    rollout_layout: str
    at_once: int
    """Answers that are generated at once."""
    dollars_per_hour: float | None

    @property
    def together(self) -> bool:
        """Whether the same devices train and generate, in turn."""
        return self.name == COLOCATED


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """The splits of the devices for a question, the fastest first."""

    kind: ClassVar[str] = "rollout"
    ask: TrainAsk
    splits: tuple[Split, ...]
    framework: str
    answers: int
    """Answers per step."""
    notes: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Split:
        return self.splits[0]

    @property
    def command(self) -> str:
        return self.ask.command()

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **records.plain(self)}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per split, with the columns of `--csv`."""
        from meshwise.models.count import flat

        return [flat(records.plain(split)) for split in self.splits]


def make(ask: TrainAsk) -> RolloutPlan:
    """Evaluate every split. DoesNotFit where none does."""
    if not ask.model:
        raise UserError("missing MODEL: a preset, HF id, config.json or .gguf")
    if not OBJECTIVES[ask.objective].generates:
        expected = " or ".join(name for name, one in OBJECTIVES.items() if one.generates)
        raise UserError(f"--objective {ask.objective} generates no answers; expected {expected}")
    if not 0 < ask.prompt < ask.seq:
        raise UserError(f"--prompt {ask.prompt:,}: expected fewer tokens than --seq {ask.seq:,}, which holds prompt and answer")
    if lookup.mixed(ask):
        raise UserError(f"{ask.objective} is planned on one kind of device")
    usual, number = lookup.question(ask), ask.batch * ask.answers
    q, splits = _first_that_fits(ask, usual, number)
    if not splits:
        helps = remedies.needed_changes(ask, lambda other: bool(_some_split(other)))
        told = f"; {' and '.join(helps)} would fit" if helps else ""
        raise DoesNotFit(
            f"{q.model.name} with {ask.objective} does not fit on {q.cluster.name} with {q.work.framework.name}, neither with training and "
            f"generation on the same devices nor apart{told}"
        )
    notes = (
        f"every answer is assumed to have {ask.seq - ask.prompt:,} tokens; devices that generate are one step behind those that train",
        *(["devices in turn: the engine's memory is freed while they train"] if splits[0].together else []),
        *fallback.usual_note(usual, q),
        *q.cluster.notes,
    )
    return RolloutPlan(ask=ask, splits=tuple(splits[: ask.top]), framework=q.work.framework.name, answers=number, notes=notes)


def _first_that_fits(ask: TrainAsk, usual: Question, number: int) -> tuple[Question, list[Split]]:
    """Return the splits of the first framework with any, the fastest first; none with the usual framework where all have none."""
    for name in lookup.candidates(ask, usual.cluster, usual.model):
        q = usual if name == usual.work.framework.key else lookup.question(replace(ask, framework=name), usual.model)
        splits = sorted(_splits(ask, q, number), key=lambda split: split.step)
        if splits:
            return q, splits
    return usual, []


def _some_split(ask: TrainAsk) -> Split | None:
    """Return any split that fits a question; None where none does."""
    if not 0 < ask.prompt < ask.seq:
        return None
    q = lookup.question(ask)
    return next(_splits(ask, q, ask.batch * ask.answers), None)


def _splits(ask: TrainAsk, q: Question, number: int) -> Iterator[Split]:
    total = q.cluster.devices
    together = _together(ask, q, number)
    if together:
        yield together
    for devices in _shares(q):
        part = part_of(q, total - devices)
        training = next(iter(trainings(ask, part)), None) if part else None
        rollout = generate(ask, q.cluster, devices, number) if training else None
        if training and rollout:
            yield _split(ask, q, training, rollout, (total - devices, devices), number)


def _together(ask: TrainAsk, q: Question, number: int) -> Split | None:
    """Return the fastest way for all devices to train and generate in turn: a slower training phase may leave the engine more memory."""
    best: Split | None = None
    for training in trainings(ask, q):
        if best and training.seconds >= best.step:
            break
        rollout = generate(ask, q.cluster, q.cluster.devices, number, taken=training.resident)
        if rollout:
            split = _split(ask, q, training, rollout, (q.cluster.devices, q.cluster.devices), number)
            best = split if best is None or split.step < best.step else best
    return best


def _shares(q: Question) -> Iterator[int]:
    """Yield how many devices may generate: any number in one node, whole nodes of several."""
    step = 1 if q.cluster.node_count == 1 else q.cluster.node.devices
    yield from range(step, q.cluster.devices, step)


def _split(ask: TrainAsk, q: Question, training: Training, rollout: Rollout, devices: tuple[int, int], number: int) -> Split:
    together = devices[0] == devices[1] == q.cluster.devices
    sync = _sync(q, together)
    phases = {"rollout": rollout.seconds, "training": training.seconds, "sync": sync}
    step = sum(phases.values()) if together else max(rollout.seconds, training.seconds) + sync
    rent = q.cluster.rent
    return Split(
        name=COLOCATED if together else f"{devices[0]} train, {devices[1]} generate", train_devices=devices[0],
        rollout_devices=devices[1], step=step, phases=phases, answers_per_second=number / step,
        tokens_per_second=number * (ask.seq - ask.prompt) / step,
        memory={**training.roles, "engine weights": rollout.weights, "engine cache": rollout.cache},
        peaks={"training": training.peak, "rollout": rollout.weights + rollout.cache + (training.resident if together else 0.0)},
        train_layout=training.layout, rollout_layout=rollout.layout, at_once=rollout.users,
        dollars_per_hour=rent * 3600 if rent is not None else None,
    )  # fmt: skip


def _sync(q: Question, together: bool) -> float:
    """Return seconds to bring the trained weights to the engine: adapters alone, or all weights in 16 bits, over the memory of one device,
    the link of a node or the network between nodes."""
    how = finetuned(q.model, q.work.finetune)
    size = how.adapter_bytes * how.trained.total if how.adapted else 2.0 * q.model.params
    if together and q.cluster.devices == 1:
        return 2 * size / q.chip.bandwidth
    link = q.cluster.node.link if q.cluster.node_count == 1 else q.cluster.network
    return size / (link.bandwidth if link else UNLINKED_RATE)
