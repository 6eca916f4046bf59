"""The library: one function per verb. The command line and notebooks call these functions and nothing below them.

Arguments are the words of the command line: `plan("bloom-176b", on="jean-zay:48", batch="2048x2048")`. Results are frozen objects with
`rows()`, `to_frame()`, `to_json()` and, in a notebook, an HTML view. Errors that a user can fix are `UserError`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from meshwise.errors import UserError, nearest, quoted
from meshwise.plan.ask import ServeAsk, ShapeAsk, TrainAsk
from meshwise.plan.fields import Ask, given, parameters
from meshwise.plan.pick.ask import PickAsk
from meshwise.run.callbacks import Progress, Say, ignore

if TYPE_CHECKING:
    from meshwise.audit.check.verdict import Verdict
    from meshwise.audit.doctor.diagnosis import Diagnosis
    from meshwise.audit.doctor.parts import PartComparison
    from meshwise.audit.report import Audit
    from meshwise.calibrate.result import Result
    from meshwise.calibrate.rl.validate import RlValidation
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import TrainValidation
    from meshwise.catalogue.installed import Installed
    from meshwise.models.count import Count
    from meshwise.models.listing import Entry
    from meshwise.models.make_gguf import GgufFile
    from meshwise.plan.cheapest import Cheapest
    from meshwise.plan.diff import PlanDiff
    from meshwise.plan.pick.answer import Pick
    from meshwise.plan.pick.machines import Machines
    from meshwise.plan.rl.plan import RolloutPlan
    from meshwise.plan.serve.front import Front
    from meshwise.plan.serve.plan import ServePlan
    from meshwise.plan.serve.vary import ServePoints
    from meshwise.plan.shapes.answer import Shapes
    from meshwise.plan.train.explain import Explanation
    from meshwise.plan.train.plan import TrainPlan
    from meshwise.plan.train.vary import TrainPoints
    from meshwise.programs.read.files import Reading
    from meshwise.programs.write import Exported
    from meshwise.replay.answer import Replayed
    from meshwise.replay.ask import ReplayAsk
    from meshwise.replay.compared import Compared
    from meshwise.replay.traces.facts import TraceFacts
    from meshwise.replay.traces.trace import Trace
    from meshwise.run.preflight.result import Preflight
    from meshwise.run.probe.store import Probed
    from meshwise.run.serve.bench import Bench
    from meshwise.run.serve.session import ServeDryRun, Serving
    from meshwise.run.share import Shared
    from meshwise.run.train.dry_run import DryRun
    from meshwise.run.train.folder import RunFolder
    from meshwise.run.train.generate import Generated
    from meshwise.run.train.results import SweepResult, TrainResult
    from meshwise.run.train.submit import Submitted
    from meshwise.tune.loop.by_hand import Prompt
    from meshwise.tune.loop.result import Tuned
    from meshwise.tune.replay.replay import Replay

P = ParamSpec("P")
Asked = TypeVar("Asked", bound=Ask)
Answer = TypeVar("Answer")
LeaveOut = Literal["row", "group"]
CATALOGUES = ("chips", "clusters", "models", "frameworks", "calibrations")


def answers(ask: Callable[P, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[P, Answer]]:
    """Turn a function that takes a question into one that takes the question's fields as keywords, and list them in its docstring."""

    def decorate(function: Callable[[Asked], Answer]) -> Callable[P, Answer]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Answer:
            for name in kwargs:
                if name not in known:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{nearest(name, known)}")
            return function(ask(*args, **kwargs))

        known = inspect.signature(ask).parameters
        call.__signature__ = inspect.signature(ask).replace(return_annotation=inspect.Signature.empty)  # pyright: ignore[reportAttributeAccessIssue]
        call.__doc__ = "\n\n    ".join([function.__doc__ or "", "\n    ".join(parameters(ask))])  # pyright: ignore[reportArgumentType]
        return call

    return decorate


# Plan.


@answers(TrainAsk)
def plan(ask: TrainAsk) -> "TrainPlan":
    """Find the fastest layouts to train a model on a cluster. DoesNotFit where none fits."""
    from meshwise.plan.train.plan import make
    from meshwise.programs.writable import writable

    return writable(make(ask))


@answers(ServeAsk)
def serve(ask: ServeAsk) -> "ServePlan":
    """Find the best layouts to serve a model on given devices, and the commands that start the best one. DoesNotFit where none fits."""
    from meshwise.plan.serve.plan import make
    from meshwise.programs.engines import commands

    return make(ask, commands)


