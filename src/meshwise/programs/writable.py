"""Writable: a plan for a program with the layouts that `export` can write for it, the fastest first."""

from collections.abc import Callable
from dataclasses import replace

from meshwise.catalogue.files import squeeze
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import NAMES, index
from meshwise.errors import UserError
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.plan import TrainPlan
from meshwise.plan.train.search import search
from meshwise.programs import setup as setups
from meshwise.programs.program import Program, Setup, programs
from meshwise.runs.compare import layouts

TRIED_PER_ROW = 8
"""Layouts to look through for each row of a table."""
MAX_ROUNDS = 6
"""Searches, each within the limits that the refusals of the one before it name."""


Can = Callable[[Choice], bool]
Facts = Callable[[Choice], Setup]


def program_of(framework: str) -> Program | None:
    """Return the program that a framework's plans are written for: of that name, else the first that the framework predicts."""
    known = [one for one in programs().values() if one.kind == "train" and one.write is not None]
    plain = squeeze(framework)
    named = next((one for one in known if plain in (squeeze(one.name), squeeze(one.title))), None)
    if named is not None or not framework:
        return named
    try:
        key = find_framework(framework).key
    except UserError:
        return None
    return next((one for one in known if one.framework == key), None)


def writable(plan: TrainPlan) -> TrainPlan:
    """Return a plan whose question names a framework with layouts that `export` can write for it. Where it can write none of them, the plan
    as it is, with a note that says why."""
    program = program_of(plan.ask.framework)
    if program is None or lookup.mixed(plan.ask):
        return plan
    can, first = _writer(plan, program)
    refused = [one for one in plan.choices if not can(one)]
    if not refused:
        return plan
    why = next(iter(program.refuse(first(refused[0])))).why
    kept = _searched(plan, program, can, first)
    if not kept:
        return _with(plan, plan.choices, f"export --to {program.name} can write none of these layouts: {why}")
    lost = kept[0].step / plan.choices[0].step - 1
    slower = f", the fastest {lost:.0%} faster" if lost >= MIN_SHOWN_LOSS else ""
    return _with(plan, tuple(kept), f"layouts that export --to {program.name} cannot write are left out{slower}: {why}")


MIN_SHOWN_LOSS = 0.005
"""Share of a step below which it is not worth a word."""


def _searched(plan: TrainPlan, program: Program, can: Can, facts: Facts) -> list[Choice]:
    """Return the fastest layouts that a program can write. Where none of many is one, the limits that its refusals name are bounds of the
    next search."""
    q, bounds = plan.question(), dict(plan.ask.bounds)
    nodes = lookup.node_counts(plan.ask, q)
    for _ in range(MAX_ROUNDS):
        found = search(q, bounds=bounds, top=TRIED_PER_ROW * plan.ask.top, nodes=nodes)
        tried = list(layouts(q, found=found))
        kept = [one for one in tried if can(one)][: plan.ask.top]
        if kept or not tried:
            return kept
        instead = {axis: value for refusal in program.refuse(facts(tried[0])) for axis, value in refusal.instead.items()}
        limits = {
            axis: (index(axis, value), index(axis, value))
            for axis, value in instead.items()
            if axis in NAMES and axis != "dp_shard"
        }
        if not limits or limits.items() <= bounds.items():
            return []
        bounds |= limits
    return []


def _with(plan: TrainPlan, choices: tuple[Choice, ...], note: str) -> TrainPlan:
    made = replace(plan, choices=choices, notes=(*plan.notes, note))
    vars(made)["_question"] = plan.question()
    return made


def _writer(plan: TrainPlan, program: Program) -> tuple[Can, Facts]:
    """Return whether a program can write a layout, and the facts of a layout."""
    base = setups.of_plan(plan)

    def facts(one: Choice) -> Setup:
        dp = int(one.layout["dp_replicate"]) * int(one.layout["dp_shard"])
        values = {**base.values, **one.layout, "dp": dp, "accumulation": one.gradient_accumulation, "devices": one.devices}
        return replace(base, values=values)

    return (lambda one: not any(True for _ in program.refuse(facts(one)))), facts
