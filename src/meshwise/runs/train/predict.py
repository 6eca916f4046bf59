"""Predictions for measured runs: cases that share a model and a machine are evaluated together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue import levels
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import fabric_of
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.parts import TRAIN_PARTS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.runs.train.case import Case

MICRO_BATCHES = (1, 2, 4, 8, 16)  # micro-batches tried for a row that does not state its own


@dataclass(frozen=True)
class Prediction:
    """Seconds per step and bytes on the fullest device of each case."""

    seconds: Floats
    memory: Floats  # bytes of what each case's measured memory counts
    needs: Floats = field(default_factory=lambda: np.zeros(0))
    """Bytes that a device must have: tensors and context, without what the allocator can give back; empty: those of `memory`."""

    @property
    def needed(self) -> Floats:
        return self.needs if len(self.needs) else self.memory


@dataclass(frozen=True)
class Block:
    """Cases that are evaluated in one call: their common question, and their layouts."""

    rows: Ints
    question: Question
    trials: tuple[tuple[Layouts, NDArray[np.bool_]], ...]
    """The layouts, once or once per micro-batch tried, with the cases for which that micro-batch is valid."""

    kinds: tuple[str, ...] = ()  # the kind of bytes that the measured memory of each case counts

    def evaluate(self, calibration: Calibration | None) -> tuple[Floats, Floats, Floats, Floats]:
        """Return seconds, bytes measured and needed, and seconds by part; of several micro-batches, the fastest that fits."""
        q = replace(self.question, calibration=calibration or self.question.calibration)
        seconds, memory, counted = (np.full(len(self.rows), np.inf) for _ in range(3))
        parts = np.zeros((len(TRAIN_PARTS), len(self.rows)))
        for layouts, valid in self.trials:
            cost = evaluate(q, layouts)
            needs, measured = cost.peak - cost.memory["allocator"], _counted(cost.memory, self.kinds)
            fits, fitted = needs < q.chip.memory, memory < q.chip.memory
            better = valid & ((fits & ~fitted) | ((fits == fitted) & (cost.step < seconds)))
            seconds, memory = np.where(better, cost.step, seconds), np.where(better, needs, memory)
            counted = np.where(better, measured, counted)
            parts = np.where(better, np.stack([np.broadcast_to(part, better.shape) for part in cost.time.values()]), parts)
        return seconds, counted, memory, parts.T


def _counted(sizes: dict[str, Floats], kinds: Sequence[str]) -> Floats:
    """Return the bytes that a measured memory of each kind counts."""
    held = np.array(kinds or [""])
    beside = np.where((held == "") | (held == "device"), sizes["context"], 0.0)
    kept = np.where((held == "reserved") | (held == "device"), sizes["allocator"], 0.0)
    return sum((values for kind, values in sizes.items() if kind not in ("context", "allocator")), beside + kept)


@dataclass(frozen=True)
class Batch:
    """Cases prepared for repeated evaluation, as a fit needs it."""

    blocks: tuple[Block, ...]  # of distinct cases: rows of large tables often repeat a run
    size: int  # distinct cases
    which: Ints  # the distinct case of each case

    @staticmethod
    def of(cases: Sequence[Case]) -> "Batch":
        distinct, which = _distinct(cases)
        return Batch(_blocks(distinct), len(distinct), which)

    def evaluate(self, calibration: "Calibration | Callable[[Question], Calibration] | None" = None) -> Prediction:
        """Predict all cases with one calibration, with one per question, or each with the one chosen for its chip and framework."""
        return self.evaluate_parts(calibration)[0]

    def shares(self, calibration: "Calibration | Callable[[Question], Calibration] | None" = None) -> Floats:
        """Return the share of each part of TRAIN_PARTS in each case's seconds, one row per case."""
        return self.evaluate_parts(calibration)[1]

    def evaluate_parts(
        self, calibration: "Calibration | Callable[[Question], Calibration] | None" = None
    ) -> tuple[Prediction, Floats]:
        """Return the prediction of all cases, and the share of each part of TRAIN_PARTS in each case's seconds."""
        seconds, memory, needs = (np.full(self.size, np.nan) for _ in range(3))
        parts = np.zeros((self.size, len(TRAIN_PARTS)))
        for block in self.blocks:
            used = calibration(block.question) if callable(calibration) else calibration
            seconds[block.rows], memory[block.rows], needs[block.rows], parts[block.rows] = block.evaluate(used)
        with np.errstate(invalid="ignore"):
            shares = parts / np.sum(parts, axis=1, keepdims=True)
        return Prediction(seconds[self.which], memory[self.which], needs[self.which]), shares[self.which]


def _distinct(cases: Sequence[Case]) -> tuple[list[Case], Ints]:
    """Return one of the cases that share model, machine, task and layout as objects, and which of these each case is."""
    numbers: dict[tuple[object, ...], int] = {}
    distinct: list[Case] = []
    which = np.zeros(len(cases), dtype=np.int64)
    for i, case in enumerate(cases):
        which[i] = number = numbers.setdefault(
            (id(case.model), id(case.cluster), id(case.work), id(case.layout), case.memory_kind), len(distinct)
        )
        if number == len(distinct):
            distinct.append(case)
    return distinct, which


def _blocks(cases: Sequence[Case]) -> tuple[Block, ...]:
    """Return cases with a common question together."""
    rows_by_key: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        node = case.cluster.node
        network = case.cluster.network.bandwidth if case.cluster.network else 0.0
        wiring = (node.devices, network, fabric_of(case.cluster.network), case.cluster.torus, case.cluster.tiers)
        work = case.work
        chip = (case.chip.key, case.chip.memory)
        task = (work.framework, work.seq, work.precision, work.compiled, work.loss, work.imbalance, work.optimizer, work.finetune)
        task = (*task, work.in_backward)
        key = (case.model.name, chip, wiring, *task)
        rows_by_key.setdefault(key, []).append(i)
    return tuple(_block(cases, rows) for rows in rows_by_key.values())


def predict(cases: Sequence[Case], calibration: Calibration | None = None) -> Prediction:
    """Predict cases with one calibration, or each with the one chosen for its chip and framework."""
    return Batch.of(cases).evaluate(calibration)


def _block(cases: Sequence[Case], rows: list[int]) -> Block:
    block = [cases[i] for i in rows]
    first = block[0]
    batch = np.array([case.work.batch for case in block])
    axes = {name: np.array([case.layout[name] for case in block]) for name in first.layout}
    unknown = axes["mbs"] == 0
    per_replica = batch // (axes["dp_replicate"] * axes["dp_shard"])
    trials: list[tuple[Layouts, NDArray[np.bool_]]] = []
    for mbs in MICRO_BATCHES if unknown.any() else (1,):
        valid = (per_replica % mbs == 0) | (mbs == 1) if unknown.any() else np.ones(len(rows), dtype=bool)
        trials.append((Layouts.of(**(axes | {"mbs": np.where(unknown, np.where(valid, mbs, 1), axes["mbs"])})), valid | ~unknown))
    chosen = levels.choose_for(first.cluster, first.work.framework)
    question = Question.of(first.model, first.cluster, replace(first.work, batch=batch), chosen)
    return Block(np.array(rows), question, tuple(trials), tuple(case.memory_kind for case in block))