@answers(PickAsk)
def pick(ask: PickAsk) -> "Pick | Machines":
    """Find the open models that run on a machine, by published quality; with `buy` or `rent`, machines. DoesNotFit where none does."""
    from meshwise.plan.pick import answer, machines
    from meshwise.programs.start import start

    return (machines.answer if ask.buy or ask.rent else answer.answer)(ask, start)


@answers(ShapeAsk)
def shapes(ask: ShapeAsk) -> "Shapes":
    """Find the fastest shapes of a model near a number of parameters, each with its best layout."""
    from meshwise.plan.shapes.answer import answer

    return answer(ask)


@answers(TrainAsk)
def rollouts(ask: TrainAsk) -> "RolloutPlan":
    """Find the fastest split of devices between training and generating answers (objective "grpo", ...). DoesNotFit where none fits."""
    from meshwise.plan.rl.plan import make

    return make(ask)


def vary(ask: TrainAsk, *axes: str) -> "TrainPoints":
    """Answer a training question at many points: vary(ask, "nodes=8..512"). `TrainPlan.vary(nodes="8..512")` is shorter."""
    from meshwise.plan.train.vary import answer

    return answer(ask, axes)


def vary_serve(ask: ServeAsk, *axes: str) -> "ServePoints":
    """Answer a serving question at many points: vary_serve(ask, "gpus=4..6")."""
    from meshwise.plan.serve.vary import answer

    return answer(ask, axes)


def cheapest_serve(ask: ServeAsk) -> "ServePoints":
    """Find the fewest and cheapest devices that serve a load: cheapest_serve(ServeAsk("llama-3.1-8b:fp8", rate="12/s", ttft="1s"))."""
    from meshwise.plan.serve.cheapest import answer

    return answer(ask)


def front_serve(ask: ServeAsk) -> "Front":
    """Return the Pareto front of a deployment: tokens per second of a device against those of a user."""
    from meshwise.plan.serve.front import answer

    return answer(ask)


def replay(
    what: "str | Path | ServePlan" = "", *, trace: "str | Path | Iterable[Sequence[Any]]" = "", **words: Any
) -> "Replayed":
    """Replay timed requests through a deployment: replay("plan.json", trace="traffic.csv", ttft="1s@p95").figures.ttft.p95. `what`: a plan
    of `serve`, its plan.json, or a model with the keywords of `serve`. `trace`: a file, or rows of (seconds, prompt, output, blocks).
    Keywords are the fields of `ReplayAsk`."""
    from meshwise.replay import answer

    ask, plan, rows = _replay_ask(what, trace, words)
    return answer.make(ask, plan, rows)


def replay_cheapest(
    what: "str | Path | ServePlan" = "", *, trace: "str | Path | Iterable[Sequence[Any]]" = "", **words: Any
) -> "Compared":
    """Find the number of copies, or the policy, that holds the targets at the least money or energy, by replaying a trace."""
    from meshwise.replay import answer, cheapest

    ask, plan, rows = _replay_ask(what, trace, {"cheapest": True, **words})
    return cheapest.answer(answer.setting(ask, plan, rows))


def replay_what_if(
    what: "str | Path | ServePlan" = "", *, trace: "str | Path | Iterable[Sequence[Any]]" = "", vary: Sequence[str] = (),
    **words: Any,
) -> "Compared":  # fmt: skip
    """Replay a trace through a deployment and through what it could be instead: other copies, caches, chunks and formats. `vary` adds axes
    of `serve`: vary=["chip=h200,b200"]."""
    from meshwise.replay import answer, what_if

    ask, plan, rows = _replay_ask(what, trace, words)
    return what_if.answer(answer.setting(ask, plan, rows), vary)


def manifest(result: "Replayed", kind: str = "keda") -> str:
    """Return the policy of a replay as YAML of Kubernetes: KEDA's ScaledObject, or a HorizontalPodAutoscaler ("hpa")."""
    from meshwise.replay import manifests

    return manifests.manifest(result, kind)


def _replay_ask(what: Any, trace: Any, words: dict[str, Any]) -> "tuple[ReplayAsk, ServePlan | None, Trace | None]":
    """Return the question of a replay, with a plan and a trace that are objects."""
    from meshwise.replay.ask import ReplayAsk
    from meshwise.replay.traces.trace import adjusted, of_requests

    plan = None if isinstance(what, str | Path) else what
    named = isinstance(trace, str | Path)
    ask = given(ReplayAsk, {"model": "plan.json" if plan else str(what), "trace": str(trace) if named else "trace", **words})
    rows = None if named else adjusted(of_requests(trace), speed=ask.speed, users=ask.scale_users, window=ask.window)
    return ask, plan, rows


