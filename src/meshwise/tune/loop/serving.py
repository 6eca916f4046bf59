"""Layouts and options of an engine as candidates, measured with `meshwise bench`: seconds per output token of all requests together."""

import csv
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from meshwise.calibrate import dispatch
from meshwise.catalogue import files
from meshwise.errors import UserError, quoted
from meshwise.plan import plan as plans
from meshwise.plan.serve.choice import ServeChoice
from meshwise.plan.serve.plan import ServePlan, make
from meshwise.programs.engines import commands
from meshwise.run.bench.ask import BenchAsk
from meshwise.run.serve import report
from meshwise.run.serve.deployment import ask_here, ask_of
from meshwise.tune.ask import TuneAsk, parse_options
from meshwise.tune.belief.space import Space
from meshwise.tune.loop import reading
from meshwise.tune.loop.launch import LOG, End, Job, filled, last_lines, with_markers
from meshwise.tune.loop.reading import Outcome
from meshwise.tune.loop.subject import Candidate, Verdict

ENGINE_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "llama.cpp": {"ubatch-size": ("256", "512", "1024", "2048"), "flash-attn": ("on", "off")},
    "vllm": {"max-num-batched-tokens": ("2048", "4096", "8192", "16384")},
    "sglang": {"chunked-prefill-size": ("2048", "4096", "8192", "16384")},
}
"""Flags of engines whose best value depends on the machine and that change no result, with values around their defaults."""
AXES = ("split", "cards", "tp", "pp")  # axes by which `meshwise serve --fix` finds a layout again
MAX_CANDIDATES = 1000
REPORT, ROWS, PLAN = "report.json", "rows.csv", "serve.json"


@dataclass(frozen=True)
class Option:
    """A layout with values of the engine's flags."""

    choice: ServeChoice
    flags: dict[str, str]

    @property
    def fixed(self) -> str:
        """The layout in the words of --fix."""
        return ",".join(f"{axis}={getattr(self.choice, axis)}" for axis in AXES)

    @property
    def name(self) -> str:
        return ", ".join([self.choice.name, *(f"{name} {value}" for name, value in self.flags.items())])

    @property
    def words(self) -> str:
        """The flags as the engine's command has them."""
        return shlex.join([word for name, value in self.flags.items() for word in (f"--{name}", value)])


