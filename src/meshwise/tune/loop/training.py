"""Layouts of a training plan as candidates: their launch files, their logs, and the plan and calibration at the end."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from meshwise.calibrate import dispatch
from meshwise.catalogue import files
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import NAMES, index, layout_name
from meshwise.cost.layout import Layouts
from meshwise.cost.modes import explaining, time_of
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.errors import UserError, one_of, quoted
from meshwise.plan import plan as plans
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice, choice, sizes
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs.forms import PLACEHOLDER, REQUIRED_VARIABLE
from meshwise.programs.program import find_launcher, find_program, programs
from meshwise.programs.write import export
from meshwise.run.train import launch as own_launch
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.report import failure as failures
from meshwise.runs import table
from meshwise.runs.run import Run, Stated
from meshwise.runs.train.planned import planned
from meshwise.tune.ask import TuneAsk, parse_options
from meshwise.tune.belief.space import Space
from meshwise.tune.loop import reading
from meshwise.tune.loop.launch import LOG, End, Job, filled, with_markers
from meshwise.tune.loop.reading import Outcome, measured
from meshwise.tune.loop.subject import Candidate, SetupError, Verdict
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import read_rows

OWN_PROGRAM = "meshwise"  # the name of our trainer as a program and as a framework
OPTIONS = ("precision", "compile", "loss")  # options of a training question that --try takes
LOOP_VARIABLES = ("STEPS", "TRAIN_ITERS", "TRAIN_SAMPLES", "OUT", "OUTPUT_DIR", "CHECKPOINTS")
"""Variables of exported scripts that the loop sets for each run."""
BY_LAUNCHER = ("MASTER_ADDR", "NODE_RANK")  # variables that differ from node to node: the launch command sets them
GRACE_SECONDS = 600.0
"""Seconds beyond --timeout that a scheduler gives a run. Exported Slurm scripts ask to be requeued two minutes before their limit."""
MIN_RUNS_TO_FIT = 3  # measured runs from which on a calibration is fitted
EAGER_FRAMEWORK = "torchtitan"
"""A framework whose layers are eager PyTorch unless they are compiled, as our trainer's are with --no-compile."""


@dataclass(frozen=True)
class Variant:
    """The plan's question with other options."""

    ask: TrainAsk
    question: Question
    options: dict[str, str]


