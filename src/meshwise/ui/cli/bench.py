"""The verb `bench`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwise.catalogue import here
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.serve import plan

if TYPE_CHECKING:
    from meshwise.run.bench.speeds import Setting
    from meshwise.run.serve.start import Planned, Wish

ENGINE = "The engine that is started"


def bench(
    what: Annotated[str, typer.Argument(metavar="URL|PLAN|GGUF|MODEL", help="An endpoint, a plan.json, a .gguf, or a model.")],
    prompt: Annotated[str, typer.Option(help="Tokens of a prompt: 512, or several: 128,2k.")] = "",
    output: Annotated[str, typer.Option(help="Tokens to generate (128).")] = "",
    users: Annotated[str, typer.Option(help="Who ask at once: 1, or several: 1,2,4..64.")] = "",
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repeats of every setting, beside a warm-up.")] = 3,
    plan: Annotated[Path | None, typer.Option(help="With a URL: the plan.json that it runs, to predict from.")] = None,
    model: Annotated[str, typer.Option(help="With a URL: which of its models.")] = "",
    key_env: Annotated[str, typer.Option(help="With a URL: the environment variable that holds its key.")] = "",
    patience: Annotated[str, typer.Option(help="How long an endpoint may be silent.")] = "120s",
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
    against: Annotated[Path | None, typer.Option(help="An earlier --out: do they differ by more than repeats do?")] = None,
    vary: Annotated[str, typer.Option(help="gpus=1..4: start the engine again on so many cards.")] = "",
    llama_bench: Annotated[
        bool, typer.Option("--llama-bench", help="Time one user with llama.cpp's own llama-bench, without a server.")
    ] = False,
    on: Annotated[str, typer.Option(help="This machine in words (default: what is here).", rich_help_panel=ENGINE)] = "",
    engine: Annotated[str, typer.Option(help="llama.cpp, vllm or transformers.", rich_help_panel=ENGINE)] = "",
    engine_path: Annotated[str, typer.Option(help="Folder of its programs, or xllamacpp.", rich_help_panel=ENGINE)] = "",
    model_file: Annotated[str, typer.Option(help="The .gguf, or folder of weights.", rich_help_panel=ENGINE)] = "",
    rpc: Annotated[str, typer.Option(help="host1=ADDRESS or host1=loopback.", rich_help_panel=ENGINE)] = "",
    threads: Annotated[int, typer.Option(min=0, help="Of a CPU (default: the engine's).", rich_help_panel=ENGINE)] = 0,
    start_within: Annotated[str, typer.Option(help="How long it may take to load.", rich_help_panel=ENGINE)] = "600s",
    out: Annotated[Path | None, typer.Option(help="Write everything to this .json file.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Write rows for validate and calibrate to this .csv file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Measure how fast an engine serves, beside the prediction: an endpoint that runs, or a plan that is started for it."""
    from meshwise import units
    from meshwise.catalogue.files import write
    from meshwise.run.serve import report
    from meshwise.run.serve import start as serve_run
    from meshwise.ui.views import tables

    url = what.startswith(("http://", "https://"))
    of_engine = {"--vary": vary, "--on": on, "--engine": engine, "--llama-bench": llama_bench}
    _check(url, {"--plan": plan, "--model": model, "--key-env": key_env}, of_engine)
    earlier = report.read(against) if against else None
    wish = serve_run.Wish(folder=engine_path, file=model_file, rpc=serve_run.rpc_addresses(rpc), threads=threads)
    wait = _Waits(units.parse(patience, "seconds"), units.parse(start_within, "seconds"), repeats, seed, llama_bench)
    asked = str(plan or "") if url else what
    planned = _planned(asked, on, engine) if asked else None
    settings = _settings(prompt, output, users, planned)
    with _bar(json or csv, (len(settings)) * (repeats + 1) * (len(_counts(vary)) or 1)) as progress:
        if url:
            about, points = _endpoint(what, _key(key_env), model, settings, wait, planned, progress)
        else:
            assert planned
            about, points = _started(planned, settings, wish, wait, vary, progress)
    told = report.report(points, about | {"repeats": repeats})
    lines = list(about.pop("explained", []))
    told.pop("explained", None)
    lines += report.against(earlier, told) if earlier else []
    if out is not None:
        write(out, tables.as_json(told) + "\n")
    if rows is not None:
        write(rows, tables.as_csv(report.rows(told, planned)))
    if json or csv:
        typer.echo(tables.as_json(told) if json else tables.as_csv(tables.flat(_scalars(one)) for one in points))
    else:
        from meshwise.ui.views.bench import bench_view

        tables.console().print(bench_view(told, lines), soft_wrap=True)
    failed = [one for one in points if one["decode"] is None]
    if failed:
        why = next(iter(failed[0]["faults"]), "no reason given")
        raise DoesNotFit(f"{len(failed)} of {len(points)} settings could not be measured: {why}")


