"""`plan --serve`: will it fit, how to split it, how fast, for one user or many."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwise.errors import UserError

if TYPE_CHECKING:
    from meshwise.plan.ask import ServeAsk
    from meshwise.plan.serve.choice import ServePlan

KIND = "serve"
SERVE_ONLY = ("context", "prompt", "output", "users", "kv", "engine", "ttft", "per_user", "measured")
SHARED = ("model", "on", "serve", "fix", "link", "vary", "top", "out", "json", "csv")


def check_flags(given: typer.Context, serve: bool) -> None:
    """Flags of serving go with --serve, those of training without it."""
    for name in given.params:
        source = given.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in SHARED:
            continue
        flag = f"--{name.replace('_', '-')}"
        if serve and name not in SERVE_ONLY:
            raise UserError(f"{flag} is of training; leave it out, or plan without --serve")
        if not serve and name in SERVE_ONLY:
            raise UserError(f"{flag} is of serving; add --serve")


def asked(values: dict[str, Any], vary: list[str]) -> "ServeAsk":
    """The question from its flags."""
    from meshwise import units
    from meshwise.plan.ask import ServeAsk
    from meshwise.plan.axes_serve_axes import AXES
    from meshwise.plan.vary import axis_of

    first = {axis_of(text, AXES).name: text.partition("=")[2].split(",")[0].partition("..")[0].strip() for text in vary}
    if not values["model"]:
        raise UserError("missing MODEL: a preset, HF id, config.json or .gguf, with a format as in llama-3.3-70b:q4_k_m")
    if not values["on"]:
        raise UserError("missing --on: the cards, such as 4xrtx4060ti-16gb or 2x(2xrtx3090)@10Gbps")
    return ServeAsk(
        model=values["model"],
        cluster=values["on"],
        engine=values["engine"],
        prompt=units.whole_length(values["prompt"]),
        output=units.whole_length(values["output"]),
        users=_count(values["users"]),
        context=units.whole_length(values["context"]) if values["context"] else 0,
        kv=values["kv"] or first.get("kv", "f16"),
        ttft=_positive(values["ttft"], "seconds", "--ttft"),
        per_user=_positive(values["per_user"], "count", "--per-user"),
        fix=tuple(values["fix"] or ()),
        link=values["link"],
        measured=_positive(values["measured"], "count", "--measured"),
    )


def _count(text: str) -> int:
    digits = text.strip().replace("_", "")
    if not digits.isdecimal() or not 0 < len(digits) < 7 or not int(digits):
        raise UserError(f"--users {text!r}: expected how many ask at once, 1 or more")
    return int(digits)


def _positive(text: str, quantity: str, flag: str) -> float:
    from meshwise import units

    value = units.parse(text, quantity) if text else 0.0
    if text and not value:
        raise UserError(f"{flag} {text!r} must be above zero")
    return value


def answer(ask: "ServeAsk", vary: list[str], top: int, usual: int, out: Path | None, json: bool, csv: bool) -> None:
    """One plan, or a table of points."""
    if vary:
        if out is not None or ask.measured or top != usual:
            raise UserError("--out, --top and --measured are of one plan: plan the point you like without --vary")
        _sweep(ask, vary, json, csv)
        return
    from meshwise.catalogue.files import write
    from meshwise.export import commands
    from meshwise.plan.serve import choice as serve_plan
    from meshwise.plan.serve import explain as serve_explain
    from meshwise.plan.serve.search import search
    from meshwise.ui.views import tables

    q = ask.question()
    found = search(q)
    if not found.options or ((ask.ttft or ask.per_user) and not serve_plan.meets(q, found.options[0])):
        raise serve_plan.refuse(q, found)
    best = found.options[0]
    why = serve_explain.reasons(q, found, bool(ask.engine))
    why += serve_explain.measured(q, found, ask.measured) if ask.measured else []
    made = serve_plan.make(ask, q, found, top, commands(q, best.layout), why)
    if out is not None:
        write(out, tables.as_json(made.to_json()) + "\n")
    if json or csv:
        rows = (tables.flat(_row(choice)) for choice in made.choices)
        typer.echo(tables.as_json(made.to_json()) if json else tables.as_csv(rows))
        return
    show(made, command(ask, top if top != usual else 0))


def show(made: "ServePlan", again: str) -> None:
    """A plan on the terminal, and what to type."""
    from meshwise.ui.views import tables
    from meshwise.ui.views.serve import plan_view

    console = tables.console()
    console.print(plan_view(made))
    for engine, lines in made.commands.items():
        console.print(f"\n{engine}:", style="bold")
        for line in lines:
            console.print(f"  {line}", soft_wrap=True, highlight=False)
    console.print(f"\nagain: {again}", soft_wrap=True, highlight=False)


def explain(path: Path, json: bool) -> None:
    """What a plan.json says of why."""
    from meshwise.plan.serve import choice as serve_plan
    from meshwise.ui.views import tables

    made = serve_plan.read(path)
    if json:
        typer.echo(tables.as_json({"best": made.choices[0].name, "reasons": made.reasons}))
        return
    console = tables.console()
    for line in made.reasons:
        console.print(line, soft_wrap=True, highlight=False)


def _sweep(ask: "ServeAsk", vary: list[str], json: bool, csv: bool) -> None:
    from meshwise.plan import vary_serve_whatif
    from meshwise.plan.axes_serve_axes import AXES
    from meshwise.plan.vary import parse, variants
    from meshwise.ui.views import tables

    varied = parse(vary, AXES, ask)
    titles = [one.axis.name for one in varied]
    points = vary_serve_whatif.answers(variants(ask, varied, AXES), "gpus" in titles)
    vary_serve_whatif.check(points)
    if json or csv:
        rows = (tables.flat(_flat(point.row())) for point in points)
        typer.echo(tables.as_json(vary_serve_whatif.to_json(ask, vary, points)) if json else tables.as_csv(rows))
        return
    from meshwise.ui.views.serve import sweep_view

    users = any(point.ask and point.ask.users > 1 for point in points)
    console = tables.console()
    console.print(sweep_view(titles, points, vary_serve_whatif.lessons(titles, points), users))
    flags = [f"--vary {shlex.quote(text)}" for text in vary]
    console.print(" ".join(["again:", command(ask), *flags]), soft_wrap=True, highlight=False)


def _row(choice: object) -> dict[str, object]:
    from dataclasses import asdict, is_dataclass

    row: dict[str, object] = asdict(choice) if is_dataclass(choice) and not isinstance(choice, type) else {}
    return {name: value for name, value in row.items() if name != "devices"}


def _flat(row: dict[str, object]) -> dict[str, object]:
    from typing import cast

    inner = cast(dict[str, object] | None, row["choice"]) or {}
    return {key: value for key, value in row.items() if key != "choice"} | {k: v for k, v in inner.items() if k != "devices"}


def command(ask: "ServeAsk", top: int = 0) -> str:
    """The command that asks the same again."""
    from meshwise import units

    words = ["meshwise", "plan", ask.model, "--serve", "--on", ask.cluster]
    words += ["--context", str(ask.context)] if ask.context else []
    for flag, value, usual in (("--prompt", ask.prompt, 512), ("--output", ask.output, 128), ("--users", ask.users, 1)):
        words += [flag, str(value)] if value != usual else []
    words += ["--kv", ask.kv] if ask.kv != "f16" else []
    words += ["--engine", ask.engine] if ask.engine else []
    words += ["--ttft", units.exactly(ask.ttft, "seconds")] if ask.ttft else []
    words += ["--per-user", f"{ask.per_user:g}"] if ask.per_user else []
    words += [word for value in ask.fix for word in ("--fix", value)]
    words += ["--link", ask.link] if ask.link else []
    words += ["--measured", f"{ask.measured:g}"] if ask.measured else []
    return shlex.join([*words, *(["--top", str(top)] if top else [])])
