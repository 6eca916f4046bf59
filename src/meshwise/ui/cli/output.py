"""Results on standard output: a view for people, JSON or CSV for programs."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwise.errors import UserError

PAGE = ("starlette", "uvicorn", "jinja2", "python_multipart")  # packages of the extra `ui`


def show(
    result: Any, *, json: bool, csv: bool = False, before: Iterable[str] = (), after: Iterable[str] = (), **options: Any
) -> None:
    """Print a result as JSON, as CSV, or as its view with `options`; below it, without line breaks, the command that reproduces it, if
    it has one, with lines before and after."""
    if json and csv:
        raise UserError("--json and --csv are two formats: give one of them")
    if json or csv:
        data(result.to_json(), result.rows() if csv else (), csv=csv)
        return
    draw(result, **options)
    reproduce = [f"reproduce: {command}"] if (command := getattr(result, "command", "")) else []
    for line in (*before, *reproduce, *after):
        emit(line)


def belief(plan: Any, asked: bool) -> list[str]:
    """Return what the figures of a plan rest on, if that was asked for."""
    return ["why believe it:", *(f"  {line}" for line in plan.believe())] if asked else []


def draw(result: Any, *, stderr: bool = False, **options: Any) -> None:
    """Print the view of a result at the console's width."""
    from meshwise.ui import views
    from meshwise.ui.views.tables import console

    out = console(stderr=stderr)
    view = views.of(result, out.width, **options)
    emit(view) if isinstance(view, str) else out.print(view)


def data(value: Any, rows: Iterable[Mapping[str, object]] = (), *, csv: bool = False) -> None:
    """Print `value` as JSON, or with `csv` the rows as CSV."""
    from meshwise.ui.views import tables

    emit(tables.as_csv(rows) if csv else tables.as_json(value))


def emit(text: str) -> None:
    """Print text as it is: no wrapping, no colours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # typer turns a closed pipe (head, less) into a quiet exit here; at Python's own exit it would be an error


def save_to(path: Path | None, save: Callable[[Path], object]) -> None:
    """Call `save` with the path, if one was given."""
    if path is not None:
        save(path)


def save_report(path: Path | None, make: Callable[[Any], str]) -> None:
    """Write the report that `make` returns, if a path was given; `make` takes the module of reports."""
    if path is None:
        return
    require_page()
    from meshwise import api
    from meshwise.ui.web import report

    api.write(path, make(report))


def require_page() -> None:
    require(PAGE, "pages and reports need", "ui")


def require(packages: Iterable[str], what: str, extra: str) -> None:
    """Refuse what needs a package of an extra that is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UserError(f"{what} {', '.join(missing)}: pip install 'meshwise[{extra}]'")