@dataclass(frozen=True)
class _Waits:
    patience: float
    start: float
    repeats: int
    seed: int
    inside: bool
    """Timed by llama-bench."""


def _check(url: bool, of_url: Mapping[str, object], of_engine: Mapping[str, object]) -> None:
    for flag, value in (of_engine if url else of_url).items():
        if value:
            raise UserError(f"{flag} goes with {'an engine that is started, not with a URL' if url else 'a URL'}")


def _key(name: str) -> str:
    if not name:
        return ""
    key = os.environ.get(name, "")
    if not key:
        raise UserError(f"--key-env {name}: there is no such variable, or it is empty")
    return key


def _planned(what: str, on: str, engine: str) -> "Planned":
    from meshwise.run.serve import start as serve_run

    if what.endswith(".json") and os.path.isfile(what):
        for flag, value in (("--on", on), ("--engine", engine)):
            if value:
                raise UserError(f"{flag}: a plan says that itself; leave it out")
        return serve_run.planned(serve_run.plan_ask(plan.read(Path(what))))
    return serve_run.planned(serve_run.ask_here(what, on, engine))


def _settings(prompt: str, output: str, users: str, planned: "Planned | None") -> "list[Setting]":
    """What was asked for, or what the plan is for; users outermost."""
    from meshwise.run.bench.endpoint import listed
    from meshwise.run.bench.speeds import Setting

    ask = planned.ask if planned else None
    prompts = listed(prompt, "--prompt") if prompt else [ask.prompt if ask else 512]
    outputs = listed(output, "--output") if output else [ask.output if ask else 128]
    many = listed(users, "--users") if users else [ask.users if ask else 1]
    if min(outputs) < 2:
        raise UserError("--output 1: a rate of generation needs two tokens or more")
    return [Setting(prompt=p, output=o, users=u) for u in many for p in prompts for o in outputs]


def _counts(vary: str) -> list[int]:
    """'gpus=1..4': every number of cards between."""
    if not vary:
        return []
    name, _, text = vary.partition("=")
    low, dots, high = text.partition("..")
    if name.strip() != "gpus" or not low.strip().isdecimal() or (dots and not high.strip().isdecimal()):
        raise UserError(f"--vary {vary!r}: expected gpus=1..4; other things are varied by 'meshwise plan --serve --vary'")
    found = list(range(int(low), int(high or low) + 1))

    have = len(here.gpus())
    if not found or found[0] < 1 or found[-1] > have:
        raise UserError(f"--vary {vary!r}: this machine has {have} GPU{'' if have == 1 else 's'}")
    return found


def _bar(quiet: bool, steps: int) -> Any:
    """Progress on standard error, where a person looks at it. Used as a context: it gives what to call after each step."""
    from contextlib import contextmanager

    @contextmanager
    def shown() -> Any:
        import sys

        if quiet or not sys.stderr.isatty():
            yield lambda words: None  # pyright: ignore[reportUnknownLambdaType]
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("measuring", total=steps)
            yield lambda words: bar.update(task, advance=1, description=words)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    return shown()


