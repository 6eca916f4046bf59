"""Facts as a layout of the planner."""

from dataclasses import dataclass
from typing import cast

from meshwise.cost.axes import AXES, VALUES
from meshwise.programs.program import Program
from meshwise.runs.run import Run

REQUIRED_AXES = ("dp_replicate", "dp_shard", "mbs", "zero", "recompute")
"""Axes that must be known; the others are at their least where nothing is said of them."""
MAX_SIZE = 10**9


@dataclass(frozen=True)
class Missing:
    """A fact that is not known."""

    fact: str
    why: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.fact}: {self.why}" + (f" ({self.where})" if self.where and self.where not in self.why else "")


def row_of(program: Program, facts: Run) -> tuple[dict[str, int | str], list[Missing]]:
    """Return the layout that facts say, and the axes that are not known."""
    row: dict[str, int | str] = {}
    missing: list[Missing] = []
    for axis in AXES:
        stated = facts.get(axis.name)
        value = stated.value if stated else None
        least = axis.values[0] if axis.values else axis.least
        if stated is None and axis.name not in REQUIRED_AXES:
            value = least
        if value is not None and axis.name not in VALUES and not axis.least <= int(cast(int, value)) <= MAX_SIZE:
            missing.append(Missing(axis.name, f"{value} is no size of a group of devices", stated.where if stated else ""))
            continue
        if value is None or (axis.name in VALUES and value not in VALUES[axis.name]):
            missing.append(Missing(axis.name, (stated.note if stated else "") or "not stated", stated.where if stated else ""))
            continue
        row[axis.name] = str(value) if axis.name in VALUES else int(value)  # pyright: ignore[reportArgumentType]
    return normal(row), missing


def normal(row: dict[str, int | str]) -> dict[str, int | str]:
    """Return a layout without what has no effect."""
    done = dict(row)
    if done.get("ep") == 1:
        done["etp"] = 1
    if done.get("tp") == 1:
        done["sp"] = 0
    if done.get("pp") == 1:
        done |= {"schedule": "1f1b", "vpp": 1}
    if done.get("zero") == 0 and "dp_shard" in done and "dp_replicate" in done:
        done |= {"dp_replicate": int(done["dp_replicate"]) * int(done["dp_shard"]), "dp_shard": 1}
    if "zero" in done and int(done.get("dp_shard", 0)) == 1 and int(done.get("cp", 1)) == 1:
        done["zero"] = 0
    return done
