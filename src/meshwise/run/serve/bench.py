"""Measure how fast an engine serves, beside the prediction: an endpoint that is up, or an engine that is started for it."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any, TypeVar

from meshwise.catalogue import files, here
from meshwise.cost.serve.load.requests import Lengths, Load, Targets
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.plan.serve.lookup import read_lengths, target_of
from meshwise.plan.serve.plan import ServePlan, read
from meshwise.replay.traces.trace import open_trace
from meshwise.run.bench import client, endpoint, openloop
from meshwise.run.bench import traced as tracing
from meshwise.run.bench.ask import BenchAsk
from meshwise.run.bench.speeds import Measured, Setting
from meshwise.run.bench.stream import printable
from meshwise.run.callbacks import Progress, Say, ignore
from meshwise.run.children import interrupt_on_stop
from meshwise.run.meter import Meter
from meshwise.run.serve import llama_bench, memory, programs, report, traced, transformers
from meshwise.run.serve.allocations import from_log
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment, ask_here, ask_of, deployment, with_room_for
from meshwise.run.serve.process import OutOfMemory, started

Result = TypeVar("Result")
About = dict[str, Any]
Points = list[report.Report]
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # hosts whose engine draws the power of this machine


@dataclass(frozen=True)
class Bench(Drawn):
    """Measured speeds: `data` is the whole report."""

    data: report.Report
    planned: Deployment | None = None
    lines: tuple[str, ...] = ()  # causes of a gap between prediction and measurement
    changes: list[report.Change] | None = None  # against an earlier report; None without one

    @property
    def stopped(self) -> bool:
        """Whether a signal ended it before all settings were measured."""
        return bool(self.data.get("stopped"))

    @property
    def points(self) -> Points:
        """One dict per setting, in SI units."""
        return self.data["points"]

    def to_json(self) -> report.Report:
        return self.data

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per setting, with the columns of `--csv`."""
        return [flat({key: _cell(value) for key, value in point.items()}) for point in self.points]

    def measurements(self) -> list[dict[str, Any]]:
        """Return one row per setting in the columns that validate, audit and calibrate read."""
        return report.rows(self.data, self.planned)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON, which `against` reads."""
        files.write(Path(path), json.dumps(self.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def check(self) -> None:
        """Raise DoesNotFit if a setting could not be measured."""
        failed = [point for point in self.points if point["decode"] is None]
        if failed:
            why = next(iter(failed[0]["faults"]), "no reason given")
            raise DoesNotFit(f"{len(failed)} of {len(self.points)} settings could not be measured: {why}")


def _noted(up: endpoint.Endpoint, points: Points) -> Points:
    """Return the points, with a note where the endpoint may have ended outputs early."""
    if not up.extras:
        points[0]["notes"].append("the endpoint does not accept ignore_eos: outputs may end early, and prompts may be cached")
    return points


def _cell(value: Any) -> Any:
    """Return a value as one cell of a table: the items of a list are joined."""
    return " ".join(map(str, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def bench(
    ask: BenchAsk, plan: ServePlan | None = None, *, say: Say = ignore, progress: Progress = ignore,
    keep: Callable[[Bench], None] = ignore,
) -> Bench:  # fmt: skip
    """Measure every setting of `ask` until a signal; `say` gets warnings of an engine, `keep` what is measured after every setting."""
    url = ask.what.startswith(("http://", "https://"))
    _check_flags(ask, url)
    _check_open_loop(ask, url)
    earlier = report.read(Path(ask.against)) if ask.against else None
    planned = _planned(ask, plan, url)
    settings = _settings(ask, planned)
    counts = gpu_counts(ask.vary)
    more: About = {"repeats": ask.repeats}

    def kept(about: About, points: Points) -> None:
        keep(Bench(report.report(points, about | more | {"stopped": True}), planned))

    work = _Work(ask, settings, say, progress, len(settings) * (ask.repeats + 1) * (len(counts) or 1), kept)
    where = client.address(ask.what, _key(ask.key_env)) if url else None
    with interrupt_on_stop(), Meter(devices=planned.layout.devices if planned else 0) as meter:
        if where:
            measure = work.traced if ask.trace else work.open_loop if ask.rate else work.endpoint
            about, points = measure(where, planned)
        else:
            assert planned
            about, points = work.each_count(planned, counts) if counts else work.engine(planned)
    causes = tuple(about.pop("explained", ()))
    data = report.report(points, about | more | ({"stopped": True} if work.stopped else {}))
    data |= {"facts": report.facts_of(data, planned)} if planned else {}
    drawn = meter.between(*work.span) or meter.metered
    data |= {"power": report.power(drawn, points)} if drawn and (where is None or where.host in LOOPBACK) else {}
    return Bench(data, planned, causes, report.against(earlier, data) if earlier else None)


def _check_flags(ask: BenchAsk, url: bool) -> None:
    if not ask.what:
        raise UserError("missing URL, PLAN, GGUF or MODEL: what to measure, such as http://127.0.0.1:8080 or model.gguf")
    for_url: Mapping[str, object] = {"--plan": ask.plan, "--model": ask.model, "--key-env": ask.key_env}
    for_engine: Mapping[str, object] = {
        "--vary": ask.vary, "--on": ask.on, "--engine": ask.engine, "--llama-bench": ask.llama_bench,
        "--engine-flags": ask.engine_flags,
    }  # fmt: skip
    for flag, value in (for_engine if url else for_url).items():
        if value:
            why = "an engine that bench starts; a URL is already up" if url else f"a URL; {ask.what} is started by bench"
            raise UserError(f"{flag} only applies to {why}")


def _check_open_loop(ask: BenchAsk, url: bool) -> None:
    """Refuse flags of an open loop without a rate, and a rate without a URL."""
    open_only: Mapping[str, object] = {
        "--ramp": ask.ramp, "--prefix": ask.prefix, "--lengths": ask.lengths, "--ttft": ask.ttft, "--tpot": ask.tpot, "--e2e": ask.e2e,
    }  # fmt: skip
    own_times: Mapping[str, object] = {"--rate": ask.rate, "--ramp": ask.ramp, "--prefix": ask.prefix, "--lengths": ask.lengths}
    for flag, value in open_only.items():
        if value and not (ask.rate or ask.trace):
            raise UserError(f"{flag} applies to an open loop; give --rate too, such as 4/s")
        if value and ask.trace and flag in own_times:
            raise UserError(f"{flag}: a trace has its own times, lengths and prefixes; drop it")
    traced_only: Mapping[str, object] = {
        "--read": ask.read, "--speed": ask.speed != 1, "--scale-users": ask.scale_users != 1, "--window": ask.window,
    }  # fmt: skip
    for flag, value in traced_only.items():
        if value and not ask.trace:
            raise UserError(f"{flag} applies to a trace; give --trace FILE too")
    for flag, value in (("--rate", ask.rate), ("--trace", ask.trace)):
        if value and not url:
            raise UserError(f"{flag} needs the URL of an endpoint that is up")
    if ask.rate and ask.trace:
        raise UserError("--rate and --trace exclude each other: a trace has its own times")
    if ask.rate and ask.users:
        raise UserError("--users and --rate exclude each other: users wait for their answers, a rate does not")


def _key(name: str) -> str:
    key = os.environ.get(name, "") if name else ""
    if name and not key:
        raise UserError(f"--key-env {name}: no such environment variable, or it is empty")
    return key


def _planned(ask: BenchAsk, plan: ServePlan | None, url: bool) -> Deployment | None:
    """Return the layout to measure or to predict with; None for a URL without --plan."""
    what = ask.plan if url else ask.what
    if plan is None and what.endswith(".json") and os.path.isfile(what):
        plan = read(Path(what))
    if plan is None:
        return deployment(ask_here(what, ask.on, ask.engine)) if what else None
    for flag, value in (("--on", ask.on), ("--engine", ask.engine)):
        if value:
            raise UserError(f"{flag} does not apply to a plan, which has its own; drop it")
    return deployment(ask_of(plan))


def _settings(ask: BenchAsk, planned: Deployment | None) -> list[Setting]:
    """Return the settings of the ask, or else the plan's, ordered by concurrent requests."""
    planned_ask = planned.ask if planned else None
    prompts = ask.prompt or (planned_ask.prompt if planned_ask else 512,)
    outputs = ask.output or (planned_ask.output if planned_ask else 128,)
    users = ask.users or (planned_ask.users if planned_ask else 1,)
    if min(outputs) < 2:
        raise UserError("--output 1: a generation rate needs at least two tokens")
    return [Setting(prompt=p, output=o, users=u) for u in users for p in prompts for o in outputs]


