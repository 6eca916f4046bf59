"""Tables of measurements: find one by name or path, and read its rows."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from meshwise.catalogue import files
from meshwise.catalogue.chips import HERE
from meshwise.errors import UserError, nearest, quoted


@dataclass(frozen=True)
class Skipped:
    row_id: str
    reason: str


def find_table(text: str) -> Path:
    """A CSV or JSONL file by its path, or a built-in table (or one of the user's own folder) by its name."""
    path, known = Path(text), files.files("measurements", ".csv")
    if text in known:
        return known[text]
    if path.suffix in (".csv", ".jsonl") or path.is_file():
        return path
    if text == HERE:
        raise UserError("this machine was not measured yet: run 'meshwise probe' first")
    raise UserError(
        f"unknown table {quoted(text)}{nearest(text, known)}; give a .csv or .jsonl file or one of {', '.join(known)}"
    )


def read_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV file, and its lines with their numbers."""
    reader = csv.reader(io.StringIO(files.text_of(path)), strict=True)
    try:
        header = [name.strip() for name in next(reader, list[str]())]
        return header, [(reader.line_num, line) for line in reader if line]
    except csv.Error as error:
        raise UserError(f"{path.name}, line {reader.line_num}: not valid CSV: {error}") from None