class Training:
    """A training plan as the subject of a tuning."""

    unit = "step"

    def __init__(self, plan: TrainPlan, ask: TuneAsk) -> None:
        self.plan, self.ask = plan, ask
        if ask.own and plan.question().work.framework.key != OWN_PROGRAM:
            raise UserError(
                f"--own runs meshwise's trainer, and the plan is for {plan.framework}: plan with --framework {OWN_PROGRAM}"
            )
        self.variants = variants(plan, ask)
        self.space = Space.joined(
            [Space.search(variant.question, plan.ask.bounds, options=variant.options) for variant in self.variants]
        )
        self.program = "" if ask.own else program_of(plan, ask)
        self.launcher = "" if ask.own or not ask.launch else launcher_of(ask)
        self.title = f"{plan.ask.model} on {plan.ask.on}, {plan.ask.batch} sequences of {plan.ask.seq}"

    @property
    def setting(self) -> str:
        """Model, cluster, batch and program. Prices and calibrations do not count: a measurement does not depend on them."""
        q, program = self.plan.question(), OWN_PROGRAM if self.ask.own else self.program
        nodes = tuple((count, tuple((number, chip.key) for number, chip in node.chips)) for count, node in q.cluster.nodes)
        machine = (nodes, q.cluster.network, q.cluster.tiers, q.cluster.torus)
        return plans.versions(setting=(q.model.placed, machine, q.work.batch, q.work.seq, q.work.optimizer, program))["setting"]

    # Candidates.

    def variant(self, row: int) -> Variant:
        options = dict(self.space.options(row))
        return next(variant for variant in self.variants if variant.options == options)

    def layout(self, row: int) -> dict[str, int | str]:
        return dict(self.space.layout(row))

    def devices(self, row: int) -> int:
        return int(Layouts.from_row(self.layout(row)).devices[0])

    def describe(self, row: int) -> Candidate:
        return {"layout": self.layout(row), "options": self.options(row)}

    def options(self, row: int) -> dict[str, str]:
        """Return every option of a candidate, tuned or not, so that runs count whatever --try names later. '' is the trainer's default."""
        ask, tried = self.variant(row).ask, self.space.options(row)
        usual = "" if self.ask.own else "yes" if ask.compile else "no"
        return {"precision": ask.precision, "compile": tried.get("compile", usual), "loss": ask.loss}

    def find(self, candidate: Candidate) -> int | None:
        layout, options = candidate.get("layout", {}), candidate.get("options", {})
        if set(layout) != set(NAMES):
            return None
        same = np.all([getattr(self.space.layouts, axis) == index(axis, layout[axis]) for axis in NAMES], axis=0)
        return next((row for row in np.flatnonzero(same).tolist() if self.options(row) == options), None)

    def drop(self, row: int) -> None:
        self.space = self.space.take(np.arange(len(self.space)) != row)

    def choice(self, row: int) -> Choice:
        """Return a candidate with its predicted cost."""
        layouts, q = Layouts.from_row(self.layout(row)), self.variant(row).question
        return choice(q, layouts, evaluate(q, layouts), 0)

    def plan_of(self, row: int) -> TrainPlan:
        """Return a plan of one candidate that trains for as many steps as a run has."""
        ask = self.variant(row).ask
        short = replace(ask, tokens=float(self.ask.steps * ask.batch * ask.seq), within=0.0)
        return replace(self.plan, ask=short, choices=(self.choice(row),))

    def predicted_memory(self, row: int) -> float | None:
        return float(self.space.memory[row])

    def mode(self, row: int, seconds: float) -> str:
        q = self.variant(row).question
        rare = [mode for mode in q.calibration.modes if not mode.usual]  # what most runs do is what a layout does
        layout = Layouts.from_row(self.layout(row))
        found = explaining(rare, seconds, float(self.space.seconds[row]), sizes(q, layout)) if rare else None
        return time_of(found[0]) if found else ""

    def words(self, row: int) -> list[str]:
        layout, options = self.layout(row), self.space.options(row)
        axes = " ".join(f"{axis}={layout[axis]}" for axis in NAMES)
        more = "".join(f" {name}={value}" for name, value in options.items())
        return [f"{layout_name(layout)}{more}", f"axes: {axes}{more}"]

    # Starting.

    def prepare(self, row: int, number: int, folder: Path) -> Job:
        plan = self.plan_of(row)
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / "plan.json")
        if self.ask.own:
            script = self._own_script(row, folder)
        elif self.program:
            script = self._exported(plan, number, folder)
        else:
            script = folder / "plan.json"  # by hand, and no program writes the plan's framework
        return self._job(script, number, folder)

    def job(self, row: int, number: int, folder: Path) -> Job:
        name = "train.sh" if self.ask.own else (folder / "first").read_text(encoding="utf-8").strip()
        return self._job(folder / name, number, folder)

    def _job(self, script: Path, number: int, folder: Path) -> Job:
        files.write(folder / "first", script.name)
        values = {
            "script": str(script), "file": str(script), "folder": str(folder), "name": job_name(self.plan, number),
            "run": str(number),
        }  # fmt: skip
        launch = "bash {script}" if self.ask.own else self.ask.launch
        return Job(folder, filled(launch, values), filled(self.ask.log, values), self._environment(folder))

    def _environment(self, folder: Path) -> dict[str, str]:
        steps = self.ask.steps
        own = {
            "STEPS": steps, "TRAIN_ITERS": steps, "TRAIN_SAMPLES": steps * self.plan.ask.batch, "OUT": folder / "out",
            "OUTPUT_DIR": folder / "out", "CHECKPOINTS": folder / "checkpoints",
        }  # fmt: skip
        return {name: str(value) for name, value in own.items()}

    def own_run(self, row: int, folder: Path) -> TrainRun:
        """Return the run of a candidate by our trainer, from the plan.json in its folder."""
        options = self.space.options(row)
        return TrainRun(
            what=str(folder / "plan.json"), steps=self.ask.steps, out=str(folder / "out"), device=self.ask.device,
            timeout=self.ask.timeout, compile=options["compile"] == "yes" if "compile" in options else None,
            precision=options.get("precision", ""),
        )  # fmt: skip

    def _own_script(self, row: int, folder: Path) -> Path:
        """Write the script that runs our trainer. UserError for a layout that it cannot run."""
        run = self.own_run(row, folder)
        own_launch.prepare(run)
        command = shlex.join([sys.executable, "-m", "meshwise", *shlex.split(run.command())[1:]])
        files.write(folder / "train.sh", with_markers(f"#!/bin/bash\n{command}\n", folder))
        return folder / "train.sh"

    def _exported(self, plan: TrainPlan, number: int, folder: Path) -> Path:
        """Write the launch files of another program, and return the one that starts it."""
        # a scheduler ends the run only if the loop, which does so at --timeout, is no longer there
        name, hours = job_name(plan, number), (self.ask.timeout + GRACE_SECONDS) / 3600
        made = export(plan, self.program, self.launcher, name=name, hours=hours)
        first = next(iter(made.files))
        logs_itself = not first.endswith((".yaml", ".yml"))
        if self.ask.launch and not self.ask.log and not logs_itself:
            raise SetupError(
                f"--launch {quoted(self.ask.launch)}: {first} cannot write its log into the folder; say how to read it: "
                "--log 'kubectl logs --follow ...{name}...'"
            )
        if self.ask.launch:
            _check_variables(made.files, self.ask.launch)
        paths = made.save(folder)
        if self.ask.launch and not self.ask.log:
            files.write(paths[0], with_markers(made.files[first], folder))
        return paths[0]

    # Reading.

    def read(self, row: int, folder: Path, end: End) -> Outcome:
        out = folder / "out"
        rows = read_rows(out / "measurement.jsonl")
        if not rows or self._writes_logs:
            return self._taught(out, reading.outcome(folder / LOG, self.expected(row), end, self.ask.timeout, self.ask.format))
        found = reading.outcome(out / "measurement.jsonl", self.expected(row), replace(end, code=0), self.ask.timeout)
        return replace(found, row=rows[-1])

    @property
    def _writes_logs(self) -> bool:
        """Whether the program writes a log, and not a measurement.jsonl as our trainer does."""
        return not self.ask.own and self.program != OWN_PROGRAM

    def _taught(self, out: Path, found: Outcome) -> Outcome:
        """Return a failure with the kind that our trainer states in failure.json."""
        kind = failures.failure(out).get("kind", "")
        if not found.failure or self._writes_logs or kind not in ("oom", "hang"):
            return found
        return replace(found, failure=kind, note=str(failures.failure(out).get("message", "")) or found.note)

    def read_log(self, row: int, log: Path) -> Outcome:
        return reading.measurement(log, self.expected(row), self.ask.format)

    def expected(self, row: int) -> Run:
        """Return the facts of a run that a log may leave out, and must not contradict."""
        variant = self.variant(row)
        q = variant.question
        run = planned(q, self.layout(row), variant.ask.model).adding([Stated("params", q.model.active_params)])
        # the catalogue's CPU stands for any: its peak says nothing about this one
        return run.without("chip") if q.chip.kind == "cpu" else run

    def table_row(self, row: int, number: int, outcome: Outcome) -> Mapping[str, Any]:
        if outcome.row is not None:
            return outcome.row
        variant, choice, now = self.variant(row), self.choice(row), datetime.now(UTC)
        run = planned(variant.question, self.layout(row), variant.ask.model, variant.ask.on).adding(
            Run.told("", measured(outcome) | {"source": "meshwise tune", "date": now.date().isoformat()})
        )
        predicted = {"predicted_sec_per_iter": choice.step, "predicted_mem_gb": choice.peak / GIB}
        return {"row_id": now.strftime(f"tune-%Y%m%dT%H%M%S-{number}"), **table.row(run), **predicted}

    # The end.

    def finish(self, folder: Path, verdict: Verdict, order: Sequence[int]) -> list[str]:
        best = self.variant(verdict.row)
        same = [row for row in order if row != verdict.row and dict(self.space.options(row)) == best.options]
        first = scaled(self.choice(verdict.row), verdict.seconds, verdict.low, verdict.high)
        note = (
            f"tuned with {verdict.runs} runs: measured {verdict.seconds:.4g} s, 90% of further runs expected from {verdict.low:.4g} to "
            f"{verdict.high:.4g} s; one more run is expected to save {verdict.gain:.2%}"
        )
        plan = replace(
            self.plan, ask=best.ask, choices=(first, *(self.choice(row) for row in same[: max(0, self.plan.ask.top - 1)])),
            notes=(*self.plan.notes, note),
        )  # fmt: skip
        path = plan.save(folder / "plan.json")
        return [f"{path}: the plan, its first layout as measured", self.calibrated(folder)]

    def calibrated(self, folder: Path) -> str:
        """Fit the cost model to the runs. Too few rows, or a fit that is no better, is said and no error."""
        target = folder / "calibration.toml"
        timed = [row for row in read_rows(folder / "measurement.jsonl") if row.get("outcome") == "ok"]
        if len(timed) < MIN_RUNS_TO_FIT:
            return f"no calibration: it needs at least {MIN_RUNS_TO_FIT} measured runs"
        try:
            made = dispatch.calibrate([str(folder / "measurement.jsonl")], (), (), (), None)
        except UserError as error:
            return f"no calibration: {error}"
        if made.worse:
            return f"no calibration: {made.worse}; more runs may help"
        made.save(target)
        return f"{target}: a calibration for other questions: meshwise plan ... --calibration {target}"


