"""The planner's prediction for a run, part by part, and the layouts that it would try next."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from meshwise.cost.parts import TRAIN_WORDS
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.train.choice import TIE_SHARE, Choice, differences
from meshwise.plan.train.energy import trained
from meshwise.plan.train.own_run import finetune_words
from meshwise.plan.train.search import search
from meshwise.run.train.launch import Launch
from meshwise.run.train.report.memory import layout_of
from meshwise.runs.compare import MAX_TRIED, layouts
from meshwise.runs.table import run_of
from meshwise.workers.trainer.contract.rows import PREDICTED_COLUMNS
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules

LAYOUTS_SHOWN = 3  # faster layouts that the report shows
GENERIC_CHIP = "cpu"  # the chip that stands for any CPU


@dataclass(frozen=True)
class Forecast:
    """The prediction for a run's own layout, and faster layouts."""

    here: Choice
    scale: float
    """Factor on predicted seconds: 1, or on a generic CPU the measured over the predicted time of earlier runs in this folder."""
    fitted: int  # number of earlier runs that the scale comes from
    kind: str  # gpu, tpu or cpu
    generic: bool  # whether the chip is the generic CPU, which does not describe this machine
    evaluated: int  # layouts that the search evaluated
    better: tuple[Choice, ...]
    """Layouts on as many devices that the trainer can run and that are faster by more than TIE_SHARE, fastest first."""
    doubled: Choice | None  # the fastest layout with twice the batch, if one fits
    watts: float | None  # power of this node's devices in a step; None where the chip states no limit

    @property
    def seconds(self) -> float:
        """Predicted seconds per step."""
        return self.scale * self.here.step


def forecast(ready: Launch, earlier: list[dict[str, Any]]) -> Forecast:
    """Return the planner's forecast for a run. `earlier`: rows of the runs before it in the same folder."""
    q, here = ready.question(), ready.predicted()
    found = search(q, top=MAX_TRIED)
    generic = q.chip.key == GENERIC_CHIP
    ratios = scales(earlier, ready.settings) if generic else []
    faster = [one for one in layouts(q, _keeps_rules(ready.settings), found=found) if one.step < here.step * (1 - TIE_SHARE)]
    batch = 2 * ready.settings.batch
    own = ready.processes_here
    drawn = trained(EnergyAsk(), q.chip, own, own, here.time, here.mfu, None)
    larger = layouts(replace(q, work=replace(q.work, batch=batch)), _keeps_rules(replace(ready.settings, batch=batch)))
    return Forecast(
        here=here, scale=median(ratios) if ratios else 1.0, fitted=len(ratios), kind=q.chip.kind, generic=generic,
        evaluated=found.evaluated, better=tuple(_distinct(faster))[:LAYOUTS_SHOWN], doubled=next(larger, None),
        watts=drawn.watts if drawn else None,
    )  # fmt: skip


def scales(rows: list[dict[str, Any]], settings: Settings) -> list[float]:
    """Return measured over predicted seconds of earlier runs with as many processes, which share the cores, and the same --compile."""
    same = (settings.device, settings.layout.devices, "yes" if settings.compile else "no")
    predicted = [(run_of(row), row) for row in rows if row.get(PREDICTED_COLUMNS[0])]
    alike = [(run, row) for run, row in predicted if (run.text("chip"), run.whole("devices"), row.get("compiled")) == same]
    return [run.number("seconds") / float(row[PREDICTED_COLUMNS[0]]) for run, row in alike if run.stated("seconds")]


def _keeps_rules(settings: Settings) -> Callable[[Choice], bool]:
    return lambda one: not broken_rules(replace(settings, layout=layout_of(one.layout)))


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
    gain: float  # predicted tokens per second over those of the run, less 1
    command: str  # the command that runs it; '' where that is not worth it
    doubled: bool = False  # whether it is for twice the batch


def suggestions(settings: Settings, forecast: Forecast) -> list[Suggestion]:
    """Return the faster layouts, then the fastest one with twice the batch, if one fits."""
    here, doubled = forecast.here, forecast.doubled
    found = [
        Suggestion(better, here.step / better.step - 1, command(settings, layout_of(better.layout), settings.batch))
        for better in forecast.better
    ]
    if doubled is not None:
        gain = doubled.tokens_per_second / (settings.batch * settings.seq / here.step) - 1
        pays = not forecast.better and gain > TIE_SHARE
        words = command(settings, layout_of(doubled.layout), 2 * settings.batch) if pays else ""
        found.append(Suggestion(doubled, gain, words, doubled=True))
    return found
