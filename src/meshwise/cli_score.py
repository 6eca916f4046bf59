"""The verbs `validate` and `calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshwise.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

Tables = Annotated[
    list[str], typer.Argument(metavar="FILE", help="A CSV file of measured runs, or a built-in table such as bloom_prequel.")
]


def validate(
    tables: Tables,
    calibration: Annotated[
        str, typer.Option(help="A calibration by name, instead of the one chosen by chip and framework.")
    ] = "",
    fit: Annotated[bool, typer.Option("--fit", help="Fit to each table, and score every row by a fit that left it out.")] = False,
    leave_out: Annotated[
        Literal["row", "group"] | None,
        typer.Option(
            help="With --fit: single rows (default), or groups of one day and shape, or of one model (served: card) and number of devices."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw predicted against measured: a .svg file, or a folder for several.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: one line per row of the table.")] = False,
) -> None:
    """Predict every run of a table of measurements, and score the predictions beside two baselines."""
    from meshwise import render
    from meshwise.measure import find_table
    from meshwise.measure_serve import serves
    from meshwise.validate import Validation
    from meshwise.validate import validate as validated
    from meshwise.validate_serve import validate_serve

    left = leave_out or ("row" if fit else None)
    if left and calibration:
        raise UserError("--fit makes its own calibration; leave out --calibration, or --fit and --leave-out")
    found = [(validate_serve if serves(find_table(name)) else validated)(name, calibration, left) for name in tables]
    if svg is not None:
        from meshwise import files, picture

        for path, one in zip(_pictures(svg, [one.table for one in found]), found, strict=True):
            if not isinstance(one, Validation):
                raise UserError(f"--svg draws tables of training runs; {one.table} is of served models (--csv has its rows)")
            files.write(path, picture.scatter(one))
    if json or csv:
        scores = [one.score for one in found]
        lines = (line for one in found for line in one.rows())
        typer.echo(render.as_json(scores[0] if len(scores) == 1 else scores) if json else render.as_csv(lines))
        return
    from meshwise.render_score import score_view, serve_view

    console = render.console()
    for one in found:
        view = score_view if isinstance(one, Validation) else serve_view
        console.print(view(one.score), soft_wrap=True)


def _pictures(given: Path, tables: list[str]) -> list[Path]:
    """One file per table: the file given, or files of a folder that is made if need be."""
    if given.suffix == ".svg":
        if len(tables) > 1:
            raise UserError(f"--svg {given}: one file for {len(tables)} tables; give a folder")
        return [given]
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {given}: {error.strerror}") from None
    return [given / f"{table}.svg" for table in tables]


def calibrate(
    tables: Tables,
    out: Annotated[Path | None, typer.Option(help="Write the calibration to this .toml file.")] = None,
    chips: Annotated[str, typer.Option(help="Chips it serves, separated by commas (default: that of the rows).")] = "",
    frameworks: Annotated[
        str, typer.Option(help="Frameworks (of served models: engines) it serves (default: those of the rows).")
    ] = "",
    architectures: Annotated[str, typer.Option(help="Architectures whose other chips and frameworks may use it too.")] = "",
) -> None:
    """Fit the few numbers of the cost model that no datasheet states to measured runs."""
    from datetime import UTC, datetime

    from meshwise import files, render

    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: a calibration is a .toml file")
    text, view = _made(tables, _listed(chips), _listed(frameworks), _listed(architectures), datetime.now(UTC).date().isoformat())
    if out is None:
        typer.echo(text, nl=False)
        return
    files.write(out, text)
    console = render.console()
    console.print(view, soft_wrap=True)
    console.print(f"written to {out}", soft_wrap=True, highlight=False)


def _made(
    tables: list[str], chips: list[str], programs: list[str], architectures: list[str], date: str
) -> tuple[str, "RenderableType"]:
    """The file and what is said of it: of training runs, or of served models."""
    from meshwise import framework, hardware, runtime
    from meshwise.measure import find_table
    from meshwise.measure_serve import serves
    from meshwise.render_score import calibration_view, serve_calibration_view

    keys = [hardware.find_chip(name).key for name in chips]
    kinds = {serves(find_table(name)) for name in tables}
    if len(kinds) > 1:
        raise UserError("some tables are of training runs and some of served models; calibrate them apart")
    if True in kinds:
        from meshwise.validate_serve import calibrated_serve, serve_toml

        engines = [runtime.find_runtime(name).key for name in programs]
        served = calibrated_serve(tables, chips=keys, engines=engines, architectures=architectures, date=date)
        return serve_toml(served), serve_calibration_view(served)
    from meshwise.calibrated import calibrated, toml

    frameworks = [framework.find_framework(name).key for name in programs]
    made = calibrated(tables, chips=keys, frameworks=frameworks, architectures=architectures, date=date)
    return toml(made), calibration_view(made)


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
