"""The verbs `count`, `show` and `about`."""

from typing import Annotated

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Csv, Json, among, completer, plain_verb

app = typer.Typer()
CLUSTER = "Training on a cluster, without a search"


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names from the catalogue that was typed before."""
    catalogue = ctx.params.get("catalogue") or ""
    return completer(catalogue)(incomplete) if catalogue in api.CATALOGUES else []


@plain_verb(app, "count")
def count(
    models: Annotated[list[str], Argument(metavar="MODEL...", help="Preset, HF id, config.json or its folder, or .gguf.",
        autocompletion=completer("models"))],
    seq: Annotated[str, Option(metavar="TOKENS", help="Sequence length. [4k, or the context if shorter]")] = "",
    tokens: Annotated[str, Option(metavar="COUNT", help="Tokens to train on. [15T]", show_default=False)] = "15T",
    on: Annotated[str, Option(metavar="CLUSTER", help="Cluster: adds chip-years, days, bytes per device and rooflines.",
        rich_help_panel=CLUSTER)] = "",
    batch: Annotated[str, Option(metavar="BATCH", help="Sequences (1024) or tokens (4M, 4e6).", rich_help_panel=CLUSTER)] = "",
    mfu: Annotated[str, Option(metavar="SHARE", help="Assumed MFU. [40%]", rich_help_panel=CLUSTER)] = "",
    checkpoints: Annotated[int | None, Option(metavar="N", min=1, max=64, help="Activations kept per layer and token. [1]",
        rich_help_panel=CLUSTER)] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Counts are exact: they equal the parameters that transformers allocates."""
    for option, given in (("--batch", batch), ("--mfu", mfu), ("--checkpoints", checkpoints)):
        if given and not on:
            raise UserError(f"{option} needs --on: a cluster, such as --on tpu-v5p:16x20x28")
    counts = [
        api.count(name, seq=seq, tokens=tokens, on=on, batch=batch, mfu=mfu or "40%", checkpoints=checkpoints or 1)
        for name in models
    ]
    if json or csv:
        output.data([tally.to_json() for tally in counts], [tally.row() for tally in counts], csv=csv)
        return
    output.draw(counts)


@plain_verb(app, "show")
def show(
    catalogue: Annotated[str, Argument(metavar="chips|clusters|models|frameworks|calibrations|trace",
        help="Catalogue to list, or 'trace'.",
        autocompletion=among((*api.CATALOGUES, "trace")))],
    name: Annotated[str, Argument(metavar="[NAME]", help="One entry, part of a name, any cluster, or the file of a trace.",
        autocompletion=_names)] = "",
    read: Annotated[str, Option(metavar="PATTERN", help="Of a trace that is an access log: nginx, or a regular expression.")] = "",
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Part of a name lists every entry that contains it; an exact name shows all facts. Of a trace: rates, bursts, lengths and reuse."""
    if catalogue == "trace":
        if not name:
            raise UserError("missing FILE: a trace of timed requests, such as 'meshwise show trace traffic.csv'")
        output.show(api.trace(name, read=read), json=json, csv=csv)
        return
    if read:
        raise UserError("--read belongs to 'show trace'")
    rows = api.show(catalogue, name)
    entry = api.look_up(catalogue, name) if name else None
    if json or csv:
        output.data(rows[0] if entry is not None else rows, map(api.flat, rows), csv=csv)
    elif entry is not None:
        output.draw(entry, name=name)
    else:
        from meshwise.ui.views.listing import catalogue_view
        from meshwise.ui.views.tables import console

        out = console()
        out.print(catalogue_view(catalogue, rows, out.width))


@plain_verb(app, "about")
def about(json: Json = False) -> None:
    """Nothing is sent anywhere: it is what to paste into a report of a fault."""
    output.show(api.about(), json=json)
