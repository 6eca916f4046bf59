"""The verbs `validate` and `calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from meshwise import api
from meshwise.errors import UserError
from meshwise.run.children import interrupt_on_stop
from meshwise.ui.cli import output
from meshwise.ui.cli.options import Csv, Json, completer, plain_verb

if TYPE_CHECKING:
    from meshwise.calibrate.rl.validate import RlValidation
    from meshwise.calibrate.serve.validate import ServeValidation
    from meshwise.calibrate.train.validate import TrainValidation

    Validation = TrainValidation | ServeValidation | RlValidation

app = typer.Typer()


@plain_verb(app, "validate")
def validate(
    tables: Annotated[list[str], Argument(metavar="TABLE...", autocompletion=completer("measurements"),
        help="CSV or JSONL files of measured runs, or built-in tables such as bloom_prequel.")],
    calibration: Annotated[str, Option(metavar="NAME", help="Calibration to use. [by chip and framework]")] = "",
    fit: Annotated[bool, Option("--fit", help="Fit to each table, and predict each row by a fit that left it out.")] = False,
    leave_out: Annotated[Literal["row", "group"] | None, Option(metavar="row|group",
        help="With --fit: leave out single rows, or groups (one day and shape, or one model and number of devices).")] = None,
    svg: Annotated[Path | None,
        Option(metavar="PATH", help="Draw predicted against measured: a .svg file, or a folder for several.")] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:  # fmt: skip
    """Two baselines are scored too: a constant rate and a rule of thumb."""
    validations: list[Validation] = []
    stopped = False
    try:
        with interrupt_on_stop():
            for name in tables:
                validations.append(api.validate(name, calibration=calibration, fit=fit, leave_out=leave_out))
                if not json and not csv and svg is None:
                    output.draw(validations[-1])
    except KeyboardInterrupt:  # what was scored until then is kept
        stopped = True
    if svg is not None:
        _draw(svg, validations)
        for validation in () if json or csv else validations:
            output.draw(validation)
    if (json or csv) and validations:
        scores = [validation.score for validation in validations]
        rows = [row for validation in validations for row in validation.rows()] if csv else []
        output.data(scores[0] if len(tables) == 1 else scores, rows, csv=csv)
    if stopped:
        raise KeyboardInterrupt


def _draw(svg: Path, validations: "list[Validation]") -> None:
    """Draw predicted against measured, one file per table."""
    from meshwise.calibrate.train.validate import TrainValidation
    from meshwise.ui.views.svg.scatter import scatter

    paths = _svg_paths(svg, [validation.table for validation in validations])
    for path, validation in zip(paths, validations, strict=True):
        if not isinstance(validation, TrainValidation):
            raise UserError(f"--svg draws tables of training runs; {validation.table} is of served models (--csv has its rows)")
        api.write(path, scatter(validation))


def _svg_paths(given: Path, tables: list[str]) -> list[Path]:
    """Return one path per table: the given file, or files in the given folder, which is created if needed."""
    if given.suffix == ".svg":
        if len(tables) > 1:
            raise UserError(f"--svg {given}: one file for {len(tables)} tables; give a folder")
        return [given]
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {given}: {error.strerror}") from None
    return [given / f"{table}.svg" for table in tables]


@plain_verb(app, "calibrate")
def calibrate(
    tables: Annotated[list[str], Argument(metavar="TABLE...", autocompletion=completer("measurements"),
        help="Any mix of run/measurement.jsonl, CSV files, built-in tables and a probe ('here' or .jsonl).")],
    out: Annotated[Path | None, Option(metavar="FILE", help="Write the calibration to this .toml file.")] = None,
    install: Annotated[bool,
        Option("--install", help="Write it to your own folder, where plan, run and validate find it.")] = False,
    force: Annotated[bool, Option("--force", help="Write it even if rows left out are predicted worse than before.")] = False,
    chips: Annotated[str, Option(metavar="CHIP,...", help="Chips it is for. [those of the rows]")] = "",
    frameworks: Annotated[str, Option(metavar="NAME,...", help="Frameworks, or engines, it is for. [those of the rows]")] = "",
    architectures: Annotated[str, Option(metavar="NAME,...", help="Architectures whose other chips may use it too.")] = "",
    leave_out: Annotated[Literal["row", "group"] | None, Option(metavar="row|group",
        help="Rows to leave out to score a fit. [group; row with a probe]")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Prints the errors before and after the fit, on rows left out of it, and the coefficients that the rows do not determine."""
    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: a calibration is a .toml file")
    result = api.calibrate(
        *tables, chips=_listed(chips), frameworks=_listed(frameworks), architectures=_listed(architectures), leave_out=leave_out
    )
    kept = out is not None or install
    if json:
        output.data(result.to_json())
    else:
        output.draw(result, stderr=not kept)
        if not kept:
            output.emit(result.text.rstrip("\n"))
    replaced = result.replaces if install else ""
    written = ([result.save(out, force=force)] if out else []) + ([result.install(force=force)] if install else [])
    for path in () if json else written:
        output.emit(f"written to {path}{' although ' + result.worse if result.worse else ''}")
    if replaced and not json:
        output.emit(f"it replaces {replaced}, which is kept as {result.target.name}.old")


def _listed(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]
