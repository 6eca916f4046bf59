"""Tables of measurements: find one by name or path, and read its rows, or those of JSON lines, as runs."""

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from meshwise.catalogue import files
from meshwise.catalogue.chips import PROBED_CHIP
from meshwise.errors import UserError, nearest, quoted
from meshwise.runs.fields import BY_COLUMN, BY_NAME, Column, find_column
from meshwise.runs.numbers import UNITS, Amount, amount, decimal_mark_of, is_empty, parse_range
from meshwise.runs.run import Run, Stated, Value
from meshwise.units import GIB, MIB

MAX_LINE_BYTES = 1 << 20
MAX_DIGITS = 300
MAX_TEXT_CHARS = 2_000  # characters kept from a cell of words
MAX_TAG_CHARS = 80
MAX_CELLS_KEPT, MAX_KEPT_CHARS = 1 << 14, 40
RATES = ("tokens_per_second_per_device", "tokens_per_second", "samples_per_second", "tflops", "mfu", "hfu")
TRAINED = ("seconds", *RATES, "memory")
"""Measurements of a training run; the cells of their columns must be numbers above zero, or empty."""
SERVE_FIGURES = ("decode", "prefill", "each", "ttft", "tpot")
"""Measurements of a served model: tokens/s of all requests, of prompts and of each request; seconds to the first token and per token."""
SIZES = ("device_weights", "device_cache", "device_compute")  # memory of one device by kind
SERVING_FIELDS = frozenset({*SERVE_FIGURES, *SIZES})
REQUIRED_FIELDS = ("devices", "batch", "seq", "chip")
"""Fields without whose columns no row of training runs can be evaluated; any of their cells may be empty where another states the same."""
UNIT_OF_MEMORY = {"gib": GIB, "gb": 1e9, "mib": MIB, "mb": 1e6}
LIMITLESS = ("max", "all", "inf")  # the beginning of a concurrency where as many requests run as the engine admits
OUTCOMES = {"oom": "oom", "out of memory": "oom", **dict.fromkeys(("fail", "failed", "crash", "error", "hang"), "fail")}
VTRAIN = "# GPUs"
"""The first column of vTrain's file (VIA-Research/vTrain, data/ground_truth_single.csv)."""
VTRAIN_NODE_DEVICES = 8
VTRAIN_FACTS = {
    "chip": "A100-80GB",
    "devices_per_node": VTRAIN_NODE_DEVICES,
    "framework": "Megatron-DeepSpeed",
    "vocab": 51200,
    "recompute": "none",
}
"""Facts missing from vTrain's file: the machine of its paper, and GPT-2's padded vocabulary. Runs on one node recompute nothing; of
those on several nodes nothing is known."""
Case = TypeVar("Case")


@dataclass(frozen=True)
class Skipped:
    """A row that is not used, and why."""

    row_id: str
    reason: str


def find_table(text: str) -> Path:
    """Find a CSV or JSONL file by its path, or a table by its name: built in, or in the user's folder."""
    path, known = Path(text), files.files("measurements", ".csv")
    if text in known:
        return known[text]
    if path.suffix in (".csv", ".jsonl") or path.is_file() or (path.is_dir() and any(path.glob("*.csv"))):
        return path
    if text == PROBED_CHIP:
        raise UserError("this machine was not measured yet: run 'meshwise probe' first")
    raise UserError(
        f"unknown table {quoted(text)}{nearest(text, known)}; give a .csv or .jsonl file or one of {', '.join(known)}"
    )


