"""Why this layout: the parts that differ, the constraint that binds, and what would change the answer, in words."""

from dataclasses import dataclass, replace

from meshwise import units
from meshwise.cost.layout import RECOMPUTE, SCHEDULES, Layouts, name_of, parse_axes
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import PARTS
from meshwise.errors import UserError
from meshwise.plan.roofline import verdicts
from meshwise.plan.train.choice import Choice, DoesNotFit, choice
from meshwise.plan.train.rules import broken
from meshwise.plan.train.search import Bounds, Found, search
from meshwise.units import GIB

WORDS = {
    "matmul": "matrix products",
    "attention": "attention",
    "elementwise": "norms, activations and loss",
    "recompute": "repeating the forward pass",
    "tp": "tensor-parallel all-reduces",
    "cp": "passing keys and values round",
    "ep": "sending tokens to experts",
    "launch": "waiting for the host",
    "p2p": "sending between stages",
    "bubble": "idle pipeline stages",
    "dp": "reducing gradients and gathering weights",
    "optimizer": "the optimizer",
    "offload": "moving state to the host",
    "fixed": "the fixed cost of a step",
}


@dataclass(frozen=True)
class Difference:
    """A part of the step in two layouts."""

    part: str
    mine: float
    other: float

    @property
    def gained(self) -> float:
        return self.other - self.mine


def differences(mine: Choice, other: Choice) -> list[Difference]:
    """The parts in which two layouts differ by more than a thousandth of the step, largest first."""
    rows = [Difference(part, mine.time_parts.get(part, 0.0), other.time_parts.get(part, 0.0)) for part in PARTS]
    return sorted((row for row in rows if abs(row.gained) > 1e-3 * mine.seconds), key=lambda row: -abs(row.gained))


def versus(q: Question, best: Choice, text: str) -> Choice:
    """The layout a user has in mind: what they name, and the best choice of what they leave open."""
    bounds = parse_axes(text)
    found = _as_large(q, best, bounds)
    if len(found.layouts):
        return choice(q, found.layouts, found.cost, 0)
    if found.priced:
        room = q.chip.memory * (1 - q.work.reserve)
        raise DoesNotFit(
            f"{text} does not fit: the leanest of {found.priced:,} such layouts needs {found.smallest / GIB:.1f} GiB a device, and "
            f"{room / GIB:.1f} GiB are free"
        )
    tried = _completed(q, best, {axis: least for axis, (least, _) in bounds.items()})
    rules = broken(q, tried)
    if int(tried.devices[0]) != best.devices:
        rules.insert(0, f"its axes multiply to {best.devices} devices")
    raise UserError(f"{text} cannot run; rules it breaks: {'; '.join(rules or found.rejected)}")