def save_trace(path: str | Path, *, trace: str | Path = "", **words: Any) -> "TraceFacts":
    """Write the traffic that a replay would see as CSV: save_trace("day.csv", make="conversation", rate="5/s", hours=24)."""
    from meshwise.replay.answer import traffic
    from meshwise.replay.traces.facts import facts
    from meshwise.replay.traces.trace import as_csv

    ask, _, _ = _replay_ask("", trace, words)
    ask.check()
    found = traffic(ask)
    write(path, "\n".join(as_csv(found)) + "\n")
    return facts(found)


def trace(path: str | Path, **words: Any) -> "TraceFacts":
    """Say what a trace of timed requests is: rates, bursts, lengths, reuse of prefixes, and how much cache is worth having. Keywords: read
    (the pattern of a log), block (tokens of a block), speed, users and window."""
    from meshwise.replay.traces.facts import facts
    from meshwise.replay.traces.trace import open_trace

    return facts(open_trace(path, **words))


def cheapest(ask: TrainAsk | str, *axes: str, **words: Any) -> "Cheapest":
    """Find the cheapest chip and number of nodes for a training: cheapest("llama-3-8b", batch="1M", tokens="100B", within="30d"). The
    keywords are those of `plan`; a TrainAsk replaces them all. `axes` restrict the chips and node counts to try: "chip=h100-sxm,h200"."""
    from meshwise.plan.cheapest import answer

    return answer(given(TrainAsk, {"model": ask, **words}) if isinstance(ask, str) else ask, axes)


def load(path: str | Path) -> "TrainPlan | ServePlan | RolloutPlan":
    """Open a plan.json that `save`, `plan --out` or `serve --out` wrote."""
    from meshwise.catalogue import records
    from meshwise.plan.rl import plan as rollouts
    from meshwise.plan.serve import plan as serving
    from meshwise.plan.train import plan as training

    kind = records.any_table(Path(path)).get("kind", "")
    readers = {serving.ServePlan.kind: serving.read, rollouts.RolloutPlan.kind: rollouts.read}
    return readers.get(str(kind), training.read)(Path(path))


def load_bench(path: str | Path) -> "Bench":
    """Open a report that `bench --out` or `Bench.save` wrote."""
    from meshwise.run.serve import report
    from meshwise.run.serve.bench import Bench

    return Bench(report.read(Path(path)))


def load_run(folder: str | Path) -> "RunFolder":
    """Open a folder that `run --out` writes, while it trains or afterwards."""
    from meshwise.run.train import folder as folders

    return folders.read(Path(folder))


def is_bench(path: str | Path) -> bool:
    """Return whether a .json is a report of `bench`, not a plan."""
    from meshwise.catalogue import records
    from meshwise.run.serve import report

    return records.any_table(Path(path)).get("kind", "") == report.KIND


def share(report: str | Path, folder: str | Path = "shared-runs", *, write: bool = False) -> "Shared":
    """Return the rows of a report of `bench --out` without anything personal; `write`: into a file that `validate` of the folder reads."""
    from meshwise.run.share import share

    return share(Path(report), Path(folder), write=write)


def explain(plan: "TrainPlan", versus: str = "") -> "Explanation":
    """Explain why the best layout of a training plan won, against the runner-up or a layout of your own: `plan.explain(versus)`."""
    return plan.explain(versus)


def diff(mine: "str | Path | TrainPlan | ServePlan", other: "str | Path | TrainPlan | ServePlan") -> "PlanDiff":
    """Return how two plans of one verb differ: question, layout, figures, parts and data. Each is a plan or the path of a plan.json."""
    from meshwise.plan.diff import diff
    from meshwise.plan.rl.plan import RolloutPlan

    names = tuple(str(one) if isinstance(one, str | Path) else letter for one, letter in ((mine, "A"), (other, "B")))
    plans = [load(one) if isinstance(one, str | Path) else one for one in (mine, other)]
    if isinstance(plans[0], RolloutPlan) or isinstance(plans[1], RolloutPlan):
        raise UserError("plans on generated answers have no diff yet; their tables are what 'plan' prints")
    return diff(plans[0], plans[1], (names[0], names[1]))