class Header:
    """The columns of a table, and how a row under them becomes a run."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.columns = [_column(name, self.names) for name in self.names]
        # of two columns of one field, the one with its own name comes first: d_model before d_model_derived
        order = sorted(
            range(len(self.names)), key=lambda i: (column := self.columns[i]) is None or self.names[i] != column.field.title
        )
        self.order = [(i, self.names[i].strip(), self.columns[i]) for i in order]
        facts = VTRAIN_FACTS if VTRAIN in self.names else {}
        self.facts = [Stated(name, value, "default", note="of vTrain's paper") for name, value in facts.items()]
        self.fields = {column.field.name for column in self.columns if column} | set(facts)
        self.measured = [(i, column) for i, column in enumerate(self.columns) if column and column.field.name in TRAINED]
        self.read: dict[tuple[int, str, str], Stated | None] = {}
        """Cells that were read: rows of a table repeat most of theirs."""

    def number_cells(self, cells: Sequence[str]) -> list[str]:
        """Return the cells of a row that hold numbers."""
        return [cell for cell, column in zip(cells, self.columns, strict=False) if column and column.field.quantity]

    def run(self, cells: Sequence[str], where: str, decimal: str = ".") -> Run:
        """Return the run of a row. A number that cannot be read is unknown, with the reason."""
        values: dict[str, Stated] = {one.fact: one for one in self.facts}
        tags: list[tuple[str, str]] = []
        for i, name, column in self.order:
            text = cells[i].strip() if i < len(cells) else ""
            if not text or (column and column.field.name in values and values[column.field.name].how != "default"):
                continue
            if column is None:
                tags += [(name, text)] if len(text) < MAX_TAG_CHARS else []
                continue
            stated = self._cell(i, name, column, text, decimal)
            if stated is not None:
                values[stated.fact] = stated
        devices = values["devices"].value if self.facts and "devices" in values else 0
        if isinstance(devices, float | int) and devices > VTRAIN_NODE_DEVICES:
            values.pop("recompute", None)
        unit = str(values["memory_unit"].value).lower() if "memory_unit" in values else ""
        memory = values.get("memory")
        if unit and memory is not None and isinstance(memory.value, float):
            raw = memory.value / UNIT_OF_MEMORY.get(self._unit_of("memory"), 1e9)
            values["memory"] = memory._replace(value=raw * UNIT_OF_MEMORY.get(unit, 1e9))
        row_id = values["row_id"].value if "row_id" in values else ""
        return Run(values, str(row_id or where), tags=tuple(tags))

    def _cell(self, i: int, name: str, column: Column, text: str, decimal: str) -> Stated | None:
        if len(text) > MAX_KEPT_CHARS:
            return _stated(column, name, text, decimal)
        key = (i, text, decimal)
        if key not in self.read:
            if len(self.read) >= MAX_CELLS_KEPT:
                self.read.clear()
            self.read[key] = _stated(column, name, text, decimal)
        return self.read[key]

    def _unit_of(self, field: str) -> str:
        return next(column.unit for _, _, column in self.order if column and column.field.name == field)


def run_of(row: Mapping[str, object], where: str = "") -> Run:
    """Return the run of one row, texts or numbers by column."""
    return Header(list(row)).run(["" if value is None else str(value) for value in row.values()], where)


def _column(name: str, header: Sequence[str]) -> Column | None:
    """Return the field of a column: of meshwise's own tables, or by the names that people give it."""
    if name == "device" and any(title.endswith("_mib") for title in header):
        return Column(BY_NAME["sized_device"], "")
    column = find_column(name)
    if column and column.field.name in ("mfu", "hfu") and any("_" in title and title in BY_COLUMN for title in header):
        return Column(column.field, "%")  # meshwise's own tables have them as printed, in percent
    return column


def _stated(column: Column, name: str, text: str, decimal: str) -> Stated | None:
    """Return what a cell says; None for a placeholder."""
    field = column.field
    if not field.quantity:
        return Stated(field.name, text[:MAX_TEXT_CHARS], key=name)
    if field.name == "users" and text.lower().startswith(LIMITLESS):
        return Stated(field.name, text[:MAX_TEXT_CHARS], key=name)
    outcome = OUTCOMES.get(text.lower())
    if outcome:
        return Stated("outcome", outcome, key=name)
    endless = text.lower() in ("inf", "-inf", "infinity")
    if is_empty(text) and not endless:
        return None
    number = Amount(-1.0) if endless else read_cell(column, text, decimal)
    if number is None or not math.isfinite(number.value):
        return Stated(field.name, None, "unknown", key=name, note=f"{name} is {quoted(text)}, not a number")
    if number.value < 0 and field.name != "first_loss":
        why = f"{name} is {quoted(text)}; expected a number of zero or more"
        return Stated(field.name, None, "unknown", key=name, note=why)
    return Stated(field.name, number.value, key=name, rough=number.rough)


