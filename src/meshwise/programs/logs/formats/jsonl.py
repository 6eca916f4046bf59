"""JSON lines: measurement.jsonl and steps.jsonl of `meshwise run`, and any file of JSON objects whose keys are column names."""

import json
from collections.abc import Iterable
from typing import Any, cast

from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import number_or_nan
from meshwise.runs.reading import Reading, run_of
from meshwise.runs.table import Header

name = "jsonl"
order = 20
MAX_KEYS = 400
STEP = frozenset({"step", "loss", "seconds", "memory"})
"""Keys of a line of steps.jsonl, which `meshwise run` writes at every step: all lines are one run."""


def matches(head: str) -> bool:
    """Return whether the first line is an object with at least three keys that are column names."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    try:
        values: Any = json.loads(first)
    except (ValueError, RecursionError):
        return False
    names = list(map(str, cast(dict[str, object], values))) if isinstance(values, dict) else []
    return sum(column is not None for column in Header(names).columns) >= 3


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    steps = Series(reading, "meshwise")
    for line in lines:
        where = f"line {line.number}"
        if not line.text.strip():
            continue
        try:
            parsed: Any = json.loads(line.text)
        except (ValueError, RecursionError):
            reading.skipped.add("a line cut off" if line.cut else "a line that is not JSON", where)
            continue
        values = cast(dict[str, object], parsed) if isinstance(parsed, dict) else {}
        if not isinstance(parsed, dict) or len(values) > MAX_KEYS:
            reading.skipped.add("a line that is not an object of columns", where)
            continue
        if set(values) >= STEP:
            steps.step(*_step(values, where))
            continue
        row = {str(key): "" if value is None else str(value) for key, value in values.items()}
        run = run_of(Header(list(row)), list(row.values()), where, ".", reading.skipped)
        if run is None:
            reading.skipped.add("a line without a measurement", where)
        else:
            reading.add_run(run)
    steps.flush()
    return reading


def _step(values: dict[str, object], where: str) -> tuple[float, str, dict[str, float]]:
    """Return step, place and figures of a line of steps.jsonl, in seconds and bytes; values that are not numbers are left out."""
    plain = {key: values[key] for key in STEP if isinstance(values[key], int | float)}
    numbers = {key: number_or_nan(str(value)) for key, value in plain.items()}
    return numbers.pop("step", 0.0), where, numbers
