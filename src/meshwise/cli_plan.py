"""The verbs `plan` and `explain`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwise.errors import UserError, quoted

if TYPE_CHECKING:
    from meshwise.cost.train import Question
    from meshwise.plan import Ask, Choice

TOP = 10


def plan(
    model: Annotated[str, typer.Argument(help="Preset, HF id, config.json or its folder, or .gguf.")],
    on: Annotated[str, typer.Option(help="Cluster, such as jean-zay:48 or 48x8xa100-80gb.")],
    batch: Annotated[
        str, typer.Option(help="Sequences (2048), sequences x length (2048x4096), or tokens (4M, in units of 1024).")
    ],
    seq: Annotated[str, typer.Option(help="Sequence length, such as 4k.")] = "4k",
    tokens: Annotated[str, typer.Option(help="Tokens to train on, such as 15T: days, cost and energy.")] = "",
    framework: Annotated[
        str,
        typer.Option(
            help="megatron (the default on GPUs), maxtext (on TPUs), torchtitan, nanotron, fsdp, megatron-deepspeed, hai-llm."
        ),
    ] = "",
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp8.")] = "bf16",
    optimizer: Annotated[str, typer.Option(help="adamw, adamw-8bit, muon, adafactor, sgd or sgd-momentum.")] = "adamw",
    fix: Annotated[
        list[str] | None, typer.Option(help="Fix an axis: tp=8, recompute=full. Repeat or separate by commas.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Bound an axis: pp=1..12.")] = None,
    at_most: Annotated[str, typer.Option("--at-most", help="Also try fewer nodes, up to this many: 48 nodes.")] = "",
    ramp: Annotated[str, typer.Option(help="Batch sizes of a ramp-up, in sequences: 32,64,128.")] = "",
    calibration: Annotated[
        str, typer.Option(help="A calibration by name, instead of the one chosen by chip and framework.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many layouts to show.")] = TOP,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Find the fastest layout to train a model on a cluster, and say why."""
    from meshwise import units
    from meshwise.plan import Ask
    from meshwise.workload import parse_batch

    sequences, length = parse_batch(batch, units.whole_length(seq))
    ask = Ask(
        model=model,
        cluster=on,
        batch=sequences,
        seq=length,
        framework=framework,
        precision=precision,
        optimizer=optimizer,
        tokens=units.parse(tokens, "count") if tokens else 0.0,
        calibration=calibration,
        ramp=tuple(units.whole_length(size) for size in ramp.split(",") if size.strip()),
        fix=tuple(fix or ()),
        allow=tuple(allow or ()),
        at_most=at_most,
    )
    _answer(ask, top, out, json, csv)


def _answer(ask: "Ask", top: int, out: Path | None, json: bool, csv: bool) -> None:
    """Search, keep the plan where it was asked for, and print it."""
    from meshwise import render
    from meshwise.explain import parse_axes, reasons, runner_up
    from meshwise.files import write
    from meshwise.plan import make
    from meshwise.search import check_divides, search

    question, bounds = ask.question(), parse_axes(",".join((*ask.fix, *ask.allow)))
    nodes = _nodes(ask.at_most, question)
    check_divides(question, bounds, nodes)
    found = search(question, bounds=bounds, top=top, nodes=nodes)
    made = make(ask, question, found, top)
    if out is not None:
        write(out, render.as_json(made.to_json()) + "\n")
    if json or csv:
        rows = (render.flat(_row(choice)) for choice in made.choices)
        typer.echo(render.as_json(made.to_json()) if json else render.as_csv(rows))
        return
    from meshwise.render_plan import plan_view

    why = reasons(question, made.choices[0], runner_up(made.choices), bounds)
    console = render.console()
    console.print(plan_view(made, why))
    console.print(f"again: {_command(ask, top)}", soft_wrap=True, highlight=False)


def _row(choice: "Choice") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(choice)


def _nodes(text: str, question: "Question") -> tuple[int, ...]:
    """Every number of nodes up to what `--at-most` says; nothing asks for the whole cluster."""
    if not text:
        return ()
    number = text.lower().removesuffix("nodes").removesuffix("node").strip()
    if not number.isdecimal() or len(number) > 8 or not 1 <= int(number) <= question.cluster.node_count:
        raise UserError(
            f"--at-most {quoted(text)}: expected 1 to {question.cluster.node_count} nodes, such as '{question.cluster.node_count} nodes'"
        )
    return tuple(range(1, int(number) + 1))


def _command(ask: "Ask", top: int) -> str:
    """The command that asks the same again."""
    words = [
        "meshwise",
        "plan",
        ask.model,
        "--on",
        ask.cluster,
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
    return shlex.join([*words, *(["--top", str(top)] if top != TOP else [])])


def explain(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan.json, written by plan --out.")],
    versus: Annotated[str, typer.Option(help="Compare with the layout you have in mind: tp=8,pp=6.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a layout won: against the runner-up or your own idea, what binds, and what would change it."""
    from meshwise import explain as explaining
    from meshwise import plan as plans
    from meshwise import render

    read = plans.read(plan_file)
    question = read.ask.question()
    best = read.choices[0]
    other = explaining.versus(question, best, versus) if versus else explaining.runner_up(read.choices)
    bounds = explaining.parse_axes(",".join((*read.ask.fix, *read.ask.allow)))
    lines = explaining.reasons(question, best, other, bounds)
    if json:
        parts = [{"part": d.part, "best": d.mine, "other": d.other} for d in explaining.differences(best, other)] if other else []
        typer.echo(render.as_json({"best": best.layout, "other": other and other.layout, "differences": parts, "reasons": lines}))
        return
    console = render.console()
    if other is not None:
        from meshwise.render_plan import bars

        for line in bars([best, other]):
            console.print(line)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
