"""Read a table of training runs as cases, with one assumption per source for whatever its rows do not state."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from meshwise.cost.axes import RECOMPUTE
from meshwise.errors import UserError
from meshwise.runs import table as tables
from meshwise.runs.model import common_heads
from meshwise.runs.run import Run
from meshwise.runs.table import REQUIRED_FIELDS, TRAINED, Skipped, Table
from meshwise.runs.train import machine
from meshwise.runs.train.case import Case, assumed_layout, case_of, with_precision
from meshwise.runs.train.predict import predict

IMPOSSIBLE_MEMORY_RATIO = 1.1
"""Predicted memory over a chip's own from which a run cannot have used a setting: predictions of memory err by about that much."""
TIED_MISFIT = 0.02


def read_cases(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Read every row of a table of training runs as a Case, or the reason why it is skipped."""
    runs = Table(path)
    runs.check(REQUIRED_FIELDS, TRAINED)
    heads = common_heads(runs)
    cases, skipped = tables.cases(path, runs, lambda run, row_id: case_of(run, row_id, heads, path.stem))
    return settled(cases), skipped


def cases_of(runs: Sequence[Run], table: str) -> tuple[list[tuple[int, Case]], list[str]]:
    """Return the cases of the runs of one source, each with the number of its run, and the reasons why the others are none."""
    heads = common_heads(runs)
    found: list[tuple[int, Case]] = []
    reasons: list[str] = []
    for number, run in enumerate(runs):
        try:
            found.append((number, case_of(run, run.where, heads, table)))
        except UserError as error:
            reasons.append(str(error))
    done = settled([case for _, case in found])
    return [(number, case) for (number, _), case in zip(found, done, strict=True)], reasons


def settled(cases: Sequence[Case]) -> list[Case]:
    """Choose what is not stated: a table's precision, then the cheapest ZeRO and recompute under which all runs of a model fit."""
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
            case = with_precision(case, precision, note)
        yield case


def _of_one_recipe(cases: Sequence[Case]) -> list[list[int]]:
    """Return the rows with open axes, by source and model: people write one recipe per model."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for i, case in enumerate(cases):
        if {"recompute", "zero"} & set(case.open):
            rows.setdefault((*case.source, case.model.name, case.open, case.layout["zero"]), []).append(i)
    return list(rows.values())


def _cheapest(cases: list[Case]) -> list[Case]:
    """Return runs of one recipe with the first setting under which all fit, or the one that predicts their stated memory best."""
    first = cases[0]
    framework, unstated = first.work.framework, set(first.open)
    documented = int(framework.default("zero") or 0)
    stages = [documented, *(z for z in framework.zero if z > documented)] if "zero" in unstated else [first.layout["zero"]]
    ways = _ways(first) if "recompute" in unstated else [RECOMPUTE[first.layout["recompute"]]]
    settings = [(stage, way) for way in ways for stage in stages]
    # one copy of the cases at a time
    misfits = [_misfit([_with(case, stage, way, unstated) for case in cases]) for stage, way in settings]
    stage, way = next(one for one, misfit in zip(settings, misfits, strict=True) if misfit <= min(misfits) + TIED_MISFIT)
    return [_with(case, stage, way, unstated) for case in cases]


def _misfit(cases: list[Case]) -> float:
    """Return how badly a setting agrees with runs: the median error of stated memory, or the share of runs that it would refuse."""
    memory = predict(cases).memory
    stated = [abs(float(np.log(memory[i] / case.memory))) for i, case in enumerate(cases) if case.has_memory]
    if 2 * len(stated) >= len(cases):
        return float(np.median(stated))
    return float(
        np.mean([memory[i] > IMPOSSIBLE_MEMORY_RATIO * case.chip.memory for i, case in enumerate(cases) if case.ran] or [0.0])
    )


def _ways(case: Case) -> list[str]:
    """Return the ways to recompute that save memory with this model, the cheapest first, as the framework lists them."""
    experts, scores = any(op.expert for op in case.model.ops), not case.work.framework.flash_attention
    useless = {"moe_act": not experts, "selective": case.work.framework.selective == "core_attn" and not scores}
    return [way for way in case.work.framework.recompute if not useless.get(way, False)]


def _with(case: Case, stage: int, way: str, unstated: set[str]) -> Case:
    """Return a case with a ZeRO stage and a way to recompute, where these are open."""
    axes: dict[str, int] = {}
    if "recompute" in unstated:
        axes["recompute"] = RECOMPUTE.index(way)
    dp = case.layout["dp_replicate"] * case.layout["dp_shard"]
    if "zero" in unstated and stage and dp * case.layout["cp"] > 1:
        axes |= {"zero": stage} | ({"dp_shard": dp, "dp_replicate": 1} if not case.layout["zero"] else {})
    note: list[str] = []
    if "recompute" in axes:
        note.append(f"recompute not stated: {way}, the cheapest that fits")
    if "zero" in unstated:
        used, framework = axes.get("zero", case.layout["zero"]), case.work.framework
        documented = str(used) == framework.default("zero")
        note.append(f"ZeRO not stated: {used}, {f'the default of {framework.name}' if documented else 'the cheapest that fits'}")
    return assumed_layout(case, note, **axes)
