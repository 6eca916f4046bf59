"""The verbs `plan` and `explain`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwise.cost import layout
from meshwise.errors import UserError

if TYPE_CHECKING:
    from meshwise.cost.train.question import Question
    from meshwise.plan.train.choice import Ask, Choice

TOP = 10
IMBALANCE = 1.1
"""As workload.Train has it; numpy comes with that module, and `--help` needs none."""
PANEL = "Failures, for the wall time of a run"
SHAPE = "The shape of the model, where it is open"
SERVE = "Serving, with --serve"


def plan(
    given: typer.Context,
    model: Annotated[str, typer.Argument(help="Preset, HF id, config.json or its folder, or .gguf.")] = "",
    on: Annotated[str, typer.Option(help="Cluster, such as jean-zay:48 or 48x8xa100-80gb.")] = "",
    batch: Annotated[
        str, typer.Option(help="Sequences (2048), sequences x length (2048x4096), or tokens (4M, in units of 1024).")
    ] = "",
    seq: Annotated[str, typer.Option(help="Sequence length, such as 4k.")] = "4k",
    tokens: Annotated[str, typer.Option(help="Tokens to train on, such as 15T: days, cost and energy.")] = "",
    framework: Annotated[
        str,
        typer.Option(
            help="megatron (the default on GPUs), maxtext (on TPUs), meshwise (for TTT), torchtitan, nanotron, fsdp, megatron-deepspeed, "
            "hai-llm."
        ),
    ] = "",
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp8.")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw-8bit, muon, adafactor, sgd or sgd-momentum.")] = "adamw",
    fix: Annotated[
        list[str] | None, typer.Option(help="Fix an axis: tp=8, recompute=full. Repeat or separate by commas.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Bound an axis: pp=1..12.")] = None,
    at_most: Annotated[str, typer.Option("--at-most", help="Also try fewer nodes, up to this many: 48 nodes.")] = "",
    link: Annotated[str, typer.Option(help="Bandwidth between the devices of a node, instead of the chip's: 200GB/s.")] = "",
    vary: Annotated[
        list[str] | None, typer.Option(help="Ask at many points: nodes=8..512, chip=h100-sxm,h200. Twice makes a grid.")
    ] = None,
    within: Annotated[str, typer.Option(help="A deadline for --tokens, such as 30d.")] = "",
    cheapest: Annotated[bool, typer.Option("--cheapest", help="The cheapest chip and number of nodes for --tokens.")] = False,
    params: Annotated[str, typer.Option(help="Search the shape too, near so many parameters: 176B.", rich_help_panel=SHAPE)] = "",
    vocab: Annotated[str, typer.Option(help="Its vocabulary: 250880.", rich_help_panel=SHAPE)] = "",
    like: Annotated[
        str, typer.Option(help="The model whose kind of layers it has: llama-3-70b (bloom-176b).", rich_help_panel=SHAPE)
    ] = "",
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Only this one: hidden x layers x heads [x FFW], 14336x70x112. Repeat it.", rich_help_panel=SHAPE),
    ] = None,
    imbalance: Annotated[
        float, typer.Option(min=1, max=100, help="Tokens on the busiest device of an expert-parallel group over the mean.")
    ] = IMBALANCE,
    ramp: Annotated[str, typer.Option(help="Batch sizes of a ramp-up, in sequences: 32,64,128.")] = "",
    calibration: Annotated[
        str, typer.Option(help="A calibration by name or .toml, instead of the one chosen by chip and framework.")
    ] = "",
    mtbf: Annotated[
        str, typer.Option(help="Mean time between failures of one device: 50000h (Llama 3's).", rich_help_panel=PANEL)
    ] = "",
    checkpoint_bandwidth: Annotated[
        str, typer.Option(help="To storage, of the whole cluster: 100GB/s (122 MB/s a device).", rich_help_panel=PANEL)
    ] = "",
    checkpoint_every: Annotated[str, typer.Option(help="3h, instead of the best interval.", rich_help_panel=PANEL)] = "",
    async_checkpoint: Annotated[
        bool, typer.Option("--async-checkpoint", help="Steps go on while a checkpoint is written.", rich_help_panel=PANEL)
    ] = False,
    restart: Annotated[str, typer.Option(help="From a failure until steps run: 10min.", rich_help_panel=PANEL)] = "",
    repair: Annotated[str, typer.Option(help="Until a failed node is back: 1d.", rich_help_panel=PANEL)] = "",
    spares: Annotated[
        int | None, typer.Option(min=0, help="Spare nodes (as many as pay for themselves).", rich_help_panel=PANEL)
    ] = None,
    straggler: Annotated[
        str, typer.Option(help="Spread of a device's step time: 0.5%. The slowest is waited for.", rich_help_panel=PANEL)
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it instead: fit, split, speed and the commands.", rich_help_panel=SERVE)
    ] = False,
    context: Annotated[str, typer.Option(help="Tokens of one user, prompt and output: 16k (8k).", rich_help_panel=SERVE)] = "",
    prompt: Annotated[str, typer.Option(help="Tokens of a prompt.", rich_help_panel=SERVE)] = "512",
    output: Annotated[str, typer.Option(help="Tokens of an answer.", rich_help_panel=SERVE)] = "128",
    users: Annotated[str, typer.Option(help="Who ask at the same time.", rich_help_panel=SERVE)] = "1",
    kv: Annotated[
        str, typer.Option(help="Type of keys and values: f16 (the default), q8_0, q4_0, fp8.", rich_help_panel=SERVE)
    ] = "",
    engine: Annotated[str, typer.Option(help="llama.cpp, vllm or ollama.", rich_help_panel=SERVE)] = "",
    ttft: Annotated[str, typer.Option(help="The first token must come within: 1s.", rich_help_panel=SERVE)] = "",
    per_user: Annotated[str, typer.Option(help="Tokens/s that each user must get: 15.", rich_help_panel=SERVE)] = "",
    measured: Annotated[str, typer.Option(help="Tokens/s that you see: is it normal?", rich_help_panel=SERVE)] = "",
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many layouts to show.")] = TOP,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Find the fastest layout to train a model on a cluster, or the best way to serve it, and say why."""
    from meshwise.ui.cli import serve as cli_serve

    cli_serve.check_flags(given, serve)
    if serve:
        cli_serve.answer(cli_serve.asked(given.params, vary or []), vary or [], top, TOP, out, json, csv)
        return
    from meshwise import units
    from meshwise.cost.work import parse_batch
    from meshwise.models.count import training_tokens
    from meshwise.plan.train.choice import Ask
    from meshwise.ui.cli import plan_cli_shape, plan_cli_vary

    varied = vary or []
    model, open_shape = plan_cli_shape.wanted(model, params, vocab, like, shape)
    on, batch = plan_cli_vary.started(varied, on, batch, cheapest)
    sequences, length = parse_batch(batch, units.whole_length(seq))
    total = training_tokens(tokens) if tokens else 0.0
    ask = Ask(
        model=model,
        cluster=on,
        batch=sequences,
        seq=length,
        framework=framework,
        precision=precision,
        optimizer=optimizer,
        tokens=total,
        calibration=calibration,
        ramp=tuple(units.whole_length(size) for size in ramp.split(",") if size.strip()),
        fix=tuple(fix or ()),
        allow=tuple(allow or ()),
        at_most=at_most,
        imbalance=imbalance,
        reliability=_failures(
            {
                "mtbf": mtbf,
                "checkpoint_bandwidth": checkpoint_bandwidth,
                "checkpoint_every": checkpoint_every,
                "restart": restart,
                "repair": repair,
                "straggler": straggler,
            },
            async_checkpoint,
            spares,
        ),
        link=link,
        within=plan_cli_vary.deadline(within, total, cheapest),
    )
    if open_shape is not None:
        if varied or cheapest or within or out is not None or at_most:
            raise UserError(
                "--params and --shape ask of one cluster: leave out --vary, --cheapest, --within, --at-most and --out"
            )
        plan_cli_shape.answer(ask, open_shape, _command(ask, top, named=False), top, json, csv)
    elif not varied and not cheapest:
        _answer(ask, top, out, json, csv)
    elif out is not None or top != TOP:
        raise UserError("--out and --top are of one plan: plan the point you like without --vary and --cheapest")
    else:
        (plan_cli_vary.cheapest if cheapest else plan_cli_vary.answer)(ask, varied, lambda one: _command(one, TOP), json, csv)


