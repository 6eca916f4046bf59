"""Training on generated answers on a terminal: a table of the splits of the devices, the phases with their intervals, and the bytes of each
role; and what a file of such a program says."""

from rich.console import Group, RenderableType

from meshwise.audit.check.rollout import RolloutVerdict
from meshwise.plan.rl.plan import RolloutPlan
from meshwise.plan.rl.splits import Split
from meshwise.ui.views.plan import setting
from meshwise.ui.views.tables import Column, Table, bullets, heading, paragraphs, wrapped
from meshwise.units import GIB, figure

ENGINE = ("engine weights", "engine cache")


def rollout_view(plan: RolloutPlan, width: int) -> RenderableType:
    """Return everything that `plan --objective grpo` prints except the commands."""
    ask, best = plan.ask, plan.best
    spread = f"{plan.mean_answer:,.0f} tokens" if plan.mean_answer == plan.longest_answer else (
        f"{plan.mean_answer:,.0f} tokens on average, the longest {plan.longest_answer:,.0f}"
    )  # fmt: skip
    answers = f"{ask.batch:,} prompts of {ask.prompt:,} tokens, {ask.answers} answers each of {spread}"
    title = heading([f"{ask.model} on {ask.on}: {answers}", setting(ask, plan.framework)], width)
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in plan.notes]
    tables = [Table(_columns(), plan.splits).fitted(width)]
    return paragraphs(title, tables, [_phases(best, width)], bullets(_sentences(best), width), notes)


def _columns() -> list[Column[Split]]:
    return [
        Column("devices", lambda split: split.name, text=True),
        Column(
            "s/step (90%)", lambda split: f"{figure(split.step, 4)} ({figure(split.interval[0])}-{figure(split.interval[1])})"
        ),
        Column("rollout s", lambda split: figure(split.rollout_seconds), rank=2),
        Column("training s", lambda split: figure(split.training_seconds), rank=2),
        Column("answers/s", lambda split: figure(split.answers_per_second), rank=4),
        Column("tokens/s", lambda split: f"{split.tokens_per_second:,.0f}", rank=5),
        Column("training", lambda split: split.train_layout, text=True, rank=6),
        Column("generation", lambda split: split.rollout_layout, text=True, rank=7),
    ]


def _phases(best: Split, width: int) -> RenderableType:
    """Return the phases of the fastest split, with intervals and shares of the step."""
    rows = [(name, seconds, best.phase_intervals[name]) for name, seconds in best.phases.items() if seconds >= best.step / 2000]
    return Table(
        [
            Column("phase", lambda row: _named(row[0], best), text=True),
            Column("s (90%)", lambda row: f"{figure(row[1])} ({row[2][0]:.2g}-{row[2][1]:.2g})"),
            Column("share", lambda row: f"{row[1] / best.step:.0%}"),
        ],
        rows,
    ).fitted(width)


def _named(phase: str, best: Split) -> str:
    if phase == "rollout" and not best.together and best.phases["rollout"] < best.rollout_seconds:
        return "waiting for answers"
    return {"weights": "new weights to the engines", "switch": "engines wake and sleep, rewards"}.get(phase, phase)


def _sentences(best: Split) -> list[str]:
    """Return the bytes of each role while devices train and while they generate, and the longest phase, of the fastest split."""
    states = best.peaks["rollout"] - sum(best.memory[role] for role in ENGINE)
    trained = _listed(best, set(best.memory) - set(ENGINE))
    tail = best.tail_seconds / best.rollout_seconds
    ends = f"; in {tail:.0%} of its time fewer than half of them are left" if tail >= 0.01 else ""
    return [
        f"GiB per device while training, {best.name}: {trained}; {best.peaks['training'] / GIB:.1f} in all.",
        f"While generating: {f'states of training {states / GIB:.1f}, ' * (states >= GIB / 20)}{_listed(best, set(ENGINE))}; "
        f"{best.peaks['rollout'] / GIB:.1f} in all.",
        f"Generation takes {figure(best.rollout_seconds)} s with {best.at_once:,} answers at once{ends}.",
        f"Training: {best.train_layout} ({best.framework}), {best.update_mfu:.0%} MFU in the update; generation: {best.rollout_layout}.",
    ]


def _listed(split: Split, roles: set[str]) -> str:
    return ", ".join(f"{role} {size / GIB:.1f}" for role, size in split.memory.items() if role in roles and size >= GIB / 20)


def verdict_view(verdict: RolloutVerdict, width: int, verbose: bool = False) -> RenderableType:
    """Return what `check` prints for a file of a program that trains on generated answers."""
    title = heading([f"{', '.join(verdict.files)}: {verdict.title} {verdict.version}", verdict.line], width)
    said = [one for one in verdict.facts if one.value is not None and (verbose or one.how == "said")]
    table = Table(
        [
            Column("it says", lambda one: one.fact.replace("_", " "), text=True),
            Column("value", lambda one: str(one.value), text=True),
            Column("key", lambda one: one.key, text=True, rank=2),
            Column("where", lambda one: one.where, text=True, rank=3),
        ],
        said,
    )  # fmt: skip
    found = [wrapped(f"{one.severity}: {one.message}", width, indent="  ") for one in verdict.findings]
    found += [wrapped(f"not predicted: {why}", width, indent="  ") for why in verdict.unknown]
    own = [rollout_view(verdict.plan, width)] if verdict.plan else []
    better = [wrapped(text, width) for text in verdict.better]
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in verdict.notes]
    return Group(paragraphs(title, [table.fitted(width)], found), *own, *better, *notes)