def gpu_counts(vary: str) -> list[int]:
    """Read 'gpus=1..4': every number of GPUs in the range."""
    if not vary:
        return []
    name, _, text = vary.partition("=")
    low, dots, high = text.partition("..")
    if name.strip() != "gpus" or not low.strip().isdecimal() or (dots and not high.strip().isdecimal()):
        raise UserError(f"--vary {quoted(vary)}: expected gpus=1..4; 'meshwise serve --vary' predicts along other axes")
    counts = list(range(int(low), int(high or low) + 1))
    have = len(here.gpus())
    if not counts or counts[0] < 1 or counts[-1] > have:
        raise UserError(f"--vary {quoted(vary)}: this machine has {have} GPU{'' if have == 1 else 's'}")
    return counts


def _open_loop_figures(one: openloop.Outcome) -> About:
    """Return the rates and latencies of an open loop."""
    times = {
        f"{name}_{part}": getattr(getattr(one, name), part)
        for name in ("ttft", "tpot", "e2e")
        for part in ("mean", "p50", "p95", "p99")
    }
    return {
        "rate": one.offered, "finished": one.finished, "goodput": one.goodput, "output_rate": one.output_rate, **times,
    }  # fmt: skip


@dataclass
class _Work:
    """A bench in progress: its settings, and the number of repeats done."""

    ask: BenchAsk
    settings: list[Setting]
    say: Say
    progress: Progress
    total: int
    keep: Callable[[About, Points], None]
    done: int = field(default=0, init=False)
    earlier: Points = field(default_factory=Points, init=False)  # points of other numbers of GPUs
    stopped: bool = field(default=False, init=False)  # whether a signal ended it

    span: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    """When the first and the last repeat ended, in seconds since 1970."""

    def tick(self, what: str) -> None:
        self.done += 1
        self.span = self.span[0] or time(), time()
        self.progress(what, self.done, self.total)

    def points(self, measured: list[Measured], planned: Deployment | None) -> Points:
        return [report.point(setting, planned) for setting in measured]

    @property
    def run(self) -> ServeRun:
        """The settings to start the engine with: on a free port of this machine."""
        ask = self.ask
        return ServeRun(
            engine_path=ask.engine_path, model_file=ask.model_file, rpc=ask.rpc, threads=ask.threads, start_within=ask.start_within,
            port=0,
        )  # fmt: skip

    def until_stopped(self, call: Callable[[], tuple[endpoint.Endpoint, list[Result]]]) -> tuple[endpoint.Endpoint, list[Result]]:
        """Return what `call` measures; where a signal ends it, what was measured until then."""
        try:
            return call()
        except endpoint.Stopped as stop:
            self.stopped = True
            return stop.kept

    def endpoint(self, where: client.Address, planned: Deployment | None) -> tuple[About, Points]:
        """Measure an endpoint that is up."""

        def about(up: endpoint.Endpoint) -> About:
            engine = planned.question.engine.name if planned else "an endpoint"
            return {"endpoint": where.url, "model": where.redact(printable(up.model)), "engine": engine}

        def kept(up: endpoint.Endpoint, results: list[Measured]) -> None:
            self.keep(about(up), [*self.earlier, *self.points(results, planned)])

        def done(setting: Setting, number: int) -> None:
            self.tick(f"{setting.users} concurrent, {f'repeat {number}' if number else 'warm-up'}")

        ask = self.ask
        up, measured = self.until_stopped(
            lambda: endpoint.bench(
                where, self.settings, model=ask.model, repeats=ask.repeats, patience=ask.patience, seed=ask.seed, progress=done,
                kept=kept,
            )
        )  # fmt: skip
        return about(up), _noted(up, self.points(measured, planned))

    def open_loop(self, where: client.Address, planned: Deployment | None) -> tuple[About, Points]:
        """Drive an endpoint that is up with requests that arrive at random."""
        ask, setting = self.ask, self.settings[0]
        prompt, output = Lengths(setting.prompt), Lengths(setting.output)
        if ask.lengths:
            prompt, output = read_lengths(Path(ask.lengths))
        load = Load(prompt=prompt, output=output, rate=ask.rate, burst=ask.burst, prefix=ask.prefix)
        targets = Targets(ttft=target_of(ask.ttft), tpot=target_of(ask.tpot), e2e=target_of(ask.e2e))
        up, found = self.until_stopped(
            lambda: openloop.bench(
                where, load, targets, model=ask.model, requests=ask.requests, patience=ask.patience, seed=ask.seed, ramp=ask.ramp
            )
        )
        points = self.points([one.measured for one in found], planned)
        for point, one in zip(points, found, strict=True):
            predicted = report.predicted_load(planned, replace(load, rate=one.offered)) if planned else None
            point |= {"prefix": ask.prefix, "predicted": predicted} | _open_loop_figures(one)
        return {
            "endpoint": where.url, "model": where.redact(printable(up.model)),
            "engine": planned.question.engine.name if planned else "an endpoint", "explained": [one.line() for one in found],
        }, points  # fmt: skip

    def traced(self, where: client.Address, planned: Deployment | None) -> tuple[About, Points]:
        """Send a trace to an endpoint that is up, and put the simulation of the plan beside it."""
        ask = self.ask
        trace = open_trace(ask.trace, read=ask.read, speed=ask.speed, users=ask.scale_users, window=ask.window)
        bounds = tracing.Bounds(ask.requests, ask.within, ask.at_once)
        targets = Targets(ttft=target_of(ask.ttft), tpot=target_of(ask.tpot), e2e=target_of(ask.e2e))
        up, found = self.until_stopped(
            lambda: tracing.bench(
                where, trace, trace.block, bounds, targets, model=ask.model, patience=ask.patience, seed=ask.seed
            )
        )
        (one,) = found
        (point,) = self.points([one.outcome.measured], None)
        point |= _open_loop_figures(one.outcome) | {"prefix": 0.0, "predicted": None}
        return {
            "endpoint": where.url, "model": where.redact(printable(up.model)),
            "engine": planned.question.engine.name if planned else "an endpoint", "trace": trace.name,
            "requests": traced.rows(one.answered),
            "compared": traced.compare(planned, one, trace.block) if planned and one.answered else [],
            "explained": [one.outcome.line(), *traced.lines(one)],
        }, [point]  # fmt: skip

    def each_count(self, planned: Deployment, counts: list[int]) -> tuple[About, Points]:
        """Start the engine once for each number of GPUs."""
        points: Points = []
        about: About = {}
        for number in counts:
            fixed = deployment(replace(planned.ask, fix=(f"cards={number}",)))
            about, count_points = self.engine(fixed)
            points += [{"gpus": number} | point for point in count_points]
            self.earlier = points
            if self.stopped:
                break
        return about, points

    def engine(self, planned: Deployment) -> tuple[About, Points]:
        """Start an engine, measure it and stop it; or run the engine's own timer."""
        if self.ask.llama_bench:
            return self.llama_bench(planned)
        if not planned.question.engine.server:
            if self.ask.engine_flags:
                raise UserError("--engine-flags: the transformers engine has no server that takes flags")
            return self.transformers(planned)
        roomy = with_room_for(planned, self.settings)
        processes = programs.with_flags(programs.programs(roomy, self.run), self.ask.engine_flags)
        server = processes[-1]
        try:
            with memory.started_and_checked(roomy, self.run, processes, ignore, self.say) as running:
                about, points = self.endpoint(client.address(f"http://{server.host}:{server.port}"), planned)
                log = list(running[-1].log)
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}; {roomy.memory_summary()}") from None
        about |= {
            "model": planned.question.model.name, "engine": server.name, "command": " ".join(server.command),
            "memory": memory.compare(roomy, from_log(log, memory.rpc_addresses(server.command))),
            "explained": report.causes(planned, points, log),
        }  # fmt: skip
        about.pop("endpoint")
        return about, points

    def llama_bench(self, planned: Deployment) -> tuple[About, Points]:
        """Time with llama-bench while the plan's RPC servers are up."""
        command = programs.llama_bench_command(planned, self.run)
        with started(programs.rpc_helpers(planned, self.run), ignore, self.ask.start_within):
            measured = llama_bench.timed(command, self.settings, self.ask.repeats, lambda: self.tick("llama-bench"))
        points = self.points(measured, planned)
        about: About = {"model": planned.question.model.name, "engine": llama_bench.NAME, "command": " ".join(command)}
        return about | {"explained": report.causes(planned, points, [])}, points

    def transformers(self, planned: Deployment) -> tuple[About, Points]:
        """Time with the decoder worker."""
        gpus, tp = len(here.gpus()), planned.layout.tp
        if 0 < gpus < tp:
            raise UserError(
                f"the plan has tp={tp}, but this machine has {gpus} GPU{'' if gpus == 1 else 's'}; plan for this machine"
            )
        device, name = "cuda" if gpus else "cpu", planned.question.model.name
        job = transformers.job(name, self.settings, device=device, repeats=self.ask.repeats, tp=tp, weights=self.ask.model_file)
        timed = transformers.timed(job, lambda: self.tick("transformers"))
        # the planner knows this engine on GPUs only: its prediction would be misleading for a CPU
        points = self.points(timed.measured, planned if device == "cuda" else None)
        return {"model": name, "engine": "transformers", "device": timed.device, "torch": timed.torch}, points
