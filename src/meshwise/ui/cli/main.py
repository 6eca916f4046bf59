"""The verbs. They read their arguments, call the library and hand the result to render; they compute nothing."""

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from meshwise.errors import UserError, nearest, quoted
from meshwise.ui.cli import audit, bench, calibrate, generate, make_gguf, plan, probe, run
from meshwise.workers.trainer.ranks.output import flush, say

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    name="meshwise",
    help="Find the fastest way to train or serve a model on the accelerators you have.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        emit(version_of("meshwise"))
    elif context.invoked_subcommand is None:
        emit(context.get_help())


@app.command()
def count(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Preset, HF id, config.json or its folder, or .gguf.")],
    seq: Annotated[str, typer.Option(help="Sequence length, such as 4k (default: 4096, or the context if shorter)")] = "",
    tokens: Annotated[str, typer.Option(help="Tokens to train on, such as 15T.")] = "15T",
    on: Annotated[
        str, typer.Option(help="Cluster to train on: years, days, bytes per device and rooflines, before any search.")
    ] = "",
    batch: Annotated[str, typer.Option(help="With --on: sequences (1024) or tokens (4M, in units of 1024; or 4e6).")] = "",
    mfu: Annotated[str, typer.Option(help="With --on: the share of the peak that training reaches (default: 40%).")] = "",
    checkpoints: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --on: activations kept per layer and token (default: 1).")
    ] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Count parameters, training FLOPs, caches and bytes of one or several models."""
    from meshwise import units
    from meshwise.models import find
    from meshwise.models.count import count as count_model
    from meshwise.models.count import default_seq, training_tokens
    from meshwise.ui.cli import count as cli_budget
    from meshwise.ui.views import tables

    length, total = units.whole_length(seq) if seq else None, training_tokens(tokens)
    found = [find.find_model(name) for name in models]
    tallies = [count_model(model, seq=length or default_seq(model), tokens=total) for model in found]
    if on:
        cli_budget.answer(found, tallies, cli_budget.Envelope(on, batch, mfu or "40%", checkpoints or 1, total), json, csv)
        return
    for option, given in (("--batch", batch), ("--mfu", mfu), ("--checkpoints", checkpoints)):
        if given:
            raise UserError(f"{option} says how a cluster is used; name it with --on, such as --on tpu-v5p:16x20x28")
    if json or csv:
        emit(tables.as_json(tallies) if json else tables.tallies_csv(tallies))
        return
    console = tables.console()
    console.print(tables.count_table(tallies))
    for table in tallies:
        for note in table["notes"]:
            console.print(f"{table['model']}: {note}", soft_wrap=True)


@app.command()
def show(
    catalogue: Annotated[str, typer.Argument(metavar="chips|clusters|models", help="Which catalogue.")],
    name: Annotated[str, typer.Argument(help="One entry, or any cluster such as 48x8xa100-80gb.")] = "",
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List the catalogues of chips, clusters and models with their sources, or show one entry."""
    from meshwise.ui.views import listing, tables

    every = {"chips": listing.chip_rows, "clusters": listing.cluster_rows, "models": listing.model_rows}
    if catalogue not in every:
        raise UserError(f"there is no catalogue {quoted(catalogue)}{nearest(catalogue, every)} (chips, clusters, models)")
    if name:
        row, table = entry(catalogue, name)
        rows, whole = [row], row
    else:
        rows = whole = every[catalogue]()
        table = tables.catalogue_table(catalogue, rows)
    if json or csv:
        emit(tables.as_json(whole) if json else tables.as_csv(map(tables.flat, rows)))
    else:
        tables.console().print(table)


def entry(catalogue: str, name: str) -> "tuple[dict[str, object], Table]":
    """One entry of a catalogue, as data and as a table."""
    from meshwise.catalogue import chips, clusters
    from meshwise.models import find
    from meshwise.ui.views import listing, tables

    if catalogue == "chips":
        chip = chips.find_chip(name)
        return listing.chip_row(chip), tables.chip_facts(chip)
    if catalogue == "clusters":
        cluster = clusters.find_cluster(name)
        return listing.cluster_row(name, cluster), tables.cluster_facts(name, cluster)
    model = find.find_model(name)
    return listing.model_row(model), tables.model_facts(model)


def emit(text: str) -> None:
    """Machine-readable output: no wrapping, no colours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # here typer turns a closed pipe (head, less) into a quiet exit; at Python's own exit it is an error


app.command()(plan.plan)
app.command()(plan.explain)
app.command()(run.run)
app.command()(generate.generate)
app.command()(bench.bench)
app.command("make-gguf")(make_gguf.make_gguf)
app.command()(probe.probe)
app.command()(calibrate.validate)
app.command()(calibrate.calibrate)
app.command()(audit.audit)


def main() -> None:
    """Run, and turn what a user can mend into one line on standard error."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UserError as error:
        fail(str(error), error.exit_code)
    except typer.TyperException as error:  # a misspelt verb or flag, a missing argument
        fail(" ".join(error.format_message().split()), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        fail("stopped", 130)
    finally:
        flush()


def fail(message: str, code: int) -> NoReturn:
    say(f"meshwise: {message}", sys.stderr)
    sys.exit(code)
