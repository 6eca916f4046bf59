"""Splits: every way to share devices between training and generation that a program has, each with the seconds of its phases."""

from collections.abc import Iterator
from dataclasses import dataclass

from meshwise.catalogue.rl_programs import Overheads, RlProgram, Trainer
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.question import Question
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.lengths import Answers
from meshwise.plan.rl.roles import Training, part_of, trainings
from meshwise.plan.rl.rollout import Engine, Rollout, engines, generate

COLOCATED = "all devices in turn"
UNLINKED_RATE = 16e9  # bytes per second between devices of which no link is known: PCIe 3.0 x16
HOST_SHARE = 0.5  # share of the bandwidth to host memory at which states move: pageable and pinned buffers mixed. An assumption.
KEPT_FREE = 0.04  # share of a device's memory that an engine leaves to what stays of training
EIGHTHS = (1, 2, 3, 4, 5, 6, 7)  # parts of the devices, of eight, that may generate where there are more ways than these


@dataclass(frozen=True, kw_only=True)
class Split:
    """Devices that train and devices that generate; all do both in turn where they are the same."""

    name: str
    mode: str
    train_devices: int
    rollout_devices: int
    step: float  # seconds per step: the sum of the phases
    interval: tuple[float, float]  # seconds of a step: 90% of measured steps lie between
    phases: dict[str, float]
    """Seconds by phase as training devices see them: where others generate meanwhile, `rollout` is the time that they wait for answers."""
    phase_intervals: dict[str, tuple[float, float]]
    rollout_seconds: float  # seconds of the whole generation, however much of it is hidden
    tail_seconds: float  # seconds of it in which fewer than half of the answers at once are still generated
    training_seconds: float
    answers_per_second: float
    tokens_per_second: float  # tokens of answers
    update_mfu: float
    memory: dict[str, float]  # bytes of the fullest training device by role, and of the engine on a generating device
    peaks: dict[str, float]  # bytes of the fullest device while it trains and while it generates
    framework: str
    train_layout: str
    train_axes: dict[str, int | str]
    rollout_layout: str
    engine_tp: int
    engine_share: float
    at_once: int  # answers that are generated at once
    dollars_per_hour: float | None

    @property
    def together(self) -> bool:
        """Whether the same devices train and generate, in turn."""
        return self.mode == "colocated"


@dataclass(frozen=True)
class Setting:
    """Everything that the splits of a question have in common."""

    ask: TrainAsk
    program: RlProgram
    questions: tuple[tuple[Trainer, Question], ...]  # the question with each training framework of the program
    answers: Answers
    overheads: Overheads

    @property
    def q(self) -> Question:
        return self.questions[0][1]

    def trained(self, devices: int) -> list[Training]:
        """Return the training phases on some devices, of every framework of the program, the fastest first."""
        found: list[Training] = []
        for trainer, q in self.questions:
            part = q if devices == q.cluster.devices else part_of(q, devices)
            if part:
                found += trainings(self.ask, self.program, trainer, part, self.answers, self.overheads)
        return sorted(found, key=lambda one: one.seconds)

    def engines(self, share: float, taken: float) -> list[Engine]:
        return engines(self.ask, self.program, self.q.cluster, share, taken, self.overheads)

    def generated(self, choices: list[Engine], devices: int, *, steady: bool) -> Rollout | None:
        """Return the fastest generation on some devices; None where no engine fits."""
        found = [generate(self.ask, one, self.q.cluster, devices, self.answers, steady=steady) for one in choices]
        return min((one for one in found if one), key=lambda one: one.seconds, default=None)


def splits(s: Setting) -> Iterator[Split]:
    """Yield every split that fits, of the modes that the program has and the question allows."""
    modes = [mode for mode in s.program.modes if s.ask.mode in ("", mode)]
    if "colocated" in modes and not s.ask.rollout_devices:
        yield from _together(s)
    apart = [mode for mode in modes if mode != "colocated"]
    if not apart:
        return
    share = s.ask.engine_memory or s.program.share_apart
    choices = s.engines(share, 0.0)
    total = s.q.cluster.devices
    for devices in _shares(s):
        rollouts = {mode: s.generated(choices, devices, steady=mode == "async" or s.ask.partial) for mode in apart}
        if not any(rollouts.values()):
            continue
        training = next(iter(s.trained(total - devices)), None)
        for mode, rollout in rollouts.items():
            if training and rollout:
                yield _split(s, training, rollout, (total - devices, devices), mode, share)


