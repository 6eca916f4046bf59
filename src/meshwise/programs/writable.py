"""Writable: a plan for a program with the layouts that `export` can write for it, the fastest first."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice

from meshwise.catalogue.files import squeeze
from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import NAMES, index
from meshwise.errors import UserError
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.plan.train.search import search
from meshwise.programs import setup as setups
from meshwise.programs.program import Program, Setup, programs
from meshwise.runs.compare import layouts

TRIED_PER_ROW = 8  # layouts to look through for each row of a table
MIN_TRIED = 200  # of those that a search finds, at least: a program that can write none of them is told from their refusals
MAX_ROUNDS = 6  # searches, each within the limits that the refusals of the one before it name


Can = Callable[[Choice], bool]
Facts = Callable[[Choice], Setup]


def program_of(framework: str, adapts: bool = False) -> Program | None:
    """Return the program that a framework's plans are written for: of that name, else one that the framework's file names, else the first
    that the framework predicts; with `adapts`, one that has keys for adapters."""
    known = [
        one
        for one in programs().values()
        if one.kind == "train" and one.write is not None and not (adapts and one.key_of("rank") is None)
    ]
    plain = squeeze(framework)
    named = next((one for one in known if plain in (squeeze(one.name), squeeze(one.title))), None)
    if named is not None or not framework:
        return named
    try:
        found = find_framework(framework.partition("+")[0])
    except UserError:
        return None
    written = [one for name in found.written_by for one in known if one.name == name]
    return next((one for one in (*written, *known) if one in written or one.framework == found.key), None)


def program_for(plan: TrainPlan) -> Program | None:
    """Return the program that a plan is written for."""
    work = plan.question().work
    return program_of(plan.ask.framework or work.framework.program, work.finetune.adapts)


def writable(plan: TrainPlan) -> TrainPlan:
    """Return a plan with layouts that `export` can write for its program, named or assumed. Where it can write none of them, the plan as it
    is, with a note that says why."""
    program = program_for(plan)
    if program is None or lookup.mixed(plan.ask):
        return plan
    can, first = _writer(plan, program)
    refused = [one for one in plan.choices if not can(one)]
    if not refused:
        return plan
    why = next(iter(program.refuse(first(refused[0])))).why
    kept = _searched(plan, program, can, first)
    if not kept:
        none = f"export --to {program.name} can write none of these layouts: {why}"
        return (None if plan.ask.framework else _instead(plan, none)) or _with(plan, plan.choices, none)
    lost = kept[0].step / plan.choices[0].step - 1
    slower = f", the fastest {lost:.0%} faster" if lost >= MIN_SHOWN_LOSS else ""
    return _with(plan, tuple(kept), f"layouts that export --to {program.name} cannot write are left out{slower}: {why}")


INSTEAD = ("megatron-deepspeed", "torchtitan", "fsdp")
"""Programs of several nodes that are assumed in this order where the usual one cannot describe a model."""


def _instead(plan: TrainPlan, why: str) -> TrainPlan | None:
    """Return the plan of the first other program that can be written, with why the usual one is not assumed; None where there is none."""
    for name in INSTEAD if plan.cluster["nodes"] != 1 else ():
        try:
            other = make(replace(plan.ask, framework=name))
        except UserError:
            continue
        program = program_for(other)
        if program is None:
            continue
        can, facts = _writer(other, program)
        kept = tuple(filter(can, other.choices)) or tuple(_searched(other, program, can, facts))
        if kept:
            usual = f"{plan.framework} is usual here, {plan.choices[0].step:.3g} s a step"
            return _with(other, kept, f"{usual}, but {why}: planned with {other.framework}")
    return None


MIN_SHOWN_LOSS = 0.005  # share of a step below which it is not worth a word


def _searched(plan: TrainPlan, program: Program, can: Can, facts: Facts) -> list[Choice]:
    """Return the fastest layouts that a program can write; where there are none, limits that its refusals name bound the next search."""
    q, bounds = plan.question(), dict(plan.ask.bounds)
    nodes = lookup.node_counts(plan.ask, q)
    for _ in range(MAX_ROUNDS):
        wanted = TRIED_PER_ROW * plan.ask.top
        found = search(q, bounds=bounds, top=wanted, nodes=nodes)
        tried = islice(layouts(q, found=found), max(MIN_TRIED, wanted))  # each is predicted when it is looked at
        first = next(tried, None)
        kept = list(islice(filter(can, chain([first], tried)), plan.ask.top)) if first else []
        if kept or first is None:
            return kept
        instead = {axis: value for refusal in program.refuse(facts(first)) for axis, value in refusal.instead.items()}
        limits = {
            axis: (index(axis, it), index(axis, it)) for axis, it in instead.items() if axis in NAMES and axis != "dp_shard"
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
