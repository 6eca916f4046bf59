"""What the planner says of a run: how long each part should take, and which layout it would try next."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, cast

from meshwise.cost.axes import layout_name
from meshwise.cost.parts import TRAIN_WORDS
from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import TIE, Choice, choice
from meshwise.plan.train.explain import differences
from meshwise.plan.train.search import Found, search
from meshwise.run.train.launch import Launch
from meshwise.units import GIB
from meshwise.workers.trainer.report.rows import PREDICTED
from meshwise.workers.trainer.settings import Layout, Settings, broken_rules

ASKED = 32
"""Layouts asked of the search for each that is told: the trainer may not be able to run some."""
TOLD = 3
GENERIC = "cpu"
"""The chip that stands for any CPU."""


@dataclass(frozen=True)
class Forecast:
    """The planner's answer for what was run, and for what could be."""

    here: Choice
    scale: float
    """What seconds are multiplied by: 1, or on a generic CPU what earlier runs here took over what was predicted."""
    fitted: int
    """Earlier runs that the scale comes from."""
    kind: str
    """gpu, tpu or cpu."""
    generic: bool
    """Whether the chip is a generic one, which predicts no machine by itself."""
    priced: int
    better: tuple[Choice, ...]
    """Layouts of as many devices that the trainer can run and that are faster by more than a tie, fastest first."""
    doubled: Choice | None
    """The fastest with twice the batch, where one fits."""

    @property
    def seconds(self) -> float:
        return self.scale * self.here.step


def forecast(ready: Launch, earlier: list[dict[str, Any]]) -> Forecast:
    """Ask the planner about a run, with rows of runs before it in the same folder."""
    q, here = ready.question(), ready.predicted()
    found = search(q, top=ASKED)
    generic = q.chip.key == GENERIC
    ratios = scales(earlier, ready.settings) if generic else []
    faster = [one for one in _runnable(q, found, ready.settings) if one.step < here.step * (1 - TIE)]
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
        priced=found.priced,
        better=tuple(_distinct(faster))[:TOLD],
        doubled=next(_runnable(larger, search(larger, top=ASKED), twice), None),
    )


def scales(rows: list[dict[str, Any]], settings: Settings) -> list[float]:
    """Measured over predicted seconds, of runs on as many processes that were compiled or not as this one: processes share cores."""
    same = {"gpu": settings.device, "n_gpus": settings.layout.devices, "compiled": "yes" if settings.compile else "no"}
    kept = [row for row in rows if row.get(PREDICTED[0]) and row.get("sec_per_iter") and same.items() <= row.items()]
    return [float(row["sec_per_iter"]) / float(row[PREDICTED[0]]) for row in kept]


def _runnable(q: Question, found: Found, settings: Settings) -> Iterator[Choice]:
    """What a search found, fastest first, less what the trainer's own rules refuse."""
    for i in range(len(found.layouts)):
        if not broken_rules(replace(settings, layout=layout_of(found.layouts.row(i)))):
            yield choice(q, found.layouts, found.cost, i)


def layout_of(row: "dict[str, int | str]") -> Layout:
    """A planner's layout as the trainer's; without shards there is no stage of ZeRO to name."""
    axes = {f.name: row[f.name] for f in fields(Layout)}
    return Layout(**cast(Any, axes | ({} if int(row["dp_shard"]) > 1 else {"zero": Layout.zero})))


def _distinct(choices: list[Choice]) -> Iterator[Choice]:
    """The fastest of each way to cut: near-ties that cut alike are one thing to try."""
    seen: set[tuple[object, ...]] = set()
    for one in choices:
        cut = tuple(one.layout[axis] for axis in ("tp", "pp", "cp", "mbs"))
        if cut not in seen:
            seen.add(cut)
            yield one


def why(better: Choice, here: Choice) -> str:
    """Where the planner sees the gain: the parts that differ most."""
    rows = differences(better, here)[:2]
    words = [f"{'less' if row.gained > 0 else 'more'} time in {TRAIN_WORDS[row.part]}" for row in rows]
    return " and ".join(words) if words else "no part stands out"


def command(settings: Settings, layout: Layout, batch: int) -> str:
    """What runs this layout: the axes that are not as `run` takes them by itself."""
    plain = Layout()
    axes = [(f.name, getattr(layout, f.name)) for f in fields(Layout)]
    words = [f"--{name.replace('_', '-')} {value}" for name, value in axes if value != getattr(plain, name) or name == "mbs"]
    usual = settings.device == "cuda"
    more = [] if settings.compile == usual else ["--compile" if settings.compile else "--no-compile"]
    model = shlex.quote(settings.given or settings.name)
    return " ".join(["meshwise run", model, *words, f"--batch {batch}x{settings.seq}", *more])


def advice(settings: Settings, found: Forecast) -> tuple[list[str], list[str]]:
    """The next thing to try in words, and the commands that try it."""
    here, tokens = found.here, settings.batch * settings.seq
    lines: list[str] = []
    commands: list[str] = []
    for one in found.better:
        gain, layout = here.step / one.step - 1, layout_of(one.layout)
        lines.append(
            f"{layout_name(one.layout)}: {gain:+.0%} tokens/s predicted over {layout_name(here.layout)}, "
            f"{one.peak / GIB:.2f} GiB a device against {here.peak / GIB:.2f}; {why(one, here)}"
        )
        commands.append(command(settings, layout, settings.batch))
    if not found.better:
        lines.append(
            f"{layout_name(here.layout)} is already the fastest of {found.priced:,} layouts for this batch, within {TIE:.0%}."
        )
    if found.doubled is not None:
        gain = found.doubled.tokens_per_second / (tokens / here.step) - 1
        lines.append(f"Twice the batch: {gain:+.0%} tokens/s predicted, with {layout_name(found.doubled.layout)}.")
        if not found.better and gain > TIE:
            commands.append(command(settings, layout_of(found.doubled.layout), 2 * settings.batch))
    return lines, commands
