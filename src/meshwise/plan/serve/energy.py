"""Power of a served layout, from the bytes and FLOPs of its passes, and the energy of a million output tokens or of replayed traffic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.power import power_of
from meshwise.cost.power import JOULES_PER_KWH, WAITING, Activity, Energy, device_watts, node_watts, slowdown
from meshwise.cost.serve.passes.speed import PassCost, peak_flops
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.energy import energy
from meshwise.plan.serve.option import Option

Doing = tuple[Activity, Activity]  # what a device does in decode steps, and in prompts
PROMPT_BANDWIDTH = 0.2  # share of the memory's bandwidth that prompts use


@dataclass(frozen=True, kw_only=True)
class Work:
    """What equal copies do: seconds of all of them together, in decode steps, in prompts, and in all."""

    decoding: float
    prompting: float
    seconds: float
    users: float  # requests in a decode step
    step: float  # seconds of it
    context: float  # tokens in the cache of a request
    prompt_rate: float  # prompt tokens per second of one copy while it computes prompts


def served(ask: EnergyAsk, q: ServeQuestion, option: Option) -> Energy | None:
    """Return the power of all replicas at the load, and the energy of a million output tokens. None if a chip states no limit."""
    speed, report, layout = option.speed, option.report, option.layout
    if not option.throughput or speed is None or report is None:
        return None
    span, rate = 1e6 / option.throughput, speed.prefill_tokens_per_second
    first = layout.prefill or layout
    prompts = min(first.replicas, option.input_rate / rate) if rate else 0.0
    busy = layout.replicas * report.running / speed.users
    work = Work(
        decoding=span * busy, prompting=span * prompts, seconds=span * layout.replicas, users=speed.users, step=speed.step,
        context=q.work.depth + q.work.prompt + q.work.output / 2, prompt_rate=rate,
    )  # fmt: skip
    if layout.prefill is None:
        work = replace(work, decoding=min(work.decoding, work.seconds - work.prompting))
        return spent(ask, q, option, [work], span)
    apart = replace(work, decoding=0.0, seconds=span * layout.prefill.replicas)
    return spent(ask, q, option, [replace(work, prompting=0.0), apart], span)


def spent(ask: EnergyAsk, q: ServeQuestion, option: Option, pools: Sequence[Work], span: float) -> Energy | None:
    """Return the mean power and the energy of copies that generate, and of those that only compute prompts where there are any, over
    `span` seconds. None if a chip states no limit."""
    layout = option.layout
    kinds = [(option.cost, layout.cards, max(1, layout.hosts))]
    kinds += [(option.pool.cost, layout.prefill.cards, 1)] if option.pool and layout.prefill else []
    wall = joules = usual = 0.0
    slower, longer = [1.0], [1.0]
    for (cost, cards, hosts), work in zip(kinds, pools, strict=True):
        chips = [q.cards[i].chip for i in cards]
        if cost is None or not all(chip.tdp for chip in chips):
            return None
        doing = _doing(q, cost, chips, work)
        late = _limited(chips, doing, work, ask.power_limit)
        drawn = _drawn(chips, doing, late, ask.power_limit)
        slower.append((late.decoding + late.prompting) / ((work.decoding + work.prompting) or 1.0))
        longer.append(late.seconds / work.seconds)
        wall += _at_the_wall(chips, [one / late.seconds for one in drawn], hosts) * late.seconds * ask.pue
        joules += sum(drawn)
        usual += sum(_drawn(chips, doing, work))
    span *= max(longer)
    chip, saved = q.cards[layout.cards[0]].chip, 1 - joules / usual if usual else 0.0
    return energy(ask, chip, joules / span, wall / span, max(slower), saved, wall / JOULES_PER_KWH)


def _limited(chips: Sequence[Chip], doing: Sequence[Doing], work: Work, power_limit: float) -> Work:
    """Return the seconds under a power limit: of passes by the slowest device, and of all where passes no longer fit into them."""
    limits = [(power_of(chip), chip.tdp or 0.0, power_limit or chip.tdp or 0.0) for chip in chips]
    decoding = work.decoding * max(slowdown(*limit, now) for limit, (now, _) in zip(limits, doing, strict=True))
    prompting = work.prompting * max(slowdown(*limit, first) for limit, (_, first) in zip(limits, doing, strict=True))
    return replace(work, decoding=decoding, prompting=prompting, seconds=max(work.seconds, decoding + prompting))


def _drawn(chips: Sequence[Chip], doing: Sequence[Doing], work: Work, power_limit: float = 0.0) -> list[float]:
    """Return the joules of each device of a copy."""
    waits = max(0.0, work.seconds - work.decoding - work.prompting)
    found: list[float] = []
    for chip, (now, first) in zip(chips, doing, strict=True):
        tdp = chip.tdp or 0.0
        parts = ((work.decoding, now), (work.prompting, first), (waits, WAITING))
        limit = min(tdp, power_limit or tdp)
        found.append(sum(seconds * device_watts(power_of(chip), limit, one, tdp) for seconds, one in parts))
    return found


def _at_the_wall(chips: Sequence[Chip], watts: Sequence[float], hosts: int) -> float:
    """Return the watts at the wall of one copy: servers are shared between copies, a desktop is one copy's own."""
    if len(chips) == 1 or chips[0].network:
        return sum(node_watts(chip, 1, each) for chip, each in zip(chips, watts, strict=True))
    return node_watts(chips[0], len(chips), sum(watts) / len(chips)) * hosts


def _doing(q: ServeQuestion, cost: PassCost, chips: Sequence[Chip], work: Work) -> list[Doing]:
    """Return what each device does in decode steps and in prompts. Stages of a pipeline with one request take turns."""
    found: list[Doing] = []
    windows = [min(work.context, window) if window else work.context for window in cost.d.windows]
    for stage in cost.d.stages:
        task = stage[0]
        cached = work.users * (sum(read * tokens for read, tokens in zip(task.reads, windows, strict=True)) + task.state)
        moved = task.weights + task.head + task.reached_bytes(work.users) + cached
        peak = peak_flops(task.chip, q.weights.format, int8_products=q.runtime.int8_products)
        flops = work.users * (task.flops + task.head_flops) / work.step / peak
        first = Activity(min(1.0, work.prompt_rate * task.flops / peak), PROMPT_BANDWIDTH)
        now = Activity(flops, moved / work.step / task.chip.bandwidth)
        found += [(now, first)] * (len(chips) // len(cost.d.stages))
    return found + [(WAITING, WAITING)] * (len(chips) - len(found))