def _answer(ask: "Ask", top: int, out: Path | None, json: bool, csv: bool) -> None:
    """Search, keep the plan where it was asked for, and print it."""
    from meshwise.catalogue.files import write
    from meshwise.cost.layout import parse_axes
    from meshwise.plan.train.choice import make, node_counts
    from meshwise.plan.train.explain import reasons, runner_up
    from meshwise.plan.train.search import check_divides, search
    from meshwise.ui.views import tables

    question, bounds = ask.question(), parse_axes(",".join((*ask.fix, *ask.allow)))
    nodes = node_counts(ask, question)
    check_divides(question, bounds, nodes)
    found = search(question, bounds=bounds, top=top, nodes=nodes)
    made = make(ask, question, found, top)
    if out is not None:
        write(out, tables.as_json(made.to_json()) + "\n")
    if json or csv:
        rows = (tables.flat(_row(choice)) for choice in made.choices)
        typer.echo(tables.as_json(made.to_json()) if json else tables.as_csv(rows))
        return
    from meshwise.ui.views.plan import plan_view

    why = reasons(question, made.choices[0], runner_up(made.choices), bounds)
    console = tables.console()
    console.print(plan_view(made, why))
    console.print(f"again: {_command(ask, top)}", soft_wrap=True, highlight=False)