def _as_large(q: Question, best: Choice, bounds: Bounds) -> Found:
    """The fastest layout on as many devices as the best one has."""
    return search(q, bounds=bounds, top=1, nodes=(best.devices // q.cluster.node.devices,))


def _completed(q: Question, best: Choice, given: dict[str, int]) -> Layouts:
    """What a user names, cut as the best layout is where they leave it open, and else as simple as the framework lets it be."""
    f = q.work.framework
    row = {axis: int(best.layout[axis]) for axis in ("tp", "pp", "cp", "mbs")} | given
    rest, over = divmod(best.devices, max(1, row["tp"] * row["pp"] * row["cp"] * row.get("dp_replicate", 1)))
    shard = row.get("dp_shard", row.pop("dp", 1 if over else rest))
    plain = {
        "dp_shard": shard,
        "zero": f.zero[0] if shard > 1 and f.zero else 0,
        "recompute": RECOMPUTE.index(f.recompute[0]),
        "sp": int(f.sequence_parallel == "always" and row["tp"] > 1),
        "schedule": SCHEDULES.index("interleaved") if row.get("vpp", 1) > 1 else 0,
    }
    return Layouts.of(**(plain | row))


def binding(q: Question, best: Choice, bounds: Bounds) -> str:
    """Whether memory kept a faster layout out, and which."""
    free = _as_large(replace(q, work=replace(q.work, reserve=-1e9)), best, bounds)
    fastest = choice(q, free.layouts, free.cost, 0)
    if fastest.seconds >= best.seconds * 0.995:
        return "Memory binds nothing: no layout that does not fit would be faster."
    over = fastest.memory - q.chip.memory * (1 - q.work.reserve)
    return (
        f"Memory binds: {name_of(fastest.layout)} would take {fastest.seconds:.3g} s, "
        f"{100 * (1 - fastest.seconds / best.seconds):.0f}% less, "
        f"but needs {units.show(over, 'bytes', binary=True)} more per device than there is."
    )


def what_if(q: Question, best: Choice, bounds: Bounds) -> list[str]:
    """What twice the batch, network or memory would change."""
    chip = q.chip
    node = q.cluster.node
    larger = replace(chip, memory=2 * chip.memory)
    roomier = replace(q.cluster, nodes=((q.cluster.node_count, replace(node, chips=((node.devices, larger),))),))
    network = q.cluster.network and replace(q.cluster.network, bandwidth=2 * q.cluster.network.bandwidth)
    trials = {
        "twice the batch": replace(q, work=replace(q.work, batch=2 * q.work.batch)),
        "twice the network": replace(q, cluster=replace(q.cluster, network=network)) if network else None,
        "twice the memory": replace(q, cluster=roomier, chip=larger),
    }
    lines: list[str] = []
    for what, trial in trials.items():
        if trial is None:
            continue
        found = _as_large(trial, best, bounds)
        if not len(found.layouts):  # a larger batch keeps more micro-batches in flight
            lines.append(f"With {what}: nothing fits.")
            continue
        other = choice(trial, found.layouts, found.cost, 0)
        gain = 100 * (other.tokens_per_second / best.tokens_per_second - 1)
        same = name_of(other.layout) == name_of(best.layout)
        then = "the same layout" if same else name_of(other.layout)
        lines.append(f"With {what}: {gain:+.1f}% tokens/s, {then}.")
    return lines


def reasons(q: Question, best: Choice, other: Choice | None, bounds: Bounds) -> list[str]:
    """The whole explanation, a sentence a line."""
    lines: list[str] = []
    if other is not None:
        percent = 100 * (other.seconds / best.seconds - 1)
        lines.append(
            f"{name_of(best.layout)} takes {best.seconds:.4g} s, {name_of(other.layout)} {other.seconds:.4g} s ({percent:+.1f}%)."
        )
        for row in differences(best, other)[:4]:
            verb = "saves" if row.gained > 0 else "costs"
            lines.append(
                f"  It {verb} {abs(row.gained):.3g} s in {WORDS[row.part]} ({row.mine:.3g} s against {row.other:.3g} s)."
            )
    largest = max((part for part in PARTS if part not in ("matmul",)), key=lambda part: best.time_parts.get(part, 0.0))
    share = 100 * best.time_parts["matmul"] / best.seconds
    lines.append(
        f"{share:.0f}% of the step is matrix products; the largest other part is {WORDS[largest]}, {best.time_parts[largest]:.3g} s."
    )
    return [*lines, binding(q, best, bounds), *what_if(q, best, bounds), *_rooflines(q, best)]


def _rooflines(q: Question, best: Choice) -> list[str]:
    """Of the devices that the layout has, which `--at-most` may have made fewer."""
    used = replace(q.cluster, nodes=((best.devices // q.cluster.node.devices, q.cluster.node),))
    return verdicts(q.model, used, float(q.work.batch_tokens), q.work.seq)


def runner_up(plan_choices: tuple[Choice, ...]) -> Choice | None:
    """The best layout that cuts the model in another way: near-ties explain nothing."""
    first = plan_choices[0].layout
    for other in plan_choices[1:]:
        if any(other.layout[axis] != first[axis] for axis in ("tp", "pp", "cp", "ep")):
            return other
    return plan_choices[1] if len(plan_choices) > 1 else None
