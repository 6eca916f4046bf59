"""Rows of a table as runs: code shared by CSV files, JSON lines and Markdown tables."""

import math
import re
from collections.abc import Mapping, Sequence

from meshwise.runs.columns import Field, find_field
from meshwise.runs.log_run import Run, Skips
from meshwise.runs.numbers import Amount, amount, decimal_mark_of, is_empty

OUTCOMES = {
    "oom": "oom",
    "out of memory": "oom",
    "fail": "fail",
    "failed": "fail",
    "crash": "fail",
    "error": "fail",
    "hang": "fail",
}
MEASURED = (
    "seconds",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "samples_per_second",
    "tflops",
    "mfu",
    "hfu",
    "memory",
    "prefill",
    "decode",
    "each",
    "ttft",
    "tpot",
)
"""A row with one of these is a run; so is a row that states a failure."""

MOST = ("max", "all", "inf")
"""What a concurrency begins with where as many requests run as the engine admits."""
LONGEST = 300
"""Characters kept from a text cell."""
OWN_COLUMNS = frozenset({"sec_per_iter", "tokens_per_sec_per_gpu", "tflops_per_gpu"})
"""Columns of meshwise's own tables, in which shares are percentages."""


def fields_of(header: Sequence[str]) -> list[Field | None]:
    """Return the field of each column. If two columns have the same field, the first non-empty cell counts."""
    fields: list[Field | None] = []
    own_table = bool(OWN_COLUMNS & set(header))
    for name in header:
        field = find_field(name)
        if field and field.name == "n_gpus" and is_card_column(name):
            field = Field("gpu", "")
        if field and field.quantity == "share" and own_table:
            field = Field(field.name, "share", "%")
        fields.append(field)
    return fields


def is_card_column(name: str) -> bool:
    """Return whether a column names a kind of card ('GPU') rather than their number ('GPUs')."""
    return name.strip().lower() == "gpu"


def decimal_mark(cells: Sequence[str]) -> str:
    """Return the decimal mark used by the numbers of a table; '?' if they use both."""
    shown = {mark for cell in cells if (mark := decimal_mark_of(cell))}
    return "?" if len(shown) > 1 else next(iter(shown), "")


def read_cell(field: Field, text: str, decimal: str) -> Amount | None:
    """Parse the number of a cell; None if the table uses both decimal marks and this cell could mean either."""
    mixed = decimal == "?"
    if mixed and not decimal_mark_of(text) and re.search(r"\d[.,]\d{3}(?!\d)", text):
        return None
    return amount(text, field.quantity, field.unit, "" if mixed else decimal)


def run_from_row(
    header: Sequence[str], fields: Sequence[Field | None], cells: Sequence[str], where: str, decimal: str, skipped: Skips
) -> Run | None:
    """Return the run of one row, or None if nothing was measured. Unreadable numbers are left out and counted as skipped."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    tags: list[tuple[str, str]] = []
    rough: set[str] = set()
    for name, field, cell in zip(header, fields, cells, strict=False):
        text = cell.strip()
        outcome = next((kind for word, kind in OUTCOMES.items() if text.lower() == word), "")
        if field is None:
            tags += [(name, text)] if text and len(text) < 80 else []
        elif not field.quantity:
            texts[field.name] = texts.get(field.name) or text[:LONGEST]
        elif field.name in numbers:
            continue
        elif field.name == "users" and text.lower().startswith(MOST):
            texts["load"] = text[:LONGEST]
        elif outcome:
            texts["outcome"] = outcome
        elif not is_empty(text):
            number = read_cell(field, text, decimal)
            if number is None or (number.value < 0 and field.name != "loss"):
                skipped.add(f"{name.strip()[:30]!r} is not an unambiguous number", where)
                continue
            numbers[field.name] = number.value
            rough |= {field.name} if number.rough else set()
    numbers = scale_memory(numbers, texts)
    if not any(name in numbers for name in MEASURED) and "outcome" not in texts:
        return None
    return Run(where=texts.get("row_id") or where, numbers=numbers, texts=texts, tags=tuple(tags), rough=frozenset(rough))


def scale_memory(numbers: Mapping[str, float], texts: Mapping[str, str]) -> dict[str, float]:
    """Return the finite numbers, with memory converted from the unit in the column `mem_unit`."""
    scaled = dict(numbers)
    unit = texts.get("mem_unit", "").lower()
    if unit and "memory" in scaled:
        scaled["memory"] *= {"gib": 2.0**30 / 1e9, "mib": 2.0**20 / 1e9, "mb": 1e-3}.get(unit, 1.0)
    return {name: value for name, value in scaled.items() if math.isfinite(value)}
