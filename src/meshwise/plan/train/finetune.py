"""Facts of a fine-tuning plan beside its layouts: trained parameters, free memory, the largest batch, and time and cost of the data set."""

import math
from dataclasses import dataclass, replace

import numpy as np

from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Layouts
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import peak
from meshwise.cost.work import MAX_BATCH_TOKENS
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import dataset
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.lookup import padded_together

MAX_MICRO_BATCH = 4096  # largest micro-batch that is tried
UNIT_TOKENS = 64  # the longest sequence is found in multiples of this


@dataclass(frozen=True)
class Way:
    """One way to use several devices: its name, and the best layout of it, if any fits."""

    name: str
    seconds: float | None
    layout: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.seconds:.3g} s" if self.seconds is not None else f"{self.name} does not fit"


@dataclass(frozen=True)
class Rival:
    """The best layout of another program that fine-tunes on the same devices. Seconds and bytes per device."""

    program: str
    name: str
    seconds: float
    peak: float
    layout: str


@dataclass(frozen=True, kw_only=True)
class FinetuneFacts:
    """Figures of fine-tuning on the best layout. Bytes, tokens, seconds and dollars."""

    trained: int
    """Trained parameters."""
    parameters: int
    """Parameters of the model, without adapters."""
    saved_bytes: float
    """Size of the adapters' file, or of the whole model in 16 bits."""
    free: float
    """Bytes free on a device."""
    largest_batch: int
    """Sequences that a device can compute at once."""
    largest_batch_recompute: str
    longest: int
    """Tokens of the longest sequence that fits, alone on its device."""
    longest_recompute: str
    rows: int = 0
    real: float = 0.0
    """Share of the computed tokens that are not padding, as the rows are planned."""
    packed: float = 0.0
    padded: float = 0.0
    """`real` if rows are packed, and if they are padded."""
    longest_row: int = 0
    cut: int = 0
    """Sequences of the data that are longer than `--seq`, and end there."""
    counted: bool = False
    """Whether the rows state their tokens."""
    steps: float = 0.0
    """The last one may be smaller."""
    seconds: float = 0.0
    dollars: float | None = None
    ways: tuple[Way, ...] = ()
    """Ways to use several devices, each with its best layout."""
    rivals: tuple[Rival, ...] = ()
    """Other programs on the same devices, each with its best layout, the fastest first."""


def facts(ask: TrainAsk, q: Question, best: Choice) -> FinetuneFacts | None:
    """Return the figures of fine-tuning; None where neither a method nor data or another objective than plain text was asked for."""
    if not (ask.finetune or ask.data or q.work.objective.name != "sft"):
        return None
    how = finetuned(q.model, q.work.finetune)
    batch, batch_recompute = largest_batch(q, best)
    longest, longest_recompute = longest_sequence(q, best)
    saved = how.adapter_bytes * how.trained.total if how.adapted else 2.0 * q.model.params
    found = FinetuneFacts(
        trained=round(how.trained.total), parameters=q.model.params, saved_bytes=saved, free=best.capacity - best.needs,
        largest_batch=batch, largest_batch_recompute=batch_recompute, longest=longest, longest_recompute=longest_recompute,
    )  # fmt: skip
    return _with_data(found, ask, q, best) if ask.data else found


def _with_data(found: FinetuneFacts, ask: TrainAsk, q: Question, best: Choice) -> FinetuneFacts:
    data = dataset.read(ask.data, q.work.objective)
    packed, padded = data.packed(ask.seq)[1], data.padded(ask.seq, padded_together(ask))[1]
    seconds = (best.days or 0.0) * 86400
    return replace(
        found, rows=data.rows, real=packed if ask.packing else padded, packed=packed, padded=padded,
        longest_row=int(data.lengths.max()), cut=data.longer_than(ask.seq), counted=data.counted,
        steps=math.ceil(seconds / best.step - 1e-9), seconds=seconds, dollars=best.dollars,
    )  # fmt: skip


def _ways(q: Question, best: Choice) -> list[str]:
    """Return the best layout's own way to recompute, and the one that keeps least."""
    return list(dict.fromkeys((str(best.layout["recompute"]), *(("full",) if "full" in q.work.framework.recompute else ()))))


def largest_batch(q: Question, best: Choice) -> tuple[int, str]:
    """Return the most sequences that fit on a device at once, with the layout of `best`, and how their activations are recomputed."""
    room, sizes = q.chip.memory * (1 - q.work.reserve), np.arange(1, MAX_MICRO_BATCH + 1)
    found = [(0, "")]
    for way in _ways(q, best):
        layouts = replace(_repeated(best, len(sizes)), mbs=sizes, recompute=np.full(len(sizes), RECOMPUTE.index(way)))
        work = replace(q.work, batch=int(layouts.dp[0]) * sizes)
        found.append((int(np.count_nonzero(peak(replace(q, work=work), layouts) <= room)), way))
    return max(found, key=lambda entry: entry[0])


def longest_sequence(q: Question, best: Choice) -> tuple[int, str]:
    """Return the longest sequence in steps of UNIT_TOKENS that fits with the layout of `best` and one sequence per device; at most the
    context of the model."""
    room = q.chip.memory * (1 - q.work.reserve)
    context = int(q.model.decoder.context or MAX_BATCH_TOKENS)
    found = [(0, "")]
    for way in _ways(q, best):
        layout = replace(
            Layouts.from_row(best.layout), mbs=np.ones(1, dtype=np.int64), recompute=np.array([RECOMPUTE.index(way)])
        )

        def fits(units: int, layout: Layouts = layout) -> bool:
            work = replace(q.work, seq=min(UNIT_TOKENS * units, context), batch=int(layout.dp[0]))
            return bool(peak(replace(q, work=work), layout)[0] <= room)

        least, most, last = 0, 1, math.ceil(context / UNIT_TOKENS)
        while most <= last and fits(most):
            least, most = most, 2 * most
        most = min(most, last + 1)
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if fits(middle) else (least, middle)
        found.append((min(UNIT_TOKENS * least, context), way))
    return max(found, key=lambda entry: entry[0])


def _repeated(best: Choice, number: int) -> Layouts:
    return Layouts.from_row(best.layout).take(np.zeros(number, dtype=np.int64))
