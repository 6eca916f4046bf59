"""Scores of predicted training runs: error, rank correlation, time lost by the predicted best, memory, and two baselines.

Errors are fractions of the measured value. Scores are plain data; None where a table has no rows for one.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwise.calibrate.score import MIN_ROWS_TO_RANK, Score, mean, spearman
from meshwise.cost.interval import COVERAGE_STDS
from meshwise.cost.layout import Floats
from meshwise.runs.table import Skipped
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Prediction

NEAR_BEST_FACTOR = 2.0
"""Rows within this factor of their group's best count as near it: a planner chooses among these; a slower run may just have been faulty."""


def score(cases: Sequence[Case], skipped: Sequence[Skipped], predicted: Prediction) -> Score:
    """Score the predictions for one table, under the keys of `validate --json`."""
    timed = [i for i, case in enumerate(cases) if case.timed]
    picks = [_pick(cases, predicted, rows) for rows in groups(cases) if len(rows) >= MIN_ROWS_TO_RANK]
    return {
        "rows": len(cases), "skipped": len(skipped),
        "time": time_errors(cases, predicted, timed) | {"picked_loss": mean([pick["loss"] for pick in picks])},
        "memory": _memory(cases, predicted), "oom": _oom(cases, predicted),
        "baseline": _baseline(cases, timed) | {
            "picked_loss": mean([pick["rule_loss"] for pick in picks]), "random_loss": mean([pick["random_loss"] for pick in picks]),
        },
        "timed_rows": len(timed),
        "skipped_reasons": dict(Counter(skip.reason for skip in skipped).most_common()),
        "assumed": dict(Counter(note for case in cases for note in case.assumed).most_common()), "picks": picks,
    }  # fmt: skip


def groups(cases: Sequence[Case]) -> list[list[int]]:
    """Return the timed rows of each group."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        if case.timed:
            rows.setdefault(case.group, []).append(i)
    return list(rows.values())


def near_best(cases: Sequence[Case]) -> list[int]:
    """Return the timed rows within a factor of 2 of the best of their group."""
    kept: list[int] = []
    for rows in groups(cases):
        best = min(cases[i].seconds for i in rows)
        kept += [i for i in rows if cases[i].seconds <= NEAR_BEST_FACTOR * best]
    return sorted(kept)


def by_source(
    cases: Sequence[Case], predicted: Prediction, ends: tuple[Floats, Floats], calibrated: Sequence[bool]
) -> list[Score]:
    """Score each source of a table: chip, framework and precision. `ends` are the low and the high end of every row's interval."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for i, case in enumerate(cases):
        rows.setdefault(case.source, []).append(i)
    near = set(near_best(cases))
    return [_source(cases, predicted, ends, calibrated, source, inside, near) for source, inside in rows.items()]


def _source(
    cases: Sequence[Case],
    predicted: Prediction,
    ends: tuple[Floats, Floats],
    calibrated: Sequence[bool],
    source: tuple[str, ...],
    rows: list[int],
    near: set[int],
) -> Score:
    timed = [i for i in rows if cases[i].timed]
    ratio = [predicted.seconds[i] / cases[i].seconds for i in timed]
    close = [abs(predicted.seconds[i] / cases[i].seconds - 1) for i in timed if i in near]
    inside = [float(ends[0][i] <= cases[i].seconds <= ends[1][i]) for i in timed]
    memory = [abs(predicted.memory[i] / cases[i].memory - 1) for i in rows if cases[i].has_memory]
    return {
        "chip": source[1], "framework": source[2], "precision": source[3], "rows": len(rows),
        "mape": mean([abs(each - 1) for each in ratio]), "mape_near": mean(close), "bias": mean([each - 1 for each in ratio]),
        "coverage": mean(inside), "memory": mean(memory),
        "rejected": sum(cases[i].ran and bool(predicted.needed[i] > cases[i].limit) for i in rows),
        "calibrated": all(calibrated[i] for i in rows),
    }  # fmt: skip


