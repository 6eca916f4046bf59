"""The planner's prediction for a run, part by part, and the layouts that it would try next."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from meshwise.cost.parts import TRAIN_WORDS
from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import TIE, Choice, choice, differences
from meshwise.plan.train.own_run import finetune_words
from meshwise.plan.train.search import Found, search
from meshwise.run.train.launch import Launch
from meshwise.run.train.report.memory import layout_of
from meshwise.workers.trainer.contract.rows import PREDICTED
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules

SEARCHED = 32
"""Number of layouts to search for: the trainer may not be able to run some of them."""
SHOWN = 3
"""Faster layouts that the report shows."""
GENERIC = "cpu"
"""The chip that stands for any CPU."""


@dataclass(frozen=True)
class Forecast:
    """The prediction for a run's own layout, and faster layouts."""

    here: Choice
    scale: float
    """Factor on predicted seconds: 1, or on a generic CPU the measured over the predicted time of earlier runs in this folder."""
    fitted: int
    """Number of earlier runs that the scale comes from."""
    kind: str
    """gpu, tpu or cpu."""
    generic: bool
    """Whether the chip is the generic CPU, which does not describe this machine."""
    evaluated: int
    """Layouts that the search evaluated."""
    better: tuple[Choice, ...]
    """Layouts on as many devices that the trainer can run and that are faster by more than TIE, fastest first."""
    doubled: Choice | None
    """The fastest layout with twice the batch, if one fits."""

    @property
    def seconds(self) -> float:
        """Predicted seconds per step."""
        return self.scale * self.here.step


def forecast(ready: Launch, earlier: list[dict[str, Any]]) -> Forecast:
    """Return the planner's forecast for a run. `earlier`: rows of the runs before it in the same folder."""
    q, here = ready.question(), ready.predicted()
    result = search(q, top=SEARCHED)
    generic = q.chip.key == GENERIC
    ratios = scales(earlier, ready.settings) if generic else []
    faster = [row for row in _runnable(q, result, ready.settings) if row.step < here.step * (1 - TIE)]
    larger, twice = (
        replace(q, work=replace(q.work, batch=2 * ready.settings.batch)),
        replace(ready.settings, batch=2 * ready.settings.batch),
    )
    return Forecast(
        here=here,
        scale=median(ratios) if ratios else 1.0,
        fitted=len(ratios),
        kind=q.chip.kind,
        generic=generic,
        evaluated=result.evaluated,
        better=tuple(_distinct(faster))[:SHOWN],
        doubled=next(_runnable(larger, search(larger, top=SEARCHED), twice), None),
    )


def scales(rows: list[dict[str, Any]], settings: Settings) -> list[float]:
    """Return measured over predicted seconds of earlier runs with as many processes, which share the cores, and the same --compile."""
    same = {"gpu": settings.device, "n_gpus": settings.layout.devices, "compiled": "yes" if settings.compile else "no"}
    kept = [row for row in rows if row.get(PREDICTED[0]) and row.get("sec_per_iter") and same.items() <= row.items()]
    return [float(row["sec_per_iter"]) / float(row[PREDICTED[0]]) for row in kept]


def _runnable(q: Question, result: Found, settings: Settings) -> Iterator[Choice]:
    """Yield the layouts that a search found, fastest first, without those that break the trainer's rules."""
    for i in range(len(result.layouts)):
        if not broken_rules(replace(settings, layout=layout_of(result.layouts.row(i)))):
            yield choice(q, result.layouts, result.cost, i)


def _distinct(choices: list[Choice]) -> Iterator[Choice]:
    """Yield the fastest layout of each combination of tp, pp, cp and micro-batch; layouts with the same ones are nearly equally fast."""
    seen: set[tuple[object, ...]] = set()
    for row in choices:
        cut = tuple(row.layout[axis] for axis in ("tp", "pp", "cp", "mbs"))
        if cut not in seen:
            seen.add(cut)
            yield row


def why(better: Choice, here: Choice) -> str:
    """Return the parts of the step in which two layouts differ most."""
    rows = differences(better, here)[:2]
    words = [f"{'less' if row.gained > 0 else 'more'} time in {TRAIN_WORDS[row.part]}" for row in rows]
    return " and ".join(words) if words else "no part stands out"


def command(settings: Settings, layout: Layout, batch: int) -> str:
    """Return the command that runs a layout; axes with their default are left out."""
    plain = Layout()
    axes = [(f.name, getattr(layout, f.name)) for f in fields(Layout)]
    words = [f"--{name.replace('_', '-')} {value}" for name, value in axes if value != getattr(plain, name) or name == "mbs"]
    default = settings.device == "cuda"
    more = [] if settings.compile == default else ["--compile" if settings.compile else "--no-compile"]
    more += [f"--finetune {finetune_words(settings)}"] if settings.finetune.freezes else []
    model = shlex.quote(settings.given or settings.name)
    return " ".join(["meshwise run", model, *words, f"--batch {batch}x{settings.seq}", *more])


@dataclass(frozen=True)
class Suggestion:
    """A layout to try next."""

    choice: Choice
    gain: float
    """Predicted tokens per second over those of the run, less 1."""
    command: str
    """The command that runs it; '' where that is not worth it."""
    doubled: bool = False
    """Whether it is for twice the batch."""


def suggestions(settings: Settings, forecast: Forecast) -> list[Suggestion]:
    """Return the faster layouts, then the fastest one with twice the batch, if one fits."""
    here, doubled = forecast.here, forecast.doubled
    found = [
        Suggestion(better, here.step / better.step - 1, command(settings, layout_of(better.layout), settings.batch))
        for better in forecast.better
    ]
    if doubled is not None:
        gain = doubled.tokens_per_second / (settings.batch * settings.seq / here.step) - 1
        pays = not forecast.better and gain > TIE
        words = command(settings, layout_of(doubled.layout), 2 * settings.batch) if pays else ""
        found.append(Suggestion(doubled, gain, words, doubled=True))
    return found
