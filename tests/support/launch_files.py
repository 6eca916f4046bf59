"""Launch files for tests: fixtures, plans exported and read again, and layouts drawn at random."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwise.audit.check.layout import normal, row_of
from meshwise.cost.axes import NAMES
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.programs.program import Program, Setup, Written, programs
from meshwise.programs.read.command import Started
from meshwise.programs.read.companions import Candidate, Found, Together, facts_of, settings_of
from meshwise.programs.read.flags import settings
from meshwise.programs.setup import of_plan
from meshwise.programs.source import Source, Word
from meshwise.runs import derive
from meshwise.runs.run import Run, Span

FIXTURES = Path(__file__).parents[1] / "fixtures" / "launch"
CONFIGS = (
    "automodel", "axolotl", "deepspeed", "llama-factory", "mlx-lm", "nanotron", "torchtitan-0.2", "torchtune", "unsloth"
)  # fmt: skip
"""Programs whose facts are all in a configuration file; the others say them in a command too."""
QUESTIONS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-8b", "on": "8x8xh100-sxm", "batch": "512x4096", "framework": "megatron"},
    "experts": {"model": "qwen3-30b-a3b", "on": "8x8xh100-sxm", "batch": "512x4096", "framework": "megatron"},
    "bloom": {
        "model": "bloom-176b",
        "on": "jean-zay:48",
        "batch": "2048x2048",
        "framework": "megatron-deepspeed",
        "tokens": "366B",
    },
}


@cache
def plan(name: str) -> TrainPlan:
    """Return a plan of one layout, whose facts tests change."""
    return make(TrainAsk(**QUESTIONS[name], top=1))


@cache
def base(name: str) -> Setup:
    return of_plan(plan(name))


def with_layout(setup: Setup, layout: Mapping[str, int | str], **more: Any) -> Setup:
    """Return a setup with other axes on the same devices, and the batch cut accordingly."""
    values = {**setup.values, **layout, **more}
    dp = int(values["dp_replicate"]) * int(values["dp_shard"])  # type: ignore[call-overload]
    accumulation = int(values["batch"]) // (dp * int(values["mbs"]))  # type: ignore[call-overload]
    return replace(setup, values={**values, "dp": dp, "accumulation": accumulation})


def said(program: Program, written: Written) -> Together:
    """Return what the files and the command of an export say when they are read again."""
    sources = tuple(Source(name, text) for name, text in written.files.items())
    words = [Word(word, Span("command", 1)) for word in written.command]
    if program.name in CONFIGS:
        source = next(source for source in sources if source.file != "ds_config.json" or program.name == "deepspeed")
        one = Candidate(program, tuple(settings_of(source)), 9, source)
        return facts_of(one, Found((one,), (), (), sources, ()))
    launcher: tuple[Word, ...] = ()
    if words[0].text == "accelerate":
        script = next(number for number, word in enumerate(words) if "TRAIN_SCRIPT" in word.text)
        launcher, words, program = tuple(words[2:script]), words[script:], programs()["trainer"]
    started = Started(words[0].text, tuple(words[1:]), (), "accelerate" if launcher else "", launcher)
    one = Candidate(program, tuple(settings(started.words, program.takes)), 9, Source("command", ""), started)
    return facts_of(one, Found((one,), (), (), sources, ()))


def read_again(program: Program, setup: Setup) -> tuple[Run, dict[str, int | str]]:
    """Export a setup, read it again, and return the facts with the layout that they make."""
    assert program.write is not None
    together = said(program, program.write(setup))
    facts = derive.complete(together.facts, setup.whole("devices"))
    row, missing = row_of(program, facts)
    assert {one.fact for one in missing} <= UNSAID.get(program.name, set()), [str(one) for one in missing]
    return facts, row


UNSAID = {"deepspeed": {"recompute"}}
"""Axes that a program cannot say at all; the exporter refuses all but their least value."""


def layout_of(setup: Setup) -> dict[str, int | str]:
    """Return the layout of a setup as the planner writes it."""
    row = {name: setup.values[name] for name in NAMES}
    return normal(row)  # type: ignore[arg-type]
