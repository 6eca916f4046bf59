"""Doubts: rows of served models that cannot be what they say, by general rules. They are kept, and scored with and without."""

from collections.abc import Sequence

from meshwise.runs.serve.case import ServeCase
from meshwise.runs.serve.names import EVALUATED_AS

NARROWEST = ("fp4", "int4")  # types that llama.cpp's kernels do not multiply in: those of twice their width have half the rate


def doubts(cases: Sequence[ServeCase]) -> list[dict[str, str]]:
    """Return for every case why its rates cannot be those of what it states, by part ('decode', 'prefill'). What is impossible for one row
    of a model, format and chip is not believed of the others in its table: the model is another one, or prompts were cached."""
    setups = [(case.table, *case.group, case.model.name, case.weights.format, case.runtime.engine) for case in cases]
    figures = [
        (*setup[:4], case.work.prompt, case.work.output, case.decode, case.prefill)
        for setup, case in zip(setups, cases, strict=True)
    ]
    shared: dict[object, dict[str, str]] = {}
    first: dict[object, ServeCase] = {}
    for case, setup, rates in zip(cases, setups, figures, strict=True):
        shared.setdefault(setup, {}).update(_impossible(case) if case.ran else {})
        if case.decode > 0 and case.prefill > 0:
            first.setdefault(rates, case)
    return [
        shared[setup] | _unlike(case, first.get(rates, case)) for case, setup, rates in zip(cases, setups, figures, strict=True)
    ]


def _impossible(case: ServeCase) -> dict[str, str]:
    """Return the parts in which a row is faster than its chip can be."""
    stages = case.demand.stages
    if not stages or case.chip.kind == "cpu" or case.most or (case.load and (case.load.rate or case.load.draft)):
        return {}  # the memory of a CPU is its owner's choice, and the load of the others does not say how many run at once
    name = case.chip.name
    # a pass reads at least what one token needs and the caches cannot hold
    reads = [
        max(max(0.0, task.read(1) + task.head - (task.chip.cache or 0)) / task.chip.bandwidth for task in stage)
        for stage in stages
    ]
    if case.decode * (sum(reads) if case.work.users == 1 else max(reads)) > case.work.users:
        why = f"output reads more bytes/s than the memory of {name} has: another model, format or memory"
        return {"decode": why, "prefill": why}
    peak = max(rate / (1 + (case.runtime.gguf and kind in NARROWEST)) for kind, rate in case.chip.flops.items())
    computed = case.prefill * (1 - (case.load.prefix if case.load else 0.0))
    if computed * sum(task.flops for stage in stages for task in stage) > peak * len(case.rig.chips):
        return {"prefill": f"prompts take more FLOP/s than the peak of {name}: they were in the cache"}
    return {}


def _unlike(case: ServeCase, first: ServeCase) -> dict[str, str]:
    """Return both parts where a row names an engine that does not run it, or states the figures of another format."""
    guessed = any(EVALUATED_AS in note for note in case.assumed)
    if case.ran and guessed and case.rig.chips and not case.demand.host.idle:
        why = "its engine does not run the format, nor keeps layers in host memory: what ran is not known"
    elif first.weights.format != case.weights.format:
        why = "the same figures as those of an earlier row in another format"
    else:
        return {}
    return {"decode": why, "prefill": why}
