"""measurement.jsonl and steps.jsonl of `meshwise run`, and any JSON object a line whose keys are names of columns."""

import json
from collections.abc import Iterable
from typing import Any, cast

from meshwise.audit.logs.lines import Line
from meshwise.audit.logs.numbers import figure
from meshwise.audit.logs.run import Reading
from meshwise.audit.logs.series import Series
from meshwise.audit.logs.table import fields_of, run_of

name = "jsonl"
MOST_KEYS = 400
STEP = frozenset({"step", "loss", "seconds", "memory"})
"""Keys of a line of steps.jsonl, which `meshwise run` writes as it goes: one run, not one a line."""


def matches(head: str) -> bool:
    """The first line is an object with keys that are columns."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    try:
        values: Any = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(values, dict) and sum(f is not None for f in fields_of(list(map(str, cast(dict[str, object], values))))) >= 3
    )


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    steps = Series(reading, "meshwise")
    for line in lines:
        where = f"line {line.number}"
        if not line.text.strip():
            continue
        try:
            values: Any = json.loads(line.text)
        except (ValueError, RecursionError):
            reading.skipped.add("a line cut off" if line.cut else "a line that is no JSON", where)
            continue
        if not isinstance(values, dict) or len(cast(dict[str, object], values)) > MOST_KEYS:
            reading.skipped.add("a line that is no object of columns", where)
            continue
        if set(cast(dict[str, object], values)) >= STEP:
            steps.step(*_step(cast(dict[str, object], values), where))
            continue
        row = {str(key): "" if value is None else str(value) for key, value in cast(dict[str, object], values).items()}
        header = list(row)
        run = run_of(header, fields_of(header), list(row.values()), where, ".", reading.skipped)
        if run is None:
            reading.skipped.add("a line without any figure", where)
        else:
            reading.keep(run)
    steps.flush()
    return reading


def _step(values: dict[str, object], where: str) -> tuple[float, str, dict[str, float]]:
    """A line of steps.jsonl: seconds and bytes; what is no number says nothing."""
    plain = {key: values[key] for key in STEP if isinstance(values[key], int | float)}
    found = {key: figure(str(value)) for key, value in plain.items()}
    return found.pop("step", 0.0), where, found
