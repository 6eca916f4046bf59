"""Explain in words why a layout won: the parts of the step that differ, the binding constraint, and what would change the answer."""

import math
from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.cost.axes import MODEL_CUTS, RECOMPUTE, SCHEDULES, Bounds, index, layout_name, parse
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_PARTS, TRAIN_WORDS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, peak
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.roofline import verdicts
from meshwise.plan.train import batches, recipes
from meshwise.plan.train.choice import Choice, Difference, choice, differences
from meshwise.plan.train.rules import broken
from meshwise.plan.train.search import Found, search
from meshwise.units import GIB, figure

MAX_PARTS_NAMED = 4  # parts of the step that a comparison names
NEGLIGIBLE_PERCENT = 0.05  # percent of throughput below which a change counts as no gain


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why the best layout of a plan won, against one other layout."""

    best: Choice
    other: Choice | None
    differences: tuple[Difference, ...]
    comparison: tuple[str, ...]  # how the two layouts differ, one sentence per line
    limits: tuple[str, ...]  # the limits of the best layout and what would change the answer, most important first

    def __repr__(self) -> str:
        other = f" against {self.other.name}" if self.other else ""
        return f"<Explanation of {self.best.name}{other}, {len(self.reasons)} sentences>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<ul>{''.join(f'<li>{escape(line.strip())}</li>' for line in self.reasons)}</ul>"

    @property
    def reasons(self) -> list[str]:
        """Every sentence."""
        return [*self.comparison, *self.limits]

    @property
    def highlights(self) -> list[str]:
        """The few sentences that matter most: the comparison in one line, and the first limits."""
        limits = [line for line in self.limits if not line.endswith("no gain.")]
        if self.other is None:
            return limits[:4]
        saved = [f"{row.gained:+.3g} s in {TRAIN_WORDS[row.part]}" for row in self.differences[:2]]
        percent = 100 * (self.other.step / self.best.step - 1)
        slower = f"is {percent:.1f}% slower" if percent >= 0.05 else "is as fast"
        first = f"{self.other.name} {slower}" + (f": {', '.join(saved)}." if saved else ".")
        return [first, *limits[:4]]

    def to_json(self) -> dict[str, Any]:
        parts = [{"part": d.part, "best": d.mine, "other": d.other} for d in self.differences]
        other = self.other.layout if self.other else None
        return {"best": self.best.layout, "other": other, "differences": parts, "reasons": self.reasons}

    def __str__(self) -> str:
        return "\n".join(self.reasons)


def explain(q: Question, choices: tuple[Choice, ...], bounds: Bounds, versus: str = "") -> Explanation:
    """Compare the best layout with the runner-up, or with the best layout that has the axes of `versus`."""
    best = choices[0]
    other = fastest_with(q, best, versus) if versus else runner_up(choices)
    rows = tuple(differences(best, other)) if other else ()
    return Explanation(best, other, rows, tuple(comparison(best, other, rows)), tuple(_limits(q, best, bounds)))


def runner_up(choices: tuple[Choice, ...]) -> Choice | None:
    """Return the best layout that cuts the model differently: near-ties explain nothing."""
    first = choices[0].layout
    for other in choices[1:]:
        if any(other.layout[axis] != first[axis] for axis in MODEL_CUTS):
            return other
    return choices[1] if len(choices) > 1 else None


def fastest_with(q: Question, best: Choice, text: str) -> Choice:
    """Return the fastest layout with the axes in `text`, on as many devices as the best one uses."""
    facts, axes = recipes.split_facts(text)
    q = recipes.changed(q, **facts) if facts else q
    bounds = parse(axes) if axes else {axis: (index(axis, value), index(axis, value)) for axis, value in best.layout.items()}
    found = _search(q, best, bounds)
    if len(found.layouts):
        return choice(q, found.layouts, found.cost, 0)
    if found.evaluated:
        room = q.chip.memory * (1 - q.work.reserve)
        raise DoesNotFit(
            f"{text} does not fit: the smallest of {found.evaluated:,} such layouts needs {found.smallest / GIB:.1f} GiB per device, but "
            f"only {room / GIB:.1f} GiB are free"
        )
    tried = _completed(q, best, {axis: least for axis, (least, _) in bounds.items()})
    rules = broken(q, tried)
    if int(tried.devices[0]) != best.devices:
        rules.insert(0, f"its axes multiply to {best.devices} devices")
    broken_rules = ", ".join(f"'{rule}'" for rule in rules or found.rejected)
    raise UserError(f"{text} cannot run: it breaks {broken_rules}")


def _search(q: Question, best: Choice, bounds: Bounds) -> Found:
    """Search for the fastest layout on as many devices as `best` uses."""
    return search(q, bounds=bounds, top=1, nodes=(best.devices // q.cluster.node.devices,))


def _better(q: Question, best: Choice, bounds: Bounds) -> Found:
    """Search as `_search` does for another question, without evaluating layouts that must be slower than `best` is there."""
    layouts = Layouts.from_row(best.layout)
    fits = peak(q, layouts)[0] <= q.chip.memory * (1 - q.work.reserve)
    limit = float(evaluate(q, layouts).step[0]) if fits else math.inf
    found = search(q, bounds=bounds, top=1, nodes=(best.devices // q.cluster.node.devices,), faster_than=limit)
    return found if len(found.layouts) or math.isinf(limit) else _search(q, best, bounds)


def _completed(q: Question, best: Choice, given: dict[str, int]) -> Layouts:
    """Return a layout with the given axes; the others are from the best layout, or else the simplest that the framework supports."""
    f = q.work.framework
    row = {axis: int(best.layout[axis]) for axis in ("tp", "pp", "cp", "mbs")} | given
    rest, over = divmod(best.devices, max(1, row["tp"] * row["pp"] * row["cp"] * row.get("dp_replicate", 1)))
    shard = row.get("dp_shard", row.pop("dp", 1 if over else rest))
    simple = {
        "dp_shard": shard, "zero": f.zero[0] if shard > 1 and f.zero else 0, "recompute": RECOMPUTE.index(f.recompute[0]),
        "sp": int(f.sequence_parallel == "always" and row["tp"] > 1),
        "schedule": SCHEDULES.index("interleaved" if row.get("vpp", 1) > 1 else f.schedules[0] if row["pp"] > 1 else "1f1b"),
    }  # fmt: skip
    return Layouts.of(**(simple | row))


def comparison(best: Choice, other: Choice | None, rows: tuple[Difference, ...]) -> list[str]:
    """Return how two layouts differ, one sentence per line: the step, and the parts that differ most."""
    if other is None:
        return []
    percent = 100 * (other.step / best.step - 1)
    lines = [f"{best.name} takes {figure(best.step, 4)} s, {other.name} {figure(other.step, 4)} s ({percent:+.1f}%)."]
    for row in rows[:MAX_PARTS_NAMED]:
        verb = "saves" if row.gained > 0 else "costs"
        words = TRAIN_WORDS[row.part]
        lines.append(f"  It {verb} {figure(abs(row.gained))} s in {words} ({figure(row.mine)} s against {figure(row.other)} s).")
    return lines


def _limits(q: Question, best: Choice, bounds: Bounds) -> list[str]:
    """List the limits of the best layout: memory, its largest parts, and the gain from twice the batch, network or memory."""
    first, second = sorted(TRAIN_PARTS, key=lambda part: -best.time.get(part, 0.0))[:2]
    shares = [
        f"{TRAIN_WORDS[part]} {100 * best.time[part] / best.step:.0f}% ({figure(best.time[part])} s)" for part in (first, second)
    ]
    parts = f"The largest parts of the step are {shares[0]} and {shares[1]}."
    return [
        *(f"With {line}." for line in batches.gains(q, bounds, best.tokens_per_second)),
        binding(q, best, bounds),
        *recipes.sentences(q, best.layout),
        *what_if(q, best, bounds),
        parts,
        *_rooflines(q, best),
    ]


def binding(q: Question, best: Choice, bounds: Bounds) -> str:
    """Return whether memory rules out a faster layout that half as much memory again would hold, and which."""
    free = _better(replace(q, work=replace(q.work, reserve=-0.5)), best, bounds)
    fastest = choice(q, free.layouts, free.cost, 0)
    over = fastest.peak - q.chip.memory * (1 - q.work.reserve)
    if fastest.step >= best.step * 0.995 or over <= 0:
        return "Memory is not a limit: no layout that needs up to half as much again would be faster."
    return (
        f"Memory is the limit: {fastest.name} would take {figure(fastest.step)} s, {100 * (1 - fastest.step / best.step):.0f}% less, "
        f"but needs {units.show(over, 'bytes', binary=True)} more per device than is free."
    )


def what_if(q: Question, best: Choice, bounds: Bounds) -> list[str]:
    """List the gains from twice the batch, network or memory, the largest first."""
    node = q.cluster.node
    larger = replace(q.chip, memory=2 * q.chip.memory)
    roomier = replace(q.cluster, nodes=((q.cluster.node_count, replace(node, chips=((node.devices, larger),))),))
    network = q.cluster.network and replace(q.cluster.network, bandwidth=2 * q.cluster.network.bandwidth)
    trials = {
        "twice the batch": replace(q, work=replace(q.work, batch=2 * q.work.batch)),
        "twice the network": replace(q, cluster=replace(q.cluster, network=network)) if network else None,
        "twice the memory": replace(q, cluster=roomier, chip=larger),
    }
    lines: dict[str, float] = {}
    for change, trial in trials.items():
        if trial is None:
            continue
        found = _better(trial, best, bounds)
        if not len(found.layouts):  # a larger batch keeps more micro-batches in flight
            lines[f"With {change}: nothing fits."] = 0.0
            continue
        other = choice(trial, found.layouts, found.cost, 0)
        gain = 100 * (other.tokens_per_second / best.tokens_per_second - 1)
        if abs(gain) < NEGLIGIBLE_PERCENT:
            lines[f"With {change}: no gain."] = 0.0
            continue
        winner = "the same layout" if other.name == best.name else layout_name(other.layout, short=True)
        lines[f"With {change}: {gain:+.1f}% tokens/s, {winner}."] = gain
    return sorted(lines, key=lambda line: -lines[line])


def _rooflines(q: Question, best: Choice) -> list[str]:
    """Return the roofline verdicts for the devices that the layout uses: with `--at-most`, possibly not all."""
    used = replace(q.cluster, nodes=((best.devices // q.cluster.node.devices, q.cluster.node),))
    return verdicts(q.model, used, float(q.work.batch_tokens), q.work.seq)