def variants(plan: TrainPlan, ask: TuneAsk) -> list[Variant]:
    """Return the plan's question with every combination of the options that --try names."""
    given = parse_options(ask.options)
    for name in given:
        one_of("--try", name, OPTIONS)
    if ask.own and "loss" in given:
        raise UserError("--try loss: meshwise's trainer always computes the loss in chunks; drop it, or --own")
    if not given:
        return [Variant(plan.ask, plan.question(), {})]
    found: list[Variant] = []
    for values in product(*given.values()):
        options = dict(zip(given, values, strict=True))
        if options.get("compile", "no") not in ("no", "yes"):
            raise UserError(f"--try compile={options['compile']}: expected no or yes")
        changed = replace(plan.ask, **(options | ({"compile": options["compile"] == "yes"} if "compile" in options else {})))
        found.append(Variant(changed, _question(changed, options, plan), options))
    return found


def _question(ask: TrainAsk, options: Mapping[str, str], plan: TrainPlan) -> Question:
    """Return the question of a variant. Our trainer compiles unless told otherwise: without, its layers are eager PyTorch."""
    q = lookup.question(ask, plan.question().model)
    framework = q.work.framework
    if framework.key != OWN_PROGRAM or options.get("compile") != "no" or q.chip.kind != "gpu":
        return q
    eager = replace(framework, unfused=find_framework(EAGER_FRAMEWORK).unfused)
    return replace(q, work=replace(q.work, framework=eager))