def read_cell(column: Column, text: str, decimal: str) -> Amount | None:
    """Parse the number of a cell, or the middle of a range; None if a table uses both decimal marks ('?') and the cell fits both."""
    quantity, unit = column.field.quantity, column.unit
    if decimal == "?" and not decimal_mark_of(text) and re.search(r"\d[.,]\d{3}(?!\d)", text):
        return None
    ends = parse_range(text)
    if ends:
        middle = amount(f"{(ends.low + ends.high) / 2!r} {ends.rest}", quantity, unit)
        return middle._replace(rough=True) if middle else None
    return amount(text, quantity, unit, "" if decimal == "?" else decimal)


def row(run: Run) -> dict[str, Value]:
    """Return a run under the columns of a table of measurements, in their units; fields that tables do not have are left out."""
    written: dict[str, Value] = {}
    for one in run:
        column = find_column(BY_NAME[one.fact].title) if one.fact in BY_NAME else None
        if column is None or column.field.name != one.fact or one.value is None:
            continue
        factor = UNITS[column.field.quantity].get(column.unit, 1.0) if column.field.quantity else 1.0
        number = isinstance(one.value, int | float) and not isinstance(one.value, bool) and factor != 1.0
        written[column.field.title] = (
            run.number(one.fact) / factor if number else run.text(one.fact) if isinstance(one.value, bool) else one.value
        )
    return written | ({BY_NAME["memory_unit"].title: "GiB"} if "memory" in run else {})


def decimal_mark(cells: Sequence[str]) -> str:
    """Return the decimal mark used by the numbers of a table; '?' if they use both."""
    shown = {mark for cell in cells if (mark := decimal_mark_of(cell))}
    return "?" if len(shown) > 1 else next(iter(shown), "")


class Text:
    """The lines of a text file, read as they are asked for, so that a table may be larger than the memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # a pipe can be read once
        self.held = None if path.is_file() else files.bytes_of(path)

    def __iter__(self) -> Iterator[str]:
        opened = files.open_file(self.path) if self.held is None else io.BytesIO(self.held)
        with io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
            for number in itertools.count(1):
                try:
                    line = text.readline(MAX_LINE_BYTES + 1)
                except UnicodeDecodeError:
                    raise UserError(f"{self.path}: not a text file (UTF-8)") from None
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{self.path.name}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB, so it is no table")
                if not line:
                    return
                yield line


class Lines:
    """The lines of a CSV file below its header: the fields of each, with its line number; false if there are none."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, Text(path)

    def _all(self) -> Iterator[tuple[int, list[str]]]:
        """Yield every line, the header first."""
        reader = csv.reader(self.text, strict=True)
        try:
            for line in reader:
                yield reader.line_num, line
        except csv.Error as error:
            raise UserError(f"{self.path.name}, line {reader.line_num}: not valid CSV: {error}") from None

    def header(self) -> list[str]:
        return [name.strip() for name in next(self._all(), (0, list[str]()))[1]]

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        return ((number, line) for number, line in itertools.islice(self._all(), 1, None) if line)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