def _failures(given: dict[str, str], async_checkpoint: bool, spares: int | None) -> dict[str, float | bool]:
    """What was said of failures, in SI."""
    from meshwise import units
    from meshwise.cost.reliability import ACCEPTED

    said: dict[str, float | bool] = {name: units.parse(text, ACCEPTED[name][0]) for name, text in given.items() if text}
    said |= {"async_checkpoint": True} if async_checkpoint else {}
    return said | ({"spares": spares} if spares is not None else {})


def _row(choice: "Choice") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(choice)


def _command(ask: "Ask", top: int, *, named: bool = True) -> str:
    """The command that asks the same again."""
    from meshwise import units

    words = [
        "meshwise",
        "plan",
        *([ask.model] if named else []),
        *(["--on", ask.cluster] if ask.cluster else []),
        "--batch",
        f"{ask.batch}x{ask.seq}",
    ]
    words += ["--framework", ask.framework] if ask.framework else []
    words += ["--precision", ask.precision] if ask.precision != "bf16" else []
    words += ["--optimizer", ask.optimizer] if ask.optimizer != "adamw" else []
    words += ["--tokens", f"{ask.tokens:.17g}"] if ask.tokens else []
    words += ["--calibration", ask.calibration] if ask.calibration else []
    words += ["--ramp", ",".join(map(str, ask.ramp))] if ask.ramp else []
    words += [word for value in ask.fix for word in ("--fix", value)]
    words += [word for value in ask.allow for word in ("--allow", value)]
    words += ["--at-most", ask.at_most] if ask.at_most else []
    words += ["--imbalance", f"{ask.imbalance:.17g}"] if ask.imbalance != IMBALANCE else []
    for name, value in ask.reliability.items():
        unit = {"mtbf": "s", "checkpoint_bandwidth": "B/s", "checkpoint_every": "s", "restart": "s", "repair": "s"}.get(name, "")
        words += ["--" + name.replace("_", "-"), *([] if value is True else [f"{value:.17g}{unit}"])]
    words += ["--link", ask.link] if ask.link else []
    words += ["--within", units.exactly(ask.within, "seconds")] if ask.within else []
    return shlex.join([*words, *(["--top", str(top)] if top != TOP else [])])


def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json, written by plan --out.")],
    versus: Annotated[str, typer.Option(help="Compare with the layout you have in mind: tp=8,pp=6.")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="Write the step as a trace for ui.perfetto.dev; .json, or .json.gz to compress it.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the step as a picture.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a layout won: against the runner-up or your own idea, what binds, and what would change it."""
    from meshwise.catalogue import records
    from meshwise.ui.cli import serve as cli_serve

    if records.any_table(plan_file).get("kind") == cli_serve.KIND:
        if versus or trace or svg:
            raise UserError("--versus, --trace and --svg are of plans for training; this one is for serving")
        cli_serve.explain(plan_file, json)
        return
    from meshwise.plan.train import choice as plans
    from meshwise.plan.train import explain as explaining
    from meshwise.ui.views import tables

    read = plans.read(plan_file)
    question = read.ask.question()
    best = read.choices[0]
    other = explaining.versus(question, best, versus) if versus else explaining.runner_up(read.choices)
    if trace or svg:
        if json:
            raise UserError("--json prints the explanation, --trace and --svg write files instead of it: ask for one of the two")
        _play_out(question, other if versus and other else best, trace, svg)
        return
    bounds = layout.parse_axes(",".join((*read.ask.fix, *read.ask.allow)))
    lines = explaining.reasons(question, best, other, bounds)
    if json:
        parts = [{"part": d.part, "best": d.mine, "other": d.other} for d in explaining.differences(best, other)] if other else []
        typer.echo(tables.as_json({"best": best.layout, "other": other and other.layout, "differences": parts, "reasons": lines}))
        return
    console = tables.console()
    if other is not None:
        from meshwise.ui.views.plan import bars

        for line in bars([best, other]):
            console.print(line)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _play_out(question: "Question", choice: "Choice", trace: Path | None, svg: Path | None) -> None:
    """Write the timeline of a layout, and say what was written."""
    from meshwise.catalogue.files import write
    from meshwise.cost.layout import name_of
    from meshwise.plan.train import timeline

    name = name_of(choice.layout)
    played = timeline.play_out(question, choice)
    if trace is not None:
        events = timeline.trace(played)
        write(trace, timeline.as_file(events, trace.name))
        number = len(events["traceEvents"])
        typer.echo(f"{trace}: {name}, {choice.seconds:.4g} s, {number:,} events; open it in ui.perfetto.dev or chrome://tracing")
    if svg is not None:
        from meshwise.ui.views.gantt import gantt

        write(svg, gantt(played, name))
        typer.echo(f"{svg}: {name}, {choice.seconds:.4g} s")
