"""Read a table of training runs as cases, with one assumption per source for whatever its rows do not state."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshwise.calibrate import tables
from meshwise.calibrate.tables import Skipped
from meshwise.calibrate.train import machine, shapes
from meshwise.calibrate.train.cases import Case, assumed_layout, case_of
from meshwise.calibrate.train.predict import predict
from meshwise.calibrate.train.table import read_table
from meshwise.cost.axes import RECOMPUTE


def read_cases(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Read every row of a table of training runs as a Case, or the reason why it is skipped."""
    rows = read_table(path)
    heads = shapes.common_heads(rows)
    cases, skipped = tables.cases(path, rows, lambda row, row_id: case_of(row, row_id, heads, path.stem))
    return settled(cases), skipped


def settled(cases: Sequence[Case]) -> list[Case]:
    """Choose what neither rows nor documentation state: the precision of a table, then ZeRO and recompute, the same for all runs of a
    model in a source: the cheapest setting under which they fit."""
    chosen = list(_with_precision(cases))
    for rows in _of_one_recipe(chosen):
        block = [chosen[i] for i in rows]
        for i, case in zip(rows, _cheapest(block), strict=True):
            chosen[i] = case
    return chosen


def _with_precision(cases: Sequence[Case]) -> Iterator[Case]:
    rates = [
        (case.model.flops(float(case.work.batch_tokens), case.work.seq) / case.seconds / case.cluster.devices, case.chip)
        for case in cases
        if "precision" in case.open and case.timed
    ]
    precision = machine.unstated_precision(rates)
    for case in cases:
        if "precision" in case.open:
            note = f"precision not stated: {precision}" + (", since 16 bits cannot be that fast" if precision == "fp8" else "")
            case = replace(case, work=replace(case.work, precision=precision), assumed=(*case.assumed, note))
        yield case


def _of_one_recipe(cases: Sequence[Case]) -> list[list[int]]:
    """Return the rows with open axes, by source and model: people write one recipe per model."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        if {"recompute", "zero"} & set(case.open):
            rows.setdefault((*case.source, case.model.name, case.open, case.layout["zero"] > 0), []).append(i)
    return list(rows.values())


def _cheapest(cases: list[Case]) -> list[Case]:
    """Return these runs of one recipe with the first of its candidate settings under which all that ran fit, or else most."""
    first = cases[0]
    framework, unstated = first.work.framework, set(first.open)
    stages = [0, *framework.zero] if "zero" in unstated and not first.layout["zero"] else [first.layout["zero"]]
    ways = list(framework.recompute) if "recompute" in unstated else [RECOMPUTE[first.layout["recompute"]]]
    best, most = cases, -1
    for way in ways:
        for stage in stages:
            tried = [_with(case, stage, way, unstated) for case in cases]
            memory = predict(tried).memory
            fit = int(np.sum([bytes_ <= case.chip.memory for bytes_, case in zip(memory, tried, strict=True) if case.ran]))
            if fit > most:
                best, most = tried, fit
            if fit == sum(case.ran for case in cases):
                return best
    return best


def _with(case: Case, stage: int, way: str, unstated: set[str]) -> Case:
    """Return a case with a ZeRO stage and a way to recompute, where these are open."""
    axes: dict[str, int] = {}
    if "recompute" in unstated:
        axes["recompute"] = RECOMPUTE.index(way)
    dp = case.layout["dp_replicate"] * case.layout["dp_shard"]
    if "zero" in unstated and stage and dp * case.layout["cp"] > 1:
        axes |= {"zero": stage, "dp_shard": dp, "dp_replicate": 1}
    words = [f"recompute {way}" if "recompute" in axes else "", f"ZeRO {axes.get('zero', case.layout['zero'])}" if "zero" in unstated else ""]
    return assumed_layout(case, f"{' and '.join(filter(None, words))} not stated: the cheapest that fits", **axes)
