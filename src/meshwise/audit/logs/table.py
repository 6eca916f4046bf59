"""Rows of a table as runs: what CSV files and Markdown tables share."""

import math
import re
from collections.abc import Mapping, Sequence

from meshwise.audit.logs.columns import Field, find_field
from meshwise.audit.logs.numbers import Amount, amount, marks, nothing
from meshwise.audit.logs.run import Run, Skips

OUTCOMES = {
    "oom": "oom",
    "out of memory": "oom",
    "fail": "fail",
    "failed": "fail",
    "crash": "fail",
    "error": "fail",
    "hang": "fail",
}
SEEN = (
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
)
"""What makes a row a run: something was measured. A row that failed is one too."""


LONGEST = 300
"""Characters of a note that are kept."""
OURS = frozenset({"sec_per_iter", "tokens_per_sec_per_gpu", "tflops_per_gpu"})
"""Columns of meshwise's own tables, in which shares are percent."""


def fields_of(header: Sequence[str]) -> list[Field | None]:
    """The field of each column; of two columns with one meaning the first that is not empty counts."""
    found: list[Field | None] = []
    ours = bool(OURS & set(header))
    for name in header:
        field = find_field(name)
        if field and field.name == "n_gpus" and squeezed_gpu(name):
            field = Field("gpu", "")
        if field and field.quantity == "share" and ours:
            field = Field(field.name, "share", "%")
        found.append(field)
    return found


def squeezed_gpu(name: str) -> bool:
    """'GPU' is a kind of card, 'GPUs' a number of them."""
    return name.strip().lower() == "gpu"


def decimal_mark(cells: Sequence[str]) -> str:
    """The decimal mark that the numbers of a table show; '?' where some show one and some the other."""
    shown = {mark for cell in cells if (mark := marks(cell))}
    return "?" if len(shown) > 1 else next(iter(shown), "")


def read_cell(field: Field, text: str, decimal: str) -> Amount | None:
    """The number of a cell; where a table shows both decimal marks, one that could be read either way is none."""
    mixed = decimal == "?"
    if mixed and not marks(text) and re.search(r"\d[.,]\d{3}(?!\d)", text):
        return None
    return amount(text, field.quantity, field.unit, "" if mixed else decimal)


def run_of(
    header: Sequence[str], fields: Sequence[Field | None], cells: Sequence[str], where: str, decimal: str, skipped: Skips
) -> Run | None:
    """One row. A number that cannot be read is left out and counted; a row without any figure is no run."""
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
        elif outcome:
            texts["outcome"] = outcome
        elif not nothing(text):
            found = read_cell(field, text, decimal)
            if found is None or (found.value < 0 and field.name != "loss"):
                skipped.add(f"{name.strip()[:30]!r} is no number that can be read without guessing", where)
                continue
            numbers[field.name] = found.value
            rough |= {field.name} if found.rough else set()
    numbers = normal(numbers, texts)
    if not any(name in numbers for name in SEEN) and "outcome" not in texts:
        return None
    return Run(where=texts.get("row_id") or where, numbers=numbers, texts=texts, tags=tuple(tags), rough=frozenset(rough))


def normal(numbers: Mapping[str, float], texts: Mapping[str, str]) -> dict[str, float]:
    """Bytes in the unit that a column of its own names."""
    found = dict(numbers)
    unit = texts.get("mem_unit", "").lower()
    if unit and "memory" in found:
        found["memory"] *= {"gib": 2.0**30 / 1e9, "mib": 2.0**20 / 1e9, "mb": 1e-3}.get(unit, 1.0)
    return {name: value for name, value in found.items() if math.isfinite(value)}