class Table:
    """The runs of a CSV or JSONL file, read as often as they are asked for and never held as text; damage is refused with its line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = Text(path) if path.suffix == ".jsonl" else Lines(path)
        self.header = Header(self.text.header() if isinstance(self.text, Lines) else [])

    @property
    def served(self) -> bool:
        """Whether it is of served models: only these have columns of their speeds; rows of JSON are of training runs."""
        return not SERVING_FIELDS.isdisjoint(self.header.fields)

    def check(self, needed: Sequence[str], measured: Sequence[str]) -> None:
        """Refuse a table without the columns of some fields."""
        if isinstance(self.text, Lines):
            _check_columns(self.path.name, self.header, needed, measured)

    def __iter__(self) -> Iterator[Run]:
        return self._rows(self.text) if isinstance(self.text, Lines) else self._objects(self.text)

    def _rows(self, lines: Lines) -> Iterator[Run]:
        if not lines:
            raise UserError(f"{self.path.name}: no rows below the header")
        names = self.header.names
        for number, line in lines:
            where = f"{self.path.name}, line {number}"
            if len(line) != len(names):
                raise UserError(f"{where}: {len(line)} fields, where the header has {len(names)}")
            if any(len(cell) > MAX_DIGITS and cell.strip().isdecimal() for cell in line):
                raise UserError(f"{where}: a number of more than {MAX_DIGITS} digits")
            yield self._checked(self.header, line, where)

    def _objects(self, lines: Text) -> Iterator[Run]:
        line_number, headers = 0, dict[tuple[str, ...], Header]()
        for line_number, line in enumerate(lines, 1):
            where = f"{self.path.name}, line {line_number}"
            values = files.json_of(line, where)
            if not isinstance(values, dict):
                raise UserError(f"{where}: expected an object, found {quoted(values)}")
            row = {str(key): "" if value is None else str(value) for key, value in cast(dict[object, object], values).items()}
            if tuple(row) not in headers:
                headers = {tuple(row): Header(list(row))}
                # a run that failed states its outcome instead of a measurement
                measured = () if "outcome" in headers[tuple(row)].fields else TRAINED
                _check_columns(where, headers[tuple(row)], REQUIRED_FIELDS, measured)
            yield self._checked(headers[tuple(row)], list(row.values()), where)
        if not line_number:
            raise UserError(f"{self.path.name}: empty; expected a JSON object per line")

    def _checked(self, header: Header, cells: Sequence[str], where: str) -> Run:
        """Return the run of a row. A measurement of training that is neither empty nor a finite number above zero refuses the table."""
        if not self.served:
            for i, column in header.measured:
                cell = cells[i]
                if cell and cell.strip() and not _is_above_zero(cell):
                    title = column.field.title
                    what = f"{where}: {title} is {quoted(cell.strip())}"
                    raise UserError(f"{what}; expected a number above zero, or an empty field if it was not measured")
        return header.run(cells, where)


def _is_above_zero(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _check_columns(name: str, header: Header, needed: Sequence[str], measured: Sequence[str]) -> None:
    titles = [BY_NAME[field].title for field in needed]
    if not header.names:
        raise UserError(f"{name}: empty; expected a CSV file with a header and the columns {', '.join(titles)}")
    repeated = [column for column, times in Counter(header.names).items() if times > 1]
    if repeated:
        raise UserError(f"{name}: the column {quoted(repeated[0])} appears twice")
    for field, title in zip(needed, titles, strict=True):
        if field not in header.fields:
            raise UserError(f"{name}: the column '{title}' is missing{nearest(title, header.names)}")
    if measured and not set(measured) & header.fields:
        expected = ", ".join(BY_NAME[field].title for field in measured)
        raise UserError(f"{name}: no column with a measurement; expected one of {expected}")


def is_serving_table(path: Path) -> bool:
    """Return whether a table is of served models."""
    return Table(path).served


def cases(path: Path, runs: Iterable[Run], case: Callable[[Run, str], Case]) -> tuple[list[Case], list[Skipped]]:
    """Turn runs into cases with `case(run, row_id)`; skip those that it refuses. Refuse a table in which every row is skipped."""
    used: list[Case] = []
    skipped: list[Skipped] = []
    reasons: dict[str, str] = {}
    for number, run in enumerate(runs, 1):
        row_id = run.text("row_id") or f"{path.stem}-{number}"
        try:
            used.append(case(run, row_id))
        except UserError as error:
            skipped.append(Skipped(row_id, reasons.setdefault(str(error), str(error))))
    if not used:
        reason, times = Counter(skip.reason for skip in skipped).most_common(1)[0] if skipped else ("the table is empty", 0)
        raise UserError(f"{path.name}: none of its {len(skipped)} rows can be evaluated; {times} of them: {reason}")
    return used, skipped
