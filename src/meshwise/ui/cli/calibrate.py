"""The verbs `validate` and `calibrate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from meshwise.errors import DoesNotFit, UserError

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
    from meshwise.calibrate.serve.cases import serves
    from meshwise.calibrate.serve.validate import validate_serve
    from meshwise.calibrate.tables import find_table
    from meshwise.calibrate.train.validate import Validation
    from meshwise.calibrate.train.validate import validate as validated
    from meshwise.ui.views import tables as render

    left = leave_out or ("row" if fit else None)
    if left and calibration:
        raise UserError("--fit makes its own calibration; leave out --calibration, or --fit and --leave-out")
    found = [(validate_serve if serves(find_table(name)) else validated)(name, calibration, left) for name in tables]
    if svg is not None:
        from meshwise.catalogue import files
        from meshwise.ui.views import scatter

        for path, one in zip(_pictures(svg, [one.table for one in found]), found, strict=True):
            if not isinstance(one, Validation):
                raise UserError(f"--svg draws tables of training runs; {one.table} is of served models (--csv has its rows)")
            files.write(path, scatter.scatter(one))
    if json or csv:
        scores = [one.score for one in found]
        lines = (line for one in found for line in one.rows())
        typer.echo(render.as_json(scores[0] if len(scores) == 1 else scores) if json else render.as_csv(lines))
        return
    from meshwise.ui.views.scores import score_view, serve_view

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
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Any mix of run/measurement.jsonl, CSV files, built-in tables such as bloom_prequel, and a probe: its .jsonl, or 'here'.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the calibration to this .toml file.")] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Put it into your own folder, where plan, run and validate find it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write it even where rows left out are predicted worse than before.")
    ] = False,
    chips: Annotated[str, typer.Option(help="Chips it serves, separated by commas (default: that of the rows).")] = "",
    frameworks: Annotated[
        str, typer.Option(help="Frameworks (of served models: engines) it serves (default: those of the rows).")
    ] = "",
    architectures: Annotated[str, typer.Option(help="Architectures whose other chips and frameworks may use it too.")] = "",
    leave_out: Annotated[
        Literal["row", "group"] | None,
        typer.Option(help="What is left out to score a fit (default: groups; rows beside a probe)."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON: errors before and after, and what is left open.")] = False,
) -> None:
    """Fit the few numbers of the cost model that no datasheet states, and say whether plans get better by it."""
    from datetime import UTC, datetime

    from rich.console import Console

    from meshwise.catalogue import files
    from meshwise.ui.views import tables as render

    if out is not None and out.suffix != ".toml":
        raise UserError(f"--out {out}: a calibration is a .toml file")
    date = datetime.now(UTC).date().isoformat()
    made = _made(tables, _listed(chips), _listed(frameworks), _listed(architectures), date, leave_out)
    kept = out is not None or install
    if json:
        typer.echo(render.as_json(made.about))
    else:
        (render.console() if kept else Console(stderr=True)).print(made.view, soft_wrap=True)
    if not kept:
        if not json:
            typer.echo(made.text, nl=False)
        return
    if made.worse and not force:
        raise DoesNotFit(f"not written: {made.worse}; more rows may help, or --force writes it all the same")
    for path in ([out] if out else []) + ([_own(made)] if install else []):
        files.write(path, made.text)
        if not json:
            typer.echo(f"written to {path}{' although ' + made.worse if made.worse else ''}")


@dataclass(frozen=True)
class Made:
    """A calibration of training runs or of served models, as its file, in words and as data."""

    text: str
    view: "RenderableType"
    worse: str
    about: dict[str, object]
    kind: Literal["calibration", "serving"]
    name: str


def _own(made: Made) -> Path:
    from meshwise.catalogue import files as catalogue

    folder = catalogue.user_folder() / made.kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; MESHWISE_HOME names another") from None
    return folder / f"{made.name}.toml"


def _made(
    tables: list[str],
    chips: list[str],
    programs: list[str],
    architectures: list[str],
    date: str,
    leave_out: Literal["row", "group"] | None,
) -> Made:
    """Of training runs, or of served models."""
    from meshwise.calibrate.serve.cases import serves
    from meshwise.calibrate.tables import find_table
    from meshwise.catalogue import chips as hardware
    from meshwise.catalogue import engines as runtime
    from meshwise.catalogue import files as catalogue
    from meshwise.catalogue import frameworks as framework
    from meshwise.ui.views.scores import calibration_view, serve_calibration_view

    keys = [hardware.find_chip(name).key for name in chips]
    kept = catalogue.files("probes", ".jsonl")
    kinds = {serves(find_table(name)) for name in tables if name not in kept}
    if len(kinds) > 1:
        raise UserError("some tables are of training runs and some of served models; calibrate them apart")
    if True in kinds:
        from meshwise.calibrate.serve.validate import calibrated_serve, serve_toml

        engines = [runtime.find_runtime(name).key for name in programs]
        served = calibrated_serve(tables, chips=keys, engines=engines, architectures=architectures, date=date)
        s = served.serving
        about: dict[str, object] = {"before": served.before, "left_out": served.left_out, "in_sample": served.in_sample}
        name = "-".join((*s.chips[:1], *s.engines[:1]))
        return Made(serve_toml(served), serve_calibration_view(served), served.worse, about, "serving", name)
    from meshwise.calibrate.train.make import calibrated, toml

    found = [framework.find_framework(name).key for name in programs]
    made = calibrated(tables, chips=keys, frameworks=found, architectures=architectures, date=date, leave_out=leave_out)
    about = {
        "before": made.before,
        "left_out": made.left_out,
        "in_sample": made.in_sample,
        "widths": made.widths,
        "kept": made.kept,
    }
    name = "-".join((*made.calibration.chips[:1], *made.calibration.frameworks[:1]))
    return Made(toml(made), calibration_view(made), made.worse, about, "calibration", name)


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
