"""Deployment: a planned layout as the fleet that a simulation runs, with its price, power and interval."""

import math
from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.catalogue.calibrations import choose_serve
from meshwise.cost.serve.memory.cache import cached_rows
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.formats import split_model_name
from meshwise.plan.ask import ServeAsk
from meshwise.plan.fields import spec
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import doubts, rent_of, spread_of
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import Option, search
from meshwise.replay.ask import ReplayAsk, copies_of
from meshwise.replay.engine import policy as policies
from meshwise.replay.engine.cache import NO_TIERS, Tiers
from meshwise.replay.engine.clock import Engine, Fleet
from meshwise.replay.engine.copy import Shape
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.facts import TraceFacts

START_SECONDS = 30.0
LOAD_BANDWIDTH = 1e9
"""Seconds of an engine's start besides its weights, and bytes per second at which these are read. Both are assumptions, not measured: a
container's start and network storage vary by ten times; --start-up states your own."""
MAX_SPREAD = 5.0  # largest spread of lengths that a question takes


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A layout of a question, and what its copies cost."""

    ask: ServeAsk  # the question of one load that it answers best
    question: ServeQuestion
    option: Option
    spread: float  # standard deviation of ln(predicted / measured) seconds of a pass
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.option.layout.name

    @property
    def devices(self) -> int:
        """Devices of one copy that generates."""
        return len(self.option.layout.cards)

    @property
    def rent(self) -> float | None:
        """Dollars per second of one device."""
        paid = rent_of(self.question, self.option.layout)
        return paid / self.option.layout.devices if paid is not None else None

    @property
    def start_up(self) -> float:
        """Seconds until a new copy serves, where none are given."""
        return START_SECONDS + self.question.weights.bytes / LOAD_BANDWIDTH

    @property
    def token_bytes(self) -> float:
        """Bytes of the cache of one token of one copy."""
        q = self.question
        return float(sum(row.kv for row in cached_rows(q.model, q.runtime, q.cache_request(1, 1))))


def of_plan(plan: ServePlan) -> Deployment:
    """Return the best layout of a saved plan."""
    ask = replace(plan.ask, measured=0.0, engine=plan.engine, context=plan.context)
    return deployed(ask, plan.best.name)


def of_words(ask: ReplayAsk, facts: TraceFacts) -> Deployment:
    """Return the best layout for the mean of a trace: its lengths and its rate."""
    if not ask.model:
        raise UserError("missing PLAN or MODEL: a plan.json of 'meshwise serve --out plan.json', or a model with --on")
    model = find.find_model(split_model_name(ask.model)[0])
    context = ask.context or min(facts.longest, model.decoder.context or facts.longest)
    output = max(1, min(round(facts.output.mean), context - 1))
    words: dict[str, Any] = {name: getattr(ask, name) for name in spec(ServeAsk)} | {
        "rate": facts.rate if math.isfinite(facts.rate) else 1.0, "users": 1, "lengths": "", "context": context,
        "prompt": max(1, min(round(facts.prompt.mean), context - output)), "prompt_spread": min(MAX_SPREAD, facts.prompt.spread),
        "output": output, "output_spread": min(MAX_SPREAD, facts.output.spread), "cheapest": False, "measured": 0.0,
    }  # fmt: skip
    return deployed(ServeAsk(**words))


def deployed(ask: ServeAsk, name: str = "") -> Deployment:
    """Return the best layout of a question, or the one of this name. Where none serves the rate, the one that serves most."""
    q = lookup.question(ask)
    found = search(q)
    if not found.options:
        raise refuse(q, found)
    best = next((one for one in found.options if one.layout.name == name), found.options[0])
    if best.report is None and not name:
        best = max(found.options, key=lambda one: one.highest(q.load) * one.layout.replicas)
    notes = [f"{doubt}: the interval is wider" for doubt in doubts(q, best)]
    if name and best.layout.name != name:
        notes.append(f"the plan's layout {name} is not one of this version: {best.layout.name} is replayed")
    return Deployment(ask=ask, question=q, option=best, spread=spread_of(q, best), notes=tuple(notes))


def fleet(deployment: Deployment, ask: ReplayAsk, facts: TraceFacts, *, scale: float = 1.0, copies: int = 0) -> Fleet:
    """Return the fleet of a deployment as a question wants it. `scale`: factor on the seconds of all passes."""
    q, option = deployment.question, deployment.option
    low, high = copies_of(ask.copies)
    layout, load = option.layout, q.load
    shape = Shape(gained=load.gained, draft=load.draft, depth=load.depth, prefix=0.0 if facts.block else load.prefix)
    assert option.cost
    limits = replace(option.limits, tokens=ask.chunk) if ask.chunk else option.limits
    block = facts.block if ask.prefix_cache and q.runtime.prefixes else 0
    tiers = _tiers(deployment, ask, facts.block) if block else NO_TIERS
    own = Engine(
        times=PassTimes(option.cost, load.draft, scale), limits=limits, shape=shape, block=block, tiers=tiers,
        longest=q.work.context,
    )  # fmt: skip
    number = copies or low or layout.replicas
    whole = Fleet(
        engine=own, copies=number, router=ask.router, start_up=ask.start_up or deployment.start_up, mtbf=ask.mtbf, seed=ask.seed
    )  # fmt: skip
    if option.pool is None or layout.prefill is None:
        if not ask.autoscale:
            return whole
        return replace(whole, policy=policies.read(ask.autoscale, least=low, most=high, interval=ask.look, cooldown=ask.cooldown))
    if ask.autoscale:
        raise UserError(f"--autoscale: {layout.name} has pools for prompts and outputs, whose numbers it does not change")
    prompts = replace(
        own, times=PassTimes(option.pool.cost, 0, scale), limits=option.pool.limits, shape=replace(shape, gained=1.0, draft=0)
    )
    per_output = layout.prefill.replicas / layout.replicas
    return replace(
        whole, prompts=prompts, prompt_copies=max(1, round(number * per_output)),
        token_seconds=scale * option.pool.transfer / max(1.0, load.prompt.mean),
    )  # fmt: skip


def _tiers(deployment: Deployment, ask: ReplayAsk, block: int) -> Tiers:
    """Return the tiers behind the device: blocks that fit, and the seconds to load one over the host's link or from its disk."""
    if not ask.host_cache and not ask.disk_cache:
        return NO_TIERS
    q, size = deployment.question, deployment.token_bytes * block
    chip = q.cards[deployment.option.layout.cards[0]].chip
    link = chip.host
    if link is None:
        raise UserError(f"--host-cache: the catalogue has no link of {chip.name} to its host")
    rate = link.bandwidth * choose_serve(chip, q.runtime.key or q.runtime.engine).link * deployment.devices
    slowest = min(rate, ask.disk_bandwidth)
    return Tiers(int(ask.host_cache // size), int(ask.disk_cache // size), size / rate, size / slowest)


def described(deployment: Deployment) -> str:
    """Return the model, the engine and the layout in words."""
    q = deployment.question
    context = units.show(float(q.work.context), "length", digits=2)
    return f"{q.model.name} in {q.weights.format} with {q.engine.name} on {q.cluster.name}: {deployment.name}, context {context}"
