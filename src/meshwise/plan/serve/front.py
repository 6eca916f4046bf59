"""The Pareto front of a deployment: tokens per second of one device against those of one user, over all layouts and numbers of users."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise.catalogue import records
from meshwise.cost.parts import SERVE_WORDS
from meshwise.cost.serve.passes.speed import Speed
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.output import Drawn
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import split_cost
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import Found, Option, search

USERS_TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """One layout at one number of concurrent users."""

    name: str
    users: int  # users of all replicas
    devices: int
    per_user: float  # tokens per second of one request after its first token
    per_device: float  # output tokens per second of one device, prompts included
    ttft: float
    part: str  # the largest part of a decode step, by its name in SERVE_PARTS
    bound: str  # `part` in words
    share: float  # its share of the step
    dollars_per_million_in: float | None
    dollars_per_million_out: float | None  # rent per million prompt and output tokens: each pays for the time that it takes


@dataclass(frozen=True, kw_only=True)
class Front(Drawn):
    """Points that no other one beats in both figures, the fastest for a user first."""

    ask: ServeAsk
    engine: str
    points: tuple[FrontPoint, ...]
    dominated: tuple[FrontPoint, ...]

    @property
    def command(self) -> str:
        return self.ask.command("--front")

    def rows(self) -> list[dict[str, Any]]:
        return [records.plain(point) for point in self.points]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "front", "ask": records.plain(self.ask), "engine": self.engine, "points": self.rows()}


def answer(ask: ServeAsk) -> Front:
    """Return the front over all layouts and numbers of users, of points that meet the targets. UserError where a load is stated."""
    if ask.users > 1 or ask.rate:
        raise UserError(f"--front tries every number of users: drop --{'rate' if ask.rate else 'users'}")
    q = lookup.question(ask)
    found = search(q)
    if not found.options:
        raise refuse(q, found)
    points = list(_points(q, found))
    if not points:
        raise refuse(q, found)
    best = nondominated(points)
    kept = {id(point) for point in best}
    return Front(ask=ask, engine=q.engine.name, points=tuple(best), dominated=tuple(p for p in points if id(p) not in kept))


def nondominated(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points for which no other has more tokens/s both per user and per device."""
    best: list[FrontPoint] = []
    for point in sorted(points, key=lambda point: (-point.per_user, -point.per_device)):
        if not best or point.per_device > best[-1].per_device:
            best.append(point)
    return best


def _points(q: ServeQuestion, found: Found) -> Iterator[FrontPoint]:
    """Yield every layout of one replica at every number of users that it runs at once. Replicas neither raise nor lower either figure."""
    price = q.cluster.rent / q.cluster.devices if q.cluster.rent is not None else None
    for option in found.options:
        if option.layout.replicas == 1:
            yield from _of_option(q, option, price)


def _of_option(q: ServeQuestion, option: Option, price: float | None) -> Iterator[FrontPoint]:
    assert option.cost
    devices = option.layout.devices
    for users in USERS_TRIED:
        load = replace(q.load, users=users)
        if users > max(1, option.most_users if q.runtime.paged else q.runtime.sequences):
            return
        limits = option.limits if q.runtime.paged else replace(option.limits, sequences=users)
        report = option.at(load, limits=limits, detailed=bool(q.targets))
        if report is None or not report.tpot.mean:
            return
        if q.targets.missed(report) > 1:
            continue
        work = replace(q.work, users=users)
        parts = option.cost.decode(work)
        name = max(parts, key=lambda part: parts[part])
        speed = Speed(parts, option.cost.prefill(work), users, work.prompt)
        total = price * devices / report.output_rate * 1e6 if price is not None else None
        prompts, outputs = split_cost(load, total, speed) if total is not None else (None, None)
        yield FrontPoint(
            name=option.layout.name, users=users, devices=devices, per_user=1 / report.tpot.mean,
            per_device=report.output_rate / devices, ttft=report.ttft.mean, part=name, bound=SERVE_WORDS[name],
            share=parts[name] / sum(parts.values()), dollars_per_million_in=prompts, dollars_per_million_out=outputs,
        )  # fmt: skip
