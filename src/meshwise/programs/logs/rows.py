"""Rows of tables in logs and pages: what CSV files, JSON lines and Markdown tables share."""

from collections.abc import Sequence

from meshwise.runs.reading import Skips
from meshwise.runs.run import Run
from meshwise.runs.table import SERVE_FIGURES, SIZES, TRAINED, Header

MEASURED_FIELDS = (*TRAINED, *SERVE_FIGURES, *SIZES)
"""A row with one of these is a run; so is a row that states a failure."""


def run_of(header: Header, cells: Sequence[str], where: str, decimal: str, skipped: Skips) -> Run | None:
    """Return the run of one row, or None if nothing was measured. Unreadable numbers stay unknown and are counted as skipped."""
    run = header.run(cells, where, decimal)
    for one in run:
        if one.how == "unknown":
            skipped.add(f"{one.key[:30]!r} is not an unambiguous number", where)
    measured = any(run.value(name) is not None for name in MEASURED_FIELDS) or "outcome" in run
    return run if measured else None
