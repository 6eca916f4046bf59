"""A trace at an endpoint beside the same requests in the simulation, percentile by percentile."""

from collections.abc import Sequence
from typing import Any

from meshwise.cost.serve.load.requests import percentiles
from meshwise.errors import UserError
from meshwise.replay import deployment as deployments
from meshwise.replay.answer import Setting as ReplaySetting
from meshwise.replay.answer import answer
from meshwise.replay.ask import ReplayAsk
from meshwise.replay.traces.facts import facts
from meshwise.replay.traces.request import Request
from meshwise.replay.traces.trace import of_requests
from meshwise.run.bench.traced import Answered, Traced
from meshwise.run.serve.deployment import Deployment

TIMES, PARTS = ("ttft", "tpot", "e2e"), ("p50", "p95", "p99")

Row = dict[str, Any]


def measured(answered: Sequence[Answered]) -> dict[str, Any]:
    """Return the percentiles of what was measured, by name."""
    per_token = [(one.e2e - one.ttft) / (one.output - 1) for one in answered if one.output > 1]
    return {
        "ttft": percentiles([one.ttft for one in answered]), "tpot": percentiles(per_token),
        "e2e": percentiles([one.e2e for one in answered]),
    }  # fmt: skip


def compare(planned: Deployment, traced: Traced, block: int) -> list[Row]:
    """Return percentiles, measured and simulated with the interval, for the answered requests as sent, with the endpoint's counts."""
    rows = sorted(traced.answered, key=lambda one: one.at)
    requests = [Request(one.at, max(1, one.prompt), max(1, one.output), one.blocks) for one in rows]
    trace = of_requests(requests, "what was sent", block=block)
    ask = ReplayAsk(model=planned.ask.model, trace="trace")
    deployment = deployments.deployed(planned.ask, planned.layout.name)
    try:
        replayed = answer(ReplaySetting(ask, trace, facts(trace, reuse=False), deployment))
    except UserError:  # a plan that no version of today can place
        return []
    seen = measured(traced.answered)
    found: list[Row] = []
    for name in TIMES:
        for part in PARTS:
            low, high = replayed.interval(name, part)
            simulated = getattr(replayed.figures, name).at(part)
            found.append(
                {"figure": name, "part": part, "measured": seen[name].at(part), "simulated": simulated, "low": low, "high": high}
            )
    cached, every = sum(one.cached for one in rows), sum(one.prompt for one in rows)
    if cached or replayed.figures.hits:
        low, high = replayed.interval("hits")
        shares = {"measured": cached / max(1, every), "simulated": replayed.figures.hits, "low": low, "high": high}
        found.append({"figure": "hits", "part": "mean", **shares})
    return found


def lines(traced: Traced) -> list[str]:
    """Return what was sent, in sentences."""
    said = [
        f"{traced.sent:,} requests sent, {len(traced.answered):,} answered; the client was at most {1e3 * traced.late:.0f} ms late"
    ]
    if traced.skipped:
        said.append(f"{traced.skipped:,} requests were not sent because too many were open (--at-once)")
    return said


def rows(answered: Sequence[Answered]) -> list[Row]:
    """Return one row per request."""
    return [
        {
            "seconds": round(one.at, 6),
            "prompt": one.prompt,
            "output": one.output,
            "cached": one.cached,
            "ttft": one.ttft,
            "e2e": one.e2e,
        }
        for one in answered
    ]
