"""How well predictions meet measurements: error, rank, the time lost by what would be picked, memory, and two baselines.

Errors are fractions of what was measured. All is plain data; None where a table has no rows that could tell.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwise.calibrate.tables import Skipped
from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.predict import Prediction
from meshwise.cost.layout import Floats

NEAR = 2.0
"""Rows within this factor of their group's best are the ones a planner chooses among; beyond it, a run may simply have been ill."""
FEWEST = 3
"""Timed rows in which picking one means anything."""

Score = dict[str, Any]


def score(cases: Sequence[Case], skipped: Sequence[Skipped], predicted: Prediction) -> Score:
    """All that `validate` says of one table, under the keys of its JSON."""
    timed = [i for i, case in enumerate(cases) if case.timed]
    picks = [_pick(cases, predicted, rows) for rows in groups(cases) if len(rows) >= FEWEST]
    return {
        "rows": len(cases),
        "skipped": len(skipped),
        "time": _time(cases, predicted, timed) | {"picked_loss": _mean([pick["loss"] for pick in picks])},
        "memory": _memory(cases, predicted),
        "oom": _oom(cases, predicted),
        "baseline": _baseline(cases, timed)
        | {
            "picked_loss": _mean([pick["rule_loss"] for pick in picks]),
            "random_loss": _mean([pick["random_loss"] for pick in picks]),
        },
        "timed_rows": len(timed),
        "skipped_reasons": dict(Counter(skip.reason for skip in skipped).most_common()),
        "assumed": dict(Counter(note for case in cases for note in case.assumed).most_common()),
        "picks": picks,
    }


def groups(cases: Sequence[Case]) -> list[list[int]]:
    """Timed rows by the choice they were part of."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        if case.timed:
            found.setdefault(case.group, []).append(i)
    return list(found.values())


def near(cases: Sequence[Case]) -> list[int]:
    """Timed rows within a factor of 2 of the best of their group."""
    kept: list[int] = []
    for rows in groups(cases):
        best = min(cases[i].seconds for i in rows)
        kept += [i for i in rows if cases[i].seconds <= NEAR * best]
    return sorted(kept)


def _mean(values: Sequence[float] | Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _time(cases: Sequence[Case], predicted: Prediction, timed: list[int]) -> dict[str, float | None]:
    seen = np.array([case.seconds for case in cases])
    ratio = predicted.seconds / seen
    error = ratio[timed] - 1
    close = near(cases)
    return {
        "mape": _mean(np.abs(error)),
        "median": float(np.median(np.abs(error))) if len(timed) else None,
        "bias": _mean(error),
        "mape_scaled": scaled_error(ratio[timed]),
        "mape_near": _mean(np.abs(ratio[close] - 1)),
        "spearman": spearman(predicted.seconds[timed], seen[timed]),
    }


def scaled_error(ratio: Floats) -> float | None:
    """Mean error once one scalar, the median ratio, is taken out: what is left to a planner that only ranks."""
    return _mean(np.abs(ratio / np.median(ratio) - 1)) if len(ratio) else None


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation, ties at their mean rank. None where either side is all one value, or there are fewer than 3."""
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Floats) -> Floats:
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[which]


def _pick(cases: Sequence[Case], predicted: Prediction, rows: list[int]) -> dict[str, Any]:
    """What would be picked among runs of one model, as many devices and one batch, and what each way to pick costs."""
    fits = [i for i in rows if predicted.memory[i] <= cases[i].limit]
    picked = cases[min(fits or rows, key=lambda i: predicted.seconds[i])]
    best = min((cases[i] for i in rows), key=lambda case: case.seconds)
    return {
        "model": best.model.name,
        "devices": best.cluster.devices,
        "batch": int(best.work.batch),
        "rows": len(rows),
        "best": best.row_id,
        "picked": picked.row_id,
        "loss": picked.seconds / best.seconds - 1,
        "rule_loss": _rule_of_thumb([cases[i] for i in fits or rows]) / best.seconds - 1,
        "random_loss": float(np.mean([cases[i].seconds for i in rows])) / best.seconds - 1,
    }


def _rule_of_thumb(cases: Sequence[Case]) -> float:
    """Seconds of what a rule of thumb picks: the smallest tp x pp, then ZeRO-1 rather than none, then the largest micro-batch.

    Where several rows are alike in all of these the rule is given the fastest.
    """

    def key(case: Case) -> tuple[int, bool, int, float]:
        axes = case.layout
        return axes["tp"] * axes["pp"] * axes["cp"], axes["zero"] == 0, -axes["mbs"], case.seconds

    return min(map(key, cases))[-1]


def _memory(cases: Sequence[Case], predicted: Prediction) -> dict[str, float | None]:
    rows = [i for i, case in enumerate(cases) if case.weighed]
    error = predicted.memory[rows] / np.array([cases[i].memory for i in rows]) - 1
    return {"mape": _mean(np.abs(error)), "bias": _mean(error)}


def _oom(cases: Sequence[Case], predicted: Prediction) -> dict[str, int]:
    """Runs that did not fit and are predicted not to; and runs that did, and would have been rejected."""
    over = predicted.memory > np.array([case.limit for case in cases])
    ran = np.array([case.ran for case in cases])
    return {"caught": int(np.sum(over & ~ran)), "total": int(np.sum(~ran)), "false": int(np.sum(over & ran))}


def _baseline(cases: Sequence[Case], timed: list[int]) -> dict[str, float | None]:
    """Constant throughput: every device does as many useful FLOPs a second as any other, whatever the layout.

    With one model in the table this is one number of samples per second and device for all rows.
    """
    flops = np.array([case.model.flops(float(case.work.batch_tokens), case.work.seq) / case.cluster.devices for case in cases])
    seen = np.array([case.seconds for case in cases])
    return {"mape_scaled": scaled_error(flops[timed] / seen[timed])}
