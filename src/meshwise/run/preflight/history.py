"""Rates per node of earlier preflights, in the user's folder: 'slower than last week' is seen."""

import json
import statistics
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from meshwise.catalogue import files

FOLDER = "preflights"
KEPT = 50  # preflights that are remembered of a node
MIN_EARLIER = 2  # earlier preflights from which on a node is compared with them

Rates = dict[str, float]


def _path(host: str):
    name = "".join(c if c.isalnum() or c in ".-_" else "_" for c in host)[:80].lstrip(".") or "node"
    return files.user_folder() / FOLDER / f"{name}.jsonl"


def earlier(host: str, kind: str) -> list[tuple[str, Rates]]:
    """Return date and rates of earlier preflights of a node with the same devices, oldest first. Damaged lines are left out."""
    path = _path(host)
    if not path.is_file():
        return []
    found: list[tuple[str, Rates]] = []
    for line in files.text_of(path).splitlines():
        try:
            row = cast("dict[str, Any]", json.loads(line))
            rates = {str(name): float(rate) for name, rate in row["rates"].items() if 0 < float(rate) < 1e18}
            if row["kind"] == kind:
                found.append((str(row["date"]), rates))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return found[-KEPT:]


def remember(host: str, kind: str, rates: Mapping[str, float]) -> None:
    """Add the rates of a healthy node to its history."""
    path, now = _path(host), datetime.now(UTC).isoformat(timespec="seconds")
    before = files.text_of(path).splitlines()[-KEPT:] if path.is_file() else []
    line = json.dumps({"date": now, "kind": kind, "rates": dict(rates)})
    files.write_own(FOLDER, path.name, "\n".join([*before, line]) + "\n")


def usual(before: list[tuple[str, Rates]], what: str) -> float:
    """Return the median of earlier rates; 0 where there are too few."""
    rates = [rates[what] for _, rates in before if what in rates]
    return statistics.median(rates) if len(rates) >= MIN_EARLIER else 0.0