def time_errors(cases: Sequence[Case], predicted: Prediction, timed: list[int]) -> dict[str, float | None]:
    """Score the times of these rows."""
    measured = np.array([case.seconds for case in cases])
    ratio = predicted.seconds / measured
    error = ratio[timed] - 1
    close = sorted(set(near_best(cases)) & set(timed))
    return {
        "mape": mean(np.abs(error)),
        "median": float(np.median(np.abs(error))) if len(timed) else None,
        "bias": mean(error),
        "mape_scaled": scaled_error(ratio[timed]),
        "mape_near": mean(np.abs(ratio[close] - 1)),
        "spearman": spearman(predicted.seconds[timed], measured[timed]),
    }


def scaled_error(ratio: Floats) -> float | None:
    """Return the mean error after division by the median ratio: the error that matters to a planner, which only ranks."""
    return mean(np.abs(ratio / np.median(ratio) - 1)) if len(ratio) else None


def _pick(cases: Sequence[Case], predicted: Prediction, rows: list[int]) -> dict[str, Any]:
    """Pick the predicted best among the runs of one group, and return the time lost by it, by a rule of thumb and by a random pick."""
    fits = [i for i in rows if predicted.needed[i] <= cases[i].limit]
    picked = cases[min(fits or rows, key=lambda i: predicted.seconds[i])]
    best = min((cases[i] for i in rows), key=lambda case: case.seconds)
    return {
        "model": best.model.name, "devices": best.cluster.devices, "batch": int(best.work.batch), "rows": len(rows),
        "best": best.row_id, "picked": picked.row_id, "loss": picked.seconds / best.seconds - 1,
        "rule_loss": _rule_of_thumb([cases[i] for i in fits or rows]) / best.seconds - 1,
        "random_loss": float(np.mean([cases[i].seconds for i in rows])) / best.seconds - 1,
    }  # fmt: skip


def _rule_of_thumb(cases: Sequence[Case]) -> float:
    """Return the seconds of a rule of thumb's pick: the smallest tp x pp, then ZeRO-1 over none, then the largest micro-batch. Where
    several rows are equal in all of these, the fastest counts."""

    def key(case: Case) -> tuple[int, bool, int, float]:
        axes = case.layout
        return axes["tp"] * axes["pp"] * axes["cp"], axes["zero"] == 0, -axes["mbs"], case.seconds

    return min(map(key, cases))[-1]


def _memory(cases: Sequence[Case], predicted: Prediction) -> dict[str, float | None]:
    rows = [i for i, case in enumerate(cases) if case.has_memory]
    error = predicted.memory[rows] / np.array([cases[i].memory for i in rows]) - 1
    return {"mape": mean(np.abs(error)), "bias": mean(error), "median": float(np.median(np.abs(error))) if len(rows) else None}


def memory_coverage(cases: Sequence[Case], predicted: Prediction, spreads: Sequence[float]) -> float | None:
    """Return the share of measured memory in its 90% interval, whose standard deviation in ln(bytes) is given for each case."""
    measured = [i for i, case in enumerate(cases) if case.has_memory]
    return mean([float(abs(math.log(predicted.memory[i] / cases[i].memory)) <= COVERAGE_STDS * spreads[i]) for i in measured])


def _oom(cases: Sequence[Case], predicted: Prediction) -> dict[str, int]:
    """Count the runs out of memory that were predicted so, and the runs that fit but would have been rejected."""
    over = predicted.needed > np.array([case.limit for case in cases])
    ran = np.array([case.ran for case in cases])
    return {"caught": int(np.sum(over & ~ran)), "total": int(np.sum(~ran)), "false": int(np.sum(over & ran))}


def _baseline(cases: Sequence[Case], timed: list[int]) -> dict[str, float | None]:
    """Score constant throughput as a baseline: the same model FLOP/s per device for every layout. With one model in the table this is one
    number of samples per second and device for all rows."""
    known: dict[tuple[int, int], float] = {}  # rows share models and tasks
    for case in cases:
        if (id(case.model), id(case.work)) not in known:
            known[id(case.model), id(case.work)] = case.model.flops(float(case.work.batch_tokens), case.work.seq)
    flops = np.array([known[id(case.model), id(case.work)] / case.cluster.devices for case in cases])
    measured = np.array([case.seconds for case in cases])
    return {"mape_scaled": scaled_error(flops[timed] / measured[timed])}
