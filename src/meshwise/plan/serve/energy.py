"""Power of a served layout, from the bytes and FLOPs of its passes, and the energy of a million output tokens."""

from meshwise.catalogue.power import power_of
from meshwise.cost.power import JOULES_PER_KWH, WAITING, Activity, Energy, device_watts, node_watts, slowdown
from meshwise.cost.serve.passes.speed import peak_flops
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.energy import energy
from meshwise.plan.serve.option import Option


def served(ask: EnergyAsk, q: ServeQuestion, option: Option) -> Energy | None:
    """Return the power of all replicas at the load, and the energy of a million output tokens. None if a chip states no limit."""
    chips = [q.cards[i].chip for i in option.layout.cards]
    if not all(chip.tdp for chip in chips) or not option.throughput or option.speed is None:
        return None
    decode, prompt = _decode(q, option), _prefill(q, option)
    busy = _prompt_share(option)
    watts = walls = whole = 0.0
    slower: list[float] = []
    for chip, now, first in zip(chips, decode, prompt, strict=True):
        power, tdp = power_of(chip), chip.tdp or 0.0
        limit = min(tdp, ask.power_limit or tdp)
        each = (1 - busy) * device_watts(power, limit, now, tdp) + busy * device_watts(power, limit, first, tdp)
        whole += (1 - busy) * device_watts(power, tdp, now) + busy * device_watts(power, tdp, first)
        slower.append((1 - busy) * slowdown(power, tdp, limit, now) + busy * slowdown(power, tdp, limit, first))
        watts += each
        walls += node_watts(chip, 1, each) if len(chips) == 1 or chip.network else each
    if len(chips) > 1 and not chips[0].network:
        walls = node_watts(chips[0], len(chips), watts / len(chips)) * max(1, option.layout.hosts)
    copies = option.layout.devices / len(chips)
    late = max(slower)
    wall = walls * copies * ask.pue
    kwh = wall * late / option.throughput * 1e6 / JOULES_PER_KWH
    return energy(ask, chips[0], watts * copies, wall, late, 1 - watts * late / whole if whole else 0.0, kwh)


def _decode(q: ServeQuestion, option: Option) -> list[Activity]:
    """Return what each device does in decode steps. Stages of a pipeline with one request take turns."""
    assert option.cost
    assert option.speed
    found: list[Activity] = []
    users, step = option.speed.users, option.speed.step
    context = q.work.depth + q.work.prompt + q.work.output / 2
    for stage in option.cost.d.stages:
        task = stage[0]
        windows = [min(context, window) if window else context for window in option.cost.d.windows]
        cached = users * (sum(read * tokens for read, tokens in zip(task.reads, windows, strict=True)) + task.state)
        moved = task.weights + task.head + task.reached_bytes(users) + cached
        peak = peak_flops(task.chip, q.weights.format, int8_products=q.runtime.int8_products)
        flops = users * (task.flops + task.head_flops) / step / peak
        found += [Activity(flops, moved / step / task.chip.bandwidth)] * (len(option.layout.cards) // len(option.cost.d.stages))
    return found + [WAITING] * (len(option.layout.cards) - len(found))


def _prefill(q: ServeQuestion, option: Option) -> list[Activity]:
    """Return what each device does in prompts."""
    assert option.cost
    assert option.speed
    found: list[Activity] = []
    seconds = option.speed.prefill_seconds
    for stage in option.cost.d.stages:
        task = stage[0]
        peak = peak_flops(task.chip, q.weights.format, int8_products=q.runtime.int8_products)
        flops = q.work.prompt * task.flops / seconds / peak if seconds else 0.0
        found += [Activity(min(1.0, flops), 0.2)] * (len(option.layout.cards) // len(option.cost.d.stages))
    return found + [WAITING] * (len(option.layout.cards) - len(found))


def _prompt_share(option: Option) -> float:
    """Return the share of time in which prompts are computed."""
    assert option.speed
    rate = option.speed.prefill_tokens_per_second
    return min(1.0, option.input_rate / option.layout.replicas / rate) if rate else 0.0