def write(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: whole or not at all."""
    from meshwise.catalogue import files

    files.write(Path(path), content)


# Launch files.


def export(plan: "str | Path | TrainPlan | ServePlan | RolloutPlan", **words: Any) -> "Exported":
    """Write a plan as the files of another program: export(plan, to="megatron", launcher="slurm").save("job"). Keywords are the fields of
    `ExportAsk`. What the program cannot say is refused, with the nearest layout that it can."""
    from meshwise.programs import write
    from meshwise.programs.ask import ExportAsk

    named = isinstance(plan, str | Path)
    ask = given(ExportAsk, {"plan": str(plan) if named else "plan", **words})
    return write.export(load(plan) if named else plan, ask.to, ask.launcher, ask.row, preflight=ask.preflight)


def read(*files: str | Path, **answers: Any) -> "Reading":
    """Read launch files together, without executing anything: read("train.sbatch", "ds_config.json", TP=4).facts. Keywords answer what the
    files leave open: variables of scripts, or facts by name."""
    from meshwise.programs.read.files import read_files

    return read_files(files, {name: str(value) for name, value in answers.items()})


def check(*files: "str | Path | Mapping[str, str]", **words: Any) -> "Verdict":
    """Check launch files: what they say, what contradicts, whether it fits, how fast it is, and a better layout in their own words. A file
    is a path, its text, or texts by name. Keywords are the fields of `CheckAsk`: check("train.sbatch", on="jean-zay:48", set=["TP=4"]);
    check(yaml_text, on="8xh100-sxm").fits."""
    from meshwise.audit.check import judge
    from meshwise.audit.check.ask import CheckAsk

    return judge.check(files, given(CheckAsk, words))


# Count and look up.


def count(
    model: str, *, seq: str | int = "", tokens: str | float = "15T", on: str = "", batch: str = "", mfu: str | float = "40%",
    checkpoints: int = 1,
) -> "Count":  # fmt: skip
    """Count the parameters, FLOPs, caches and bytes of a model. With `on` and `batch`: the time and memory of training on a cluster."""
    from meshwise.models.count import counted

    tally = counted(model, seq, tokens)
    if not on:
        return tally
    from meshwise.plan.budget import with_budget

    return with_budget(tally, on, batch, mfu, checkpoints)


def names(catalogue: str) -> list[str]:
    """Return every name in a catalogue: models, chips, clusters, frameworks, engines or measurements."""
    from meshwise.catalogue import files

    known = (*CATALOGUES, "engines", "measurements")
    if catalogue not in known:
        raise UserError(f"there is no catalogue {quoted(catalogue)}{nearest(catalogue, known)} ({', '.join(known)})")
    if catalogue == "calibrations":
        from meshwise.catalogue import origins

        return [origin.key for origin in origins.origins()]
    return files.names(catalogue)


def show(catalogue: str, name: str = "") -> list[dict[str, Any]]:
    """Return the facts of every entry of a catalogue, of the entries whose name contains the words of `name`, or of the entry `name`."""
    from meshwise.models import listing

    if catalogue not in CATALOGUES:
        raise UserError(f"there is no catalogue {quoted(catalogue)}{nearest(catalogue, CATALOGUES)} ({', '.join(CATALOGUES)})")
    return listing.rows(catalogue, name)


def look_up(catalogue: str, name: str) -> "Entry | None":
    """Return the chip, cluster, model, framework or calibration that `name` means; None where it only matches names in part."""
    from meshwise.models import listing

    return listing.look_up(catalogue, name)


def about() -> "Installed":
    """Return the version, extras and data of this installation, and the engines, programs and GPUs that this machine has."""
    from meshwise.catalogue.installed import look

    return look()


def is_preset(model: str) -> bool:
    """Return whether a model, with or without a weight format, is in the catalogue: neither a file nor the hub is needed to find it."""
    from meshwise.models import find
    from meshwise.models.formats import split_model_name

    return bool(find.find_preset(model) or find.find_preset(split_model_name(model)[0]))


def flat(row: dict[str, Any]) -> dict[str, object]:
    """Return a nested row as one line of CSV: 'parameters.total' and so on."""
    from meshwise.models import count

    return count.flat(row)


# Check and calibrate.


def audit(*files: str | Path, plan: bool = True, format: str = "", **figures: Any) -> "Audit":
    """Check reported results: logs, tables and reports, or figures such as params="124M", step="7.5s", on="8xh100-sxm"."""
    from meshwise.audit.ask import AuditAsk, answer

    return answer([Path(file) for file in files], given(AuditAsk, figures), format, planned=plan)


def doctor(*traces: str | Path, plan: str | Path = "", **facts: Any) -> "Diagnosis":
    """Diagnose why a run is slow from its profiler traces (one rank or all), with launch files or memory snapshots beside them. Keywords
    are facts of the run that the traces leave out, as for `audit`: doctor("trace.json.gz", model="llama-3.2-1b", batch="8", seq="2k",
    on="h200"). `plan`: a plan.json to compare with."""
    from meshwise.audit.ask import AuditAsk
    from meshwise.audit.doctor.diagnosis import diagnose

    return diagnose([Path(trace) for trace in traces], given(AuditAsk, facts), str(plan))


def is_trace(file: str | Path) -> bool:
    """Return whether a file is a profiler's trace, which `doctor` reads."""
    from meshwise.audit.doctor import scan

    return scan.is_trace(Path(file))


def compare(folder: str | Path) -> "PartComparison":
    """Compare the predicted and measured time of a run of our trainer, part by part, from its folder."""
    from meshwise.audit.doctor import parts

    return parts.compare(Path(folder))


def validate(
    table: str | Path, *, calibration: str = "", fit: bool = False, leave_out: LeaveOut | None = None
) -> "TrainValidation | ServeValidation | RlValidation":
    """Predict every run of a table of measurements (a built-in name, .csv or .jsonl) and score the predictions. With `fit`,
    each row or group of rows is predicted by a fit that left it out."""
    from meshwise.calibrate import dispatch

    return dispatch.validate(str(table), calibration, fit, leave_out)


def calibrate(
    *tables: str | Path, chips: Sequence[str] = (), frameworks: Sequence[str] = (), architectures: Sequence[str] = (),
    leave_out: LeaveOut | None = None,
) -> "Result":  # fmt: skip
    """Fit the cost model's coefficients to tables of runs, a probe, or both, and score the fit on rows left out."""
    from meshwise.calibrate import dispatch

    return dispatch.calibrate([str(table) for table in tables], chips, frameworks, architectures, leave_out)


# Run and measure.


def run(
    what: "str | Path | TrainPlan | ServePlan" = "", *, say: Say = print, progress: Progress | None = None, **words: Any
) -> "TrainResult | SweepResult | DryRun | Submitted | Serving | ServeDryRun | None":
    """Train a model or a plan, or start the engine of a serving plan or of a .gguf. Keywords are the flags of `meshwise run`: the fields
    of `TrainRun` (run("llama-debug", tp=2, steps=20)) or of `ServeRun` (run("model.gguf", port=0)). Training returns its measurements and
    report when it is done. Serving returns once the engine answers: `with run("model.gguf", port=0) as engine: bench(engine.url)`. `say`
    receives each line of output, `progress` the steps done so far."""
    served = serves(what) if isinstance(what, str | Path) else what.kind == "serve"
    return _serve(cast(Any, what), say, words) if served else _train(cast(Any, what), say, progress, words)


def serves(what: str | Path) -> bool:
    """Return whether `run` serves this file rather than trains it: a .gguf, or a plan.json of `serve`."""
    from meshwise.run.serve.ask import serves

    return serves(str(what))


def _serve(what: "str | Path | ServePlan", say: Say, words: dict[str, Any]) -> "Serving | ServeDryRun":
    from meshwise.run.serve.ask import ServeRun
    from meshwise.run.serve.session import Serving, rehearse

    named = isinstance(what, str | Path)
    ask = given(ServeRun, {"what": str(what) if named else "", **words})
    return (rehearse if ask.dry_run else Serving)(ask, None if named else what, say=say)


def _train(
    what: "str | Path | TrainPlan", say: Say, progress: Progress | None, words: dict[str, Any]
) -> "TrainResult | SweepResult | DryRun | Submitted | None":
    from tempfile import TemporaryDirectory

    from meshwise.run.train.ask import TrainRun
    from meshwise.run.train.start import start

    if isinstance(what, str | Path):
        run = given(TrainRun, {"what": str(what), **words})
        if run.preflight and not run.dry_run and not run.launcher:
            from meshwise.run.preflight.start import check_before

            check_before(run, say)
        return start(run, say=say, progress=progress, draw=_drawn)
    with TemporaryDirectory(prefix="meshwise-") as folder:
        path = what.save(Path(folder, "plan.json"))
        return _train(path, say, progress, words)


def _drawn(result: "TrainResult | SweepResult") -> tuple[str, str]:
    """Return the report of a run as text and as Markdown. Views are imported by name: they depend on runs, not the other way round."""
    return import_module("meshwise.ui.views.run.report").drawn(result)


def tune(what: "str | Path | TrainPlan | ServePlan" = "", *, say: Say = print, answer: "Prompt" = input, **words: Any) -> "Tuned":
    """Find the fastest layout of a plan from a few measured runs: choose a run, start it, read its log, learn, choose again. Keywords are
    the flags of `meshwise tune`: the fields of `TuneAsk` (tune("plan.json", own=True, runs=4)). The same call goes on where an earlier one
    stopped. `say` receives a line for each run, `answer` is asked for logs with `by_hand`."""
    from meshwise.tune.ask import TuneAsk

    named = isinstance(what, str | Path)
    ask = given(TuneAsk, {"what": str(what) if named else "plan", **words})
    if ask.replay:
        raise UserError(f"a table is replayed with meshwise.api.tune_on_table({ask.replay!r})")
    from meshwise.tune.loop.start import start

    return start(ask, None if named else what, say=say, answer=answer)


def tune_on_table(table: str | Path, *, runs: int = 10, seeds: int = 100, calibration: str = "") -> "Replay":
    """Run the loop of `tune` on a table of measured runs: the time lost by number of runs, beside other ways to choose. Predictions begin
    with a calibration that never saw the table, or with `calibration`; random orders are averaged over `seeds`."""
    from meshwise.tune.replay.replay import replay

    return replay(str(table), runs=runs, seeds=seeds, calibration=calibration)


def bench(
    what: "str | Path | ServePlan", *, say: Say | None = None, progress: Progress | None = None,
    keep: "Callable[[Bench], None] | None" = None, **words: Any,
) -> "Bench":  # fmt: skip
    """Measure how fast an endpoint (its URL), or the engine of a plan, .gguf or model, serves, and compare with the prediction. Keywords
    are the flags of `meshwise bench`: the fields of `BenchAsk` (bench(url, users=[1, 4], prompt=512, output=64)). `keep` gets what is
    measured so far, after every setting."""
    from meshwise.run.bench.ask import BenchAsk
    from meshwise.run.serve.bench import bench

    named = isinstance(what, str | Path)
    ask = given(BenchAsk, {"what": str(what) if named else "plan", **words})
    return bench(ask, None if named else what, say=say or ignore, progress=progress or ignore, keep=keep or ignore)


def probe(*, progress: Progress | None = None, **words: Any) -> "Probed":
    """Measure this machine in about a minute, so that on="here" plans for it. Keywords are the flags of `meshwise probe`: the fields of
    `ProbeAsk` (probe(seconds=20, device="cpu"))."""
    from meshwise.run.probe.ask import ProbeAsk
    from meshwise.run.probe.store import probe_machine

    return probe_machine(given(ProbeAsk, words), progress=progress or ignore)


def preflight(*, say: Say | None = None, progress: Progress | None = None, **words: Any) -> "Preflight | None":
    """Look at this machine or cluster, write cluster.toml, measure its nodes and links, and say what is slow or broken. Keywords are the
    flags of `meshwise preflight`: the fields of `PreflightAsk` (preflight(seconds=20, device="cpu")). None on a node whose rows another
    one judges."""
    from meshwise.run.preflight.ask import PreflightAsk
    from meshwise.run.preflight.start import preflight

    return preflight(given(PreflightAsk, words), say=say or ignore, progress=progress or ignore)


def generate(model: str, *, weights: str | Path, say: Say | None = None, **words: Any) -> "Generated":
    """Continue a prompt with a model that `run` trained and saved, or compute the loss of a text file. Keywords are the fields of
    `GenerateAsk`: generate("llama-debug", weights="run/weights", prompt="the old river", tokens=40)."""
    from meshwise.run.train.ask import GenerateAsk
    from meshwise.run.train.generate import generate

    return generate(given(GenerateAsk, {"model": model, "weights": str(weights), **words}), say=say or ignore)


def make_gguf(
    model: str, out: str | Path, *, type: str = "q4_k_m", layers: int | None = None, seed: int = 0, header_only: bool = False
) -> "GgufFile":
    """Write a GGUF file with random weights and the real shapes, to measure speed with. `header_only`: no weights, for llama.cpp's dry
    run."""
    from meshwise.models import make_gguf
    from meshwise.models.formats import find_format

    if Path(out).suffix != ".gguf":
        raise UserError(f"--out {out}: the name of a GGUF file ends in .gguf")
    made = make_gguf.prepare(model, find_format(type), layers)
    make_gguf.write(made, Path(out), header_only=header_only, seed=seed)
    return made
