"""Results on standard output: a view for people, JSON or CSV for programs."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType


class Tabular(Protocol):
    """A result that is a table too."""

    def to_json(self) -> Any: ...

    def rows(self) -> list[dict[str, Any]]: ...


def show(found: Tabular, view: "Callable[[int], RenderableType]", *, json: bool, csv: bool, commands: Iterable[str] = ()) -> None:
    """Print a result: as JSON, as CSV, or `view` of it at the console's width and the lines of `commands` unbroken."""
    if json or csv:
        data(found.to_json(), found.rows() if csv else (), csv=csv)
        return
    from meshwise.ui.views.tables import console

    out = console()
    out.print(view(out.width))
    for line in commands:
        out.print(line, soft_wrap=True)


def data(value: Any, rows: Iterable[Mapping[str, object]] = (), *, csv: bool = False) -> None:
    """Print JSON, or CSV."""
    from meshwise.ui.views import tables

    emit(tables.as_csv(rows) if csv else tables.as_json(value))


def emit(text: str) -> None:
    """Print text as it is: no wrapping, no colours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # here typer turns a closed pipe (head, less) into a quiet exit; at Python's own exit it is an error


def written(path: Path | None, save: Callable[[Path], object]) -> None:
    """Write a file where one was asked for."""
    if path is not None:
        save(path)