def program_of(plan: TrainPlan, ask: TuneAsk) -> str:
    """Return the program whose files are written: the one given, or that of the plan's framework; '' by hand where there is none."""
    if ask.to:
        return find_program(ask.to).name
    key = plan.question().work.framework.key
    known = [name for name, program in programs().items() if key in (program.framework, name) and program.write is not None]
    if not known and not ask.by_hand:
        raise UserError(f"no program writes launch files for {plan.framework}: name one with --to, or use --by-hand")
    return key if key in known else next(iter(known), "")


def launcher_of(ask: TuneAsk) -> str:
    """Return the launcher whose file --launch starts."""
    if ask.launcher:
        return find_launcher(ask.launcher).name
    words = ask.launch.split()
    return "slurm" if "sbatch" in words else "jobset" if "kubectl" in words else "torchrun"


def job_name(plan: TrainPlan, number: int) -> str:
    """Return the name of a run's job, which Kubernetes requires to be unique."""
    model = "".join(letter if letter.isalnum() else "-" for letter in Path(plan.ask.model).stem.lower()).strip("-")
    return f"{model or 'tune'}-{os.getuid()}-run-{number}"


def _check_variables(texts: Mapping[str, str], launch: str) -> None:
    """Refuse launch files that need variables which are not set: every run would stop at once."""
    first, *others = texts.items()
    needed = {match[1]: match[2] for match in REQUIRED_VARIABLE.finditer(first[1])}
    open_ = [name for name in needed if name not in (*LOOP_VARIABLES, *BY_LAUNCHER) and not os.environ.get(name)]
    if open_:
        raise SetupError(f"{first[0]} needs {', '.join(open_)} in the environment: {'; '.join(needed[name] for name in open_)}")
    left = [name for name, text in (first, *others) if PLACEHOLDER in text]
    if left and PLACEHOLDER not in launch:
        raise SetupError(
            f"{left[0]} holds placeholders ({PLACEHOLDER}) that a plan cannot fill in; --launch must do it, or use --by-hand: "
            f"--launch \"sed -i 's,{PLACEHOLDER}...,...,' {{folder}}/{left[0]} && {launch}\""
        )


def scaled(row: Choice, seconds: float, low: float, high: float) -> Choice:
    """Return a choice with another step time: its parts and rates change by the same factor."""
    factor = seconds / row.step
    return replace(
        row, step=seconds, low=low, high=high, tokens_per_second=row.tokens_per_second / factor,
        tflops={name: value / factor for name, value in row.tflops.items()}, mfu=row.mfu / factor,
        time={name: value * factor for name, value in row.time.items()}, days=row.days * factor if row.days else row.days,
        dollars=row.dollars * factor if row.dollars else row.dollars, mwh=row.mwh * factor if row.mwh else row.mwh,
        wall_days=row.wall_days * factor if row.wall_days else row.wall_days,
        wall_dollars=row.wall_dollars * factor if row.wall_dollars else row.wall_dollars,
    )  # fmt: skip
