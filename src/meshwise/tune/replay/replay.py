"""Replay: the loop of `tune` on a table of measured runs, beside other ways to choose.

A group is every run of one model on the same devices, with the same program, batch and day: a person chose among these. A strategy runs
the rows of a group in an order of its own, and sees the time and memory of a row when it has run it. Regret after n runs is the time lost
by the fastest of them against the fastest of the group; where none of them ran, the slowest run of the group counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwise.runs.table import find_table
from meshwise.tune.belief.choice import next_runs
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.belief.residual import SCALES, Scales
from meshwise.tune.replay import rivals
from meshwise.tune.replay.groups import MIN_ROWS_PER_GROUP, Group, Order, Strategy, read_groups

RUNS_SHOWN = (1, 2, 3, 5, 10)  # numbers of runs after which regret is shown


def learned_order(group: Group, runs: int, scales: Scales = SCALES) -> Order:
    """Return the rows in the order in which `tune` runs them."""
    seen: list[Observation] = []
    order: Order = []
    while len(order) < min(runs, len(group.cases)):
        posterior = Posterior.of(group.space, seen, scales)
        picks = next_runs(group.space, posterior, seen, scales=scales)
        row = picks[0].row if picks else next(i for i in range(len(group.cases)) if i not in order)
        order.append(row)
        seen.append(group.observation(row))
    return order


@dataclass(frozen=True)
class Replay:
    """Regret by number of runs on the groups of a table, by strategy."""

    table: str
    groups: tuple[str, ...]
    sizes: tuple[int, ...]  # rows of each group
    skipped: int
    runs: int
    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...]

    @property
    def shown(self) -> tuple[int, ...]:
        return (*(n for n in RUNS_SHOWN if n < self.runs), self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return everything, under the keys of `tune --replay --json`."""
        return {
            "table": self.table, "runs": self.runs, "rows": sum(self.sizes), "skipped": self.skipped,
            "regret": {each.name: [each.mean(n + 1) for n in range(self.runs)] for each in self.strategies},
            "groups": [
                {"group": name, "rows": rows, "regret": {each.name: each.regret[i].tolist() for each in self.strategies}}
                for i, (name, rows) in enumerate(zip(self.groups, self.sizes, strict=True))
            ],
            "notes": list(self.notes),
        }  # fmt: skip

    def rows(self) -> list[dict[str, object]]:
        """Return a row per group and strategy, as --csv prints them."""
        found: list[dict[str, object]] = []
        for i, (name, size) in enumerate(zip(self.groups, self.sizes, strict=True)):
            for each in self.strategies:
                curve = {f"after_{n}": value for n, value in enumerate(each.regret[i].tolist(), 1)}
                found.append({"group": name, "rows": size, "strategy": each.name, **curve})
        return found


def replay(
    table: str, runs: int = 10, seeds: int = 20, calibration: str = "", fewest: int = MIN_ROWS_PER_GROUP,
    progress: Callable[[str], object] = lambda strategy: None, scales: Scales = SCALES,
) -> Replay:  # fmt: skip
    """Replay a table: the loop of `tune`, and its rivals. `progress` is told each strategy before it starts."""
    groups, skipped = read_groups(table, calibration, fewest)
    progress("meshwise tune")
    own = Strategy("meshwise tune", tuple(group.regret(learned_order(group, runs, scales), runs) for group in groups))
    others, notes = rivals.strategies(groups, runs, seeds, progress)
    used = sorted({group.calibration.key or group.calibration.name for group in groups})
    return Replay(
        table=find_table(table).stem, groups=tuple(group.name for group in groups),
        sizes=tuple(len(group.cases) for group in groups), skipped=len(skipped), runs=runs, strategies=(own, *others),
        notes=(f"predictions by {', '.join(used)}", *notes),
    )  # fmt: skip
