"""Energy of replayed traffic: what copies draw in steps, in prompts and while they wait, and its carbon by hour of the day."""

from collections.abc import Sequence
from dataclasses import replace

from meshwise.catalogue.power import intensity
from meshwise.cost.power import Energy
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.serve.energy import Work, spent
from meshwise.replay.deployment import Deployment
from meshwise.replay.engine.clock import Clock, Pool
from meshwise.replay.engine.record import WINDOWS, Record
from meshwise.replay.traces.facts import TraceFacts

HOUR, MIN_SECONDS = 3600.0, 1e-9


def energy_of(ask: EnergyAsk, deployment: Deployment, facts: TraceFacts, clock: Clock) -> Energy | None:
    """Return the power and the energy of all copies while they are paid for; None where a chip states no power limit."""
    record = clock.record
    pools = [clock.outputs, *([clock.prompts] if clock.prompts else [])]
    computed = record.prompt - record.reused
    work = [_work(clock, pool, facts, computed if pool is pools[-1] else 0) for pool in pools]

    def drawn(work: Sequence[Work]) -> Energy | None:
        return spent(ask, deployment.question, deployment.option, work, max(record.last, MIN_SECONDS))

    whole, waiting = drawn(work), drawn([replace(one, decoding=0.0, prompting=0.0) for one in work])
    grid = intensity(ask.grid)
    if whole is None or waiting is None or len(set(grid)) < 2:
        return whole
    mean = _by_hour(record, waiting.wall / whole.wall, grid)
    return replace(whole, grams=((whole.kwh or 0.0) * mean, *whole.grams[1:]))


def _work(clock: Clock, pool: Pool, facts: TraceFacts, computed: int) -> Work:
    """Return what the copies of a pool did; `computed`: tokens of prompts that it read."""
    copies = [*pool.gone, *(slot.copy for slot in pool.slots)]
    stepping, mixing = sum(copy.stepping for copy in copies), sum(copy.mixing for copy in copies)
    steps = max(1, sum(copy.stepped for copy in copies))
    return Work(
        decoding=stepping, prompting=mixing, seconds=max(MIN_SECONDS, clock.paid(pool)),
        users=sum(copy.decoded for copy in copies) / steps, step=max(MIN_SECONDS, stepping / steps),
        context=facts.prompt.mean + facts.output.mean / 2, prompt_rate=computed / mixing if mixing else 0.0,
    )  # fmt: skip


def _by_hour(record: Record, waiting: float, grid: Sequence[float]) -> float:
    """Return the grams per kWh of the hours of a trace from midnight, weighted by `waiting` copies and by the requests that run."""
    hours = [int((i + 0.5) * record.seconds / WINDOWS / HOUR) % len(grid) for i in range(WINDOWS)]
    copies, running = (
        [getattr(window, name) / max(1, window.samples) for window in record.windows] for name in ("copies", "running")
    )
    sums = sum(copies) or 1.0, sum(running) or 1.0
    shares = [waiting * one / sums[0] + (1 - waiting) * two / sums[1] for one, two in zip(copies, running, strict=True)]
    return sum(share * grid[hour] for share, hour in zip(shares, hours, strict=True)) / (sum(shares) or 1.0)