def _together(s: Setting) -> Iterator[Split]:
    """Yield the fastest way for all devices to train and generate in turn: a slower training phase may leave the engine more memory."""
    best: Split | None = None
    memory, devices = s.q.chip.memory, s.q.cluster.devices
    wanted = s.ask.engine_memory or s.program.share
    known: dict[float, list[Engine]] = {}
    for training in s.trained(devices):
        if best and training.seconds >= best.step:
            break
        kept = 0.0 if s.program.offloads else training.resident
        share = min(wanted, 1 - KEPT_FREE - kept / memory)
        if share <= 0:
            continue
        share = round(share, 2) if share < wanted else share
        if share not in known:
            known[share] = s.engines(share, 0.0)
        rollout = s.generated(known[share], devices, steady=s.ask.partial)
        if rollout:
            split = _split(s, training, rollout, (devices, devices), "colocated", share)
            best = split if best is None or split.step < best.step else best
    if best:
        yield best


def _shares(s: Setting) -> Iterator[int]:
    """Yield how many devices may generate: any number in one node, whole nodes of several; eighths where there are more ways than these."""
    cluster = s.q.cluster
    if s.ask.rollout_devices:
        yield s.ask.rollout_devices
        return
    unit = 1 if cluster.node_count == 1 else cluster.node.devices
    units = cluster.devices // unit
    numbers = range(1, units) if units <= len(EIGHTHS) + 1 else sorted({max(1, units * part // 8) for part in EIGHTHS})
    yield from (number * unit for number in numbers)


def _split(s: Setting, training: Training, rollout: Rollout, devices: tuple[int, int], mode: str, share: float) -> Split:
    q, o, together = s.q, s.overheads, mode == "colocated"
    hidden = not together and not s.program.in_turn_apart
    waits = max(0.0, rollout.seconds - training.seconds) if hidden else rollout.seconds
    phases = {"rollout": waits, **training.phases, "weights": _reload(s, rollout, together), "switch": o.switch}
    if together and s.program.offloads:
        phases["switch"] += 2 * training.resident / (HOST_SHARE * (q.chip.host.bandwidth if q.chip.host else UNLINKED_RATE))
    step, rent = sum(phases.values()), q.cluster.rent
    kept = training.resident if together and not s.program.offloads else 0.0
    names = {"colocated": COLOCATED, "split": f"{devices[0]} train, {devices[1]} generate"}
    return Split(
        name=names.get(mode, f"{devices[0]} train, {devices[1]} generate, asynchronous"), mode=mode, train_devices=devices[0],
        rollout_devices=devices[1], step=step, interval=_interval(step, o.spread), phases=phases,
        phase_intervals={name: _interval(seconds, o.spreads.get(_part(name), o.spread)) for name, seconds in phases.items()},
        rollout_seconds=rollout.seconds, tail_seconds=rollout.tail, training_seconds=training.seconds,
        answers_per_second=s.answers.number / step, tokens_per_second=s.answers.number * s.answers.mean / step,
        update_mfu=training.mfu, memory={**training.roles, "engine weights": rollout.weights, "engine cache": rollout.cache},
        peaks={"training": training.peak, "rollout": rollout.weights + rollout.cache + kept}, framework=training.framework,
        train_layout=training.layout, train_axes=training.axes, rollout_layout=rollout.layout, engine_tp=rollout.tp,
        engine_share=share, at_once=rollout.at_once, dollars_per_hour=rent * 3600 if rent is not None else None,
    )  # fmt: skip


def _part(phase: str) -> str:
    return phase if phase in ("rollout", "update", "weights", "switch") else "reading"


def _interval(seconds: float, spread: float) -> tuple[float, float]:
    """Return the bounds of 90% of the measurements, whose logarithms are spread normally around the prediction."""
    factor = 2.718281828459045 ** (1.645 * spread)
    return seconds / factor, seconds * factor


def _reload(s: Setting, rollout: Rollout, together: bool) -> float:
    """Return seconds to bring the trained weights to the engines: adapters alone, or all weights in 16 bits, over the memory of one device,
    the link of a node, or the network into every node, which gets the part of the model that its engines hold."""
    q = s.q
    how = finetuned(q.model, q.work.finetune)
    size = how.adapter_bytes * how.trained.total if how.adapted else 2.0 * q.model.params
    if together and q.cluster.devices == 1:
        return 2 * size / q.chip.bandwidth
    inside = q.cluster.node.devices
    if q.cluster.node_count == 1:
        link = q.cluster.node.link
        return size / (s.overheads.reload * (link.bandwidth if link else UNLINKED_RATE))
    network = q.cluster.network
    return size * min(1.0, inside / rollout.tp) / (s.overheads.reload * (network.bandwidth if network else UNLINKED_RATE))