def _endpoint(
    url: str,
    key: str,
    model: str,
    settings: "list[Setting]",
    wait: _Waits,
    planned: "Planned | None",
    progress: Callable[[str], None],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from meshwise.run.bench import client
    from meshwise.run.bench import endpoint as benches
    from meshwise.run.serve import report

    where = client.address(url, key)

    def told(setting: "Setting", number: int) -> None:
        progress(f"{setting.users} users, {'warm-up' if not number else f'repeat {number}'}")

    endpoint, found = benches.bench(
        where, settings, model=model, repeats=wait.repeats, patience=wait.patience, seed=wait.seed, progress=told
    )
    points = [report.point(one, planned) for one in found]
    if not endpoint.extras:
        points[0]["notes"].append("the endpoint takes no ignore_eos: outputs may end early, and prompts may be kept")
    about = {"endpoint": where.url, "model": endpoint.model, "engine": planned.question.engine.name if planned else "an endpoint"}
    return about, points


def _started(
    planned: "Planned", settings: "list[Setting]", wish: "Wish", wait: _Waits, vary: str, progress: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One start of the engine, or one for each number of cards."""
    from dataclasses import replace

    from meshwise.run.serve import start as serve_run

    counts = _counts(vary)
    if not counts:
        return _once(planned, settings, wish, wait, progress)
    points: list[dict[str, Any]] = []
    about: dict[str, Any] = {}
    for number in counts:
        fixed = serve_run.planned(replace(planned.ask, fix=(f"cards={number}",)))
        about, found = _once(fixed, settings, wish, wait, progress)
        points += [{"gpus": number} | one for one in found]
    return about, points


def _once(
    planned: "Planned", settings: "list[Setting]", wish: "Wish", wait: _Waits, progress: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from meshwise.run.serve import memory as serve_memory
    from meshwise.run.serve import report
    from meshwise.run.serve import start as serve_run
    from meshwise.run.serve.allocations import logged
    from meshwise.run.serve.process import OutOfMemory

    name = planned.question.model.name
    if wait.inside:
        return _timed_inside(planned, settings, wish, wait, progress)
    if planned.question.engine.name == "transformers":
        return _timed(planned, settings, wish, wait, progress)
    roomy = serve_run.for_settings(planned, settings)
    programs = serve_run.programs(roomy, wish)
    try:
        with serve_memory.checked(roomy, wish, programs, lambda line: None, wait.start, _warn) as running:
            url = f"http://{programs[-1].host}:{programs[-1].port}"
            about, points = _endpoint(url, "", "", settings, wait, planned, progress)
            log = list(running[-1].log)
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {serve_run.memory_sum(roomy)}") from None
    why = _explained(planned, points, report.from_log(log))
    command = programs[-1].command
    memory = serve_memory.beside(roomy, logged(log, serve_memory.remotes(command)))
    about |= {"model": name, "engine": programs[-1].name, "command": " ".join(command), "memory": memory, "explained": why}
    about.pop("endpoint")
    return about, points


def _warn(line: str) -> None:
    typer.echo(line, err=True)


def _timed_inside(
    planned: "Planned", settings: "list[Setting]", wish: "Wish", wait: _Waits, progress: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """With the RPC servers of the plan up for as long."""
    from meshwise.run.serve import llama_bench as llamacpp_bench
    from meshwise.run.serve import report
    from meshwise.run.serve import start as serve_run
    from meshwise.run.serve.process import started

    command = serve_run.timer_command(planned, wish)
    with started(serve_run.helpers(planned, wish), lambda line: None, wait.start):
        found = llamacpp_bench.timed(command, settings, wait.repeats, progress)
    points = [report.point(one, planned) for one in found]
    about = {"model": planned.question.model.name, "engine": llamacpp_bench.NAME, "command": " ".join(command)}
    return about | {"explained": _explained(planned, points, [])}, points


def _timed(
    planned: "Planned", settings: "list[Setting]", wish: "Wish", wait: _Waits, progress: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from meshwise.run.serve import report, transformers

    cards, tp = len(here.gpus()), planned.layout.tp
    if 0 < cards < tp:
        raise UserError(
            f"the plan has tp={tp}, and this machine has {cards} GPU{'' if cards == 1 else 's'}; plan for what is here"
        )
    device = "cuda" if cards else "cpu"
    name = planned.question.model.name
    asked = transformers.job(name, settings, device=device, repeats=wait.repeats, tp=tp, weights=wish.file)
    found = transformers.timed(asked, lambda: progress("timing"))
    # The planner knows this engine on GPUs alone: beside what a CPU does its answer would mislead.
    points = [report.point(one, planned if device == "cuda" else None) for one in found.measured]
    return {"model": name, "engine": "transformers", "device": found.device, "torch": found.torch}, points


def _explained(planned: "Planned", points: list[dict[str, Any]], known: list[str]) -> list[str]:
    """Where one user's speed is outside of what was predicted: what is known of the machine, and what usually explains it."""
    from meshwise.plan.serve import explain
    from meshwise.plan.serve.search import search
    from meshwise.run.serve import report

    alone = next((one for one in points if one["users"] == 1 and one["predicted"] and one["decode"]), None)
    if alone is None or alone["predicted"]["low"] <= alone["decode"] <= alone["predicted"]["high"]:
        return []
    if planned.question.cards[0].chip.key == "cpu":
        return [
            "the prediction is for a generic 16-core desktop: --on names a processor of the catalogue, or calibrate from --rows"
        ]
    facts = [f"  {line}" for line in [*known, *report.gpu_facts()]]
    usual = explain.measured(planned.question, search(planned.question), float(f"{alone['decode']:.4g}"))
    return [usual[0], *(["seen on this machine:", *facts] if facts else []), *usual[1:]]


def _scalars(one: dict[str, Any]) -> dict[str, object]:
    """One line of CSV: lists as they would be read back."""
    return {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in one.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
