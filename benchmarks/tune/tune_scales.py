"""Find the scales of `tune`'s residual (src/meshwise/tune/belief/residual.py): those under which the built-in tables are most likely.

python benchmarks/tune/tune_scales.py    print them, and those without each table

Every row is predicted by a calibration that never saw its table. Rows in a slow mode are left out, since `risk.py` is about those: beyond
twice the fastest of their group, or 1.4 times the median ratio of measured to predicted time. A table counts as at most forty rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from meshwise.calibrate.train.score import NEAR_BEST_FACTOR
from meshwise.cost.layout import Floats
from meshwise.tune.belief.residual import SCALES, Kernel, Scales
from meshwise.tune.replay.groups import Group, read_groups

TABLES = (
    "bloom_prequel",
    "vtrain_a100_single_node",
    "nanotron_h100_small",
    "nanotron_h100_128",
    "megatron_bridge_to_2602",
    "torchtitan_2024",
)
FITTED = ("physics", "use", "doubling", "smooth", "length", "own")
GROUPS, ROWS = 20, 40
"""Most groups of a table that are read, and most rows that it counts as."""
SLOW = 0.35
"""ln of the factor beyond the median from which a run counts as slow."""
WIDTH = 1.0
"""Standard deviation of the logarithm of each scale before any row is seen."""

SIMPLEX = -0.4
"""First step of the search along each logarithm."""


def residuals(group: Group) -> tuple[Floats, Floats]:
    """Return the rows of a group that are not slow, and their ln(measured / predicted)."""
    ratio = np.log(group.seconds / group.space.seconds)
    near = group.seconds <= NEAR_BEST_FACTOR * group.seconds.min()
    near &= ratio < np.median(ratio[near]) + SLOW
    return np.flatnonzero(near), ratio[near]


def likelihood(group: Group, scales: Scales) -> tuple[float, int]:
    """Return the logarithm of the likelihood of a group's rows, and their number."""
    rows, values = residuals(group)
    shared = Kernel.of(group.space, group.space.physics, scales).between(rows)[rows] + scales.noise**2 * np.eye(len(rows))
    lower = np.linalg.cholesky(shared)
    whitened = np.linalg.solve(lower, values)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(lower)).sum() - 0.5 * len(rows) * np.log(2 * np.pi)), len(rows)


def fitted(tables: Sequence[Sequence[Group]]) -> Scales:
    """Return the most likely scales."""
    start = np.log([getattr(SCALES, name) for name in FITTED])

    def loss(logs: Floats) -> float:
        scales = with_logs(logs)
        total = 0.5 * float(np.sum(((logs - start) / WIDTH) ** 2))
        for groups in tables:
            values = [likelihood(group, scales) for group in groups]
            rows = sum(number for _, number in values)
            total -= sum(value for value, _ in values) * min(1.0, ROWS / rows)
        return total

    simplex = np.vstack([start, start + SIMPLEX * np.eye(len(start))])
    options = {"maxfev": 400, "xatol": 0.02, "fatol": 0.05, "initial_simplex": simplex}
    return with_logs(minimize(loss, start, method="Nelder-Mead", options=options).x)


def with_logs(logs: Floats) -> Scales:
    return replace(SCALES, **dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))


def sampled(table: str) -> list[Group]:
    """Return groups of at least three rows, spread evenly over the table."""
    groups = read_groups(table, fewest=3)[0]
    return groups[:: -(-len(groups) // GROUPS)]


def main() -> None:
    tables = {name: sampled(name) for name in TABLES}
    print(f"{'without':<26}" + "".join(f"{name:>10}" for name in FITTED))
    for without in ("", *TABLES):
        scales = fitted([groups for name, groups in tables.items() if name != without])
        print(f"{without or '(all tables)':<26}" + "".join(f"{getattr(scales, name):10.3f}" for name in FITTED), flush=True)


if __name__ == "__main__":
    main()