class Serving:
    """A served model as the subject of a tuning."""

    unit = "output token"

    def __init__(self, plan: ServePlan | None, ask: TuneAsk) -> None:
        self.ask = ask
        base = ask_of(plan) if plan is not None else ask_here(ask.what, ask.on)
        if Path(base.model).is_file():
            base = replace(base, model=_path(base.model))  # a run starts in a folder of its own
        self.plan = (
            plan if plan is not None and plan.ask.top >= MAX_CANDIDATES else make(replace(base, top=MAX_CANDIDATES), commands)
        )
        self.base = ask_of(self.plan)
        self.options = candidates(self.plan, ask)
        users = f"{self.base.users} concurrent request{'s' * (self.base.users > 1)}"
        self.title = f"{Path(self.base.model).name} with {self.plan.engine} on {self.base.on}, {users}"
        self.space = _space(self.options)

    @property
    def setting(self) -> str:
        """Model, machine, engine and load."""
        b = self.base
        key = (b.model, b.on, b.engine, b.users, b.prompt, b.output, b.context, b.kv, self.plan.weights, self.plan.cluster)
        return plans.versions(setting=key)["setting"]

    # Candidates.

    def devices(self, row: int) -> int:
        return self.options[row].choice.cards * self.options[row].choice.replicas

    def describe(self, row: int) -> Candidate:
        return {"fix": self.options[row].fixed, "flags": dict(self.options[row].flags)}

    def find(self, candidate: Candidate) -> int | None:
        return next((row for row in range(len(self.options)) if self.describe(row) == candidate), None)

    def drop(self, row: int) -> None:
        self.options = [option for number, option in enumerate(self.options) if number != row]
        self.space = self.space.take(np.arange(len(self.space)) != row)

    def words(self, row: int) -> list[str]:
        made = self.plan_of(row)
        return [self.options[row].name, *made.commands.get(made.engine, ())]

    def predicted_memory(self, row: int) -> float | None:
        return None

    def mode(self, row: int, seconds: float) -> str:
        return ""

    def plan_of(self, row: int) -> ServePlan:
        """Return the plan of one candidate: its layout, and its flags at the end of its server's command."""
        option = self.options[row]
        made = make(replace(self.base, fix=(option.fixed,)), commands)
        lines = made.commands.get(made.engine, ())
        longer = (*lines[:-1], f"{lines[-1]} {option.words}".strip()) if lines else ()
        return replace(made, commands={**made.commands, made.engine: longer})

    # Starting.

    def prepare(self, row: int, number: int, folder: Path) -> Job:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan_of(row).save(folder / PLAN)
        ask, option = self.ask, self.options[row]
        bench = BenchAsk(
            what=str(folder / PLAN), repeats=ask.repeats, engine_path=ask.engine_path, model_file=_path(ask.model_file),
            engine_flags=option.words, start_within=ask.timeout,
        )  # fmt: skip
        words = [*shlex.split(bench.command())[1:], "--out", str(folder / REPORT), "--rows", str(folder / ROWS)]
        script = f"#!/bin/bash\n{shlex.join([sys.executable, '-m', 'meshwise', *words])}\n"
        files.write(folder / "bench.sh", with_markers(script, folder))
        return self.job(row, number, folder)

    def job(self, row: int, number: int, folder: Path) -> Job:
        script = str(folder / "bench.sh")
        values = {"script": script, "file": script, "folder": str(folder), "name": f"bench-{number}", "run": str(number)}
        return Job(folder, filled(self.ask.launch or "bash {script}", values), filled(self.ask.log, values))

    # Reading.

    def read(self, row: int, folder: Path, end: End) -> Outcome:
        if (folder / REPORT).is_file():
            return self.read_log(row, folder / REPORT)
        if end.how == "lost":
            return Outcome(rejected=f"it is gone without an exit code; its last lines: {last_lines(folder / LOG)}")
        kind = reading.failure(folder / LOG, end, self.ask.timeout)
        return Outcome(failure=kind, note=last_lines(folder / LOG, 1))

    def read_log(self, row: int, log: Path) -> Outcome:
        try:
            points: Sequence[Mapping[str, Any]] = report.read(log)["points"]
        except (UserError, KeyError, json.JSONDecodeError) as error:
            return Outcome(rejected=f"{log.name} cannot be read: {error}")
        rate = points[0].get("with_prompts") if points else None
        if not rate:
            faults = "; ".join(points[0].get("faults", {})) if points else ""
            return Outcome(rejected=f"nothing was measured{f': {faults}' if faults else ''}")
        return Outcome(
            seconds=1 / float(rate), note=f"{points[0].get('repeats', 0)} repeats within {100 * points[0]['spread']:.1f}%"
        )

    def table_row(self, row: int, number: int, outcome: Outcome) -> Mapping[str, Any]:
        rows = _rows(Path(self.ask.folder) / f"run-{number:03d}" / ROWS)
        facts = {
            "model": self.base.model, "engine": self.plan.engine, "split": self.options[row].choice.split,
            "note": outcome.note,
        }  # fmt: skip
        kind = {"": "ok", "oom": "oom"}.get(outcome.failure, "failed")
        return {**facts, "outcome": kind, **(rows[0] if rows else {}), "options": self.options[row].words}

    # The end.

    def finish(self, folder: Path, verdict: Verdict, order: Sequence[int]) -> list[str]:
        option, made = self.options[verdict.row], self.plan_of(verdict.row)
        rate, low, high = (1 / seconds for seconds in (verdict.seconds, verdict.high, verdict.low))
        note = (
            f"tuned with {verdict.runs} runs: measured {rate:.4g} output tokens/s with prompts, 90% of further runs expected from "
            f"{low:.4g} to {high:.4g}; flags: {option.words or 'none'}; one more run is expected to save {verdict.gain:.2%}"
        )
        path = replace(made, notes=(*made.notes, note)).save(folder / "plan.json")
        lines = [f"start: {line}" for line in made.commands.get(made.engine, ())]
        return [f"{path}: the plan", *lines, self.calibrated(folder)]

    def calibrated(self, folder: Path) -> str:
        """Fit the cost model of serving to the runs; say why where that is not possible."""
        rows = [row for path in sorted(folder.glob(f"run-*/{ROWS}")) for row in _rows(path)]
        if not rows:
            return "no calibration: nothing was measured"
        table, target = folder / "measurement.csv", folder / "calibration.toml"
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        try:
            dispatch.calibrate([str(table)], (), (), (), None).save(target)
        except UserError as error:
            return f"no calibration: {error}"
        return f"{target}: a calibration; 'meshwise calibrate {table} --install' makes 'meshwise serve' use it"


def candidates(plan: ServePlan, ask: TuneAsk) -> list[Option]:
    """Return every layout of a plan that one engine on one host runs, with every combination of flags."""
    given = parse_options(ask.options) if ask.options else ENGINE_OPTIONS.get(plan.engine, {})
    layouts: dict[str, ServeChoice] = {}
    for choice in plan.choices:
        if choice.replicas == choice.hosts == 1:
            layouts.setdefault(Option(choice, {}).fixed, choice)
    if not layouts:
        raise UserError(
            f"every layout of {quoted(plan.ask.model)} has several replicas or hosts, which 'meshwise bench' does not start"
        )
    return [
        Option(choice, dict(zip(given, values, strict=True)))
        for choice in layouts.values()
        for values in product(*given.values())
    ]


def _space(options: Sequence[Option]) -> Space:
    """Return candidates with their predicted seconds per output token, and the share of the fullest device that each needs."""
    axes: dict[str, list[str | float]] = {"cards": [float(option.choice.cards) for option in options]}
    axes |= {axis: [float(getattr(option.choice, axis)) for option in options] for axis in ("tp", "pp")}
    axes["split"] = [option.choice.split for option in options]
    for name in options[0].flags:
        values = [option.flags[name] for option in options]
        numeric = all(value.isdecimal() for value in values)
        axes[name] = [float(value) if numeric else value for value in values]
    varied = {name: values for name, values in axes.items() if len(set(values)) > 1}
    needs = [max((1 - device.spare / device.capacity for device in option.choice.devices), default=0.5) for option in options]
    seconds = [1 / option.choice.throughput for option in options]
    return Space.of_table(varied, seconds, [max(need, 1e-3) for need in needs], 1.0, [option.name for option in options])


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _path(text: str) -> str:
    """Return a path that holds from any folder."""
    return str(Path(text).absolute()) if text else ""
