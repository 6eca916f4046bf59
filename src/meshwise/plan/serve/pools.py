"""Layouts with pools of their own for prompts and for outputs (xPyD), out of layouts of single replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise.catalogue.calibrations import choose_serve
from meshwise.cost.serve.load.estimate import highest_rate
from meshwise.cost.serve.load.pools import PromptPool, most_prompts, outputs_of, transfer_seconds
from meshwise.cost.serve.memory.cache import cached_rows
from meshwise.cost.serve.passes.links import latency
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.serve.option import Option

PAIRS_EVALUATED = 6  # pairs of pools that are evaluated at the load, those with the highest rates first


def pooled_options(q: ServeQuestion, singles: Sequence[Option]) -> Iterator[Option]:
    """Yield the most promising pairs of pools. They are tried where latencies have targets, which prompts beside outputs may miss, and
    where --fix prefill asks for them: without targets, a replica that computes both wastes no device on the slower pool. `singles`:
    options of one replica, with their costs."""
    wanted = int(q.bounds.get("prefill", 0))
    if not q.engine.disaggregates or not (q.targets or wanted) or not q.load.prompt.mean or len(q.cards) < 2:
        return
    usable = [one for one in singles if one.cost and one.layout.replicas == 1 and one.layout.hosts == 1 and one.layout.pp == 1]
    rates = {id(one): _rates(q, one) for one in usable}
    pairs: list[tuple[float, Option]] = []
    for prompts in usable:
        for outputs in usable:
            for x, y in _counts(q, len(prompts.layout.cards), len(outputs.layout.cards)):
                if wanted in (0, x) and not prompts.layout.apart:
                    rate = min(x * rates[id(prompts)][0], y * rates[id(outputs)][1])
                    pairs.append((rate, _pair(q, prompts, outputs, x, y)))
    pairs.sort(key=lambda pair: (-pair[0], pair[1].layout.devices))
    yield from (option for rate, option in pairs[:PAIRS_EVALUATED] if rate)


def _rates(q: ServeQuestion, option: Option) -> tuple[float, float]:
    """Return the most prompts and the most outputs per second of one replica."""
    assert option.cost
    prompts = most_prompts(option.cost, q.load, option.limits)
    return prompts, highest_rate(option.cost, outputs_of(q.load, 1.0), option.limits)


def _counts(q: ServeQuestion, prompts: int, outputs: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of replicas of both pools that use as many devices as there are; a replica does not span hosts."""
    hosts = [sum(card.host == host for card in q.cards) for host in range(q.cards[-1].host + 1)]
    if len(hosts) > 1:
        hosts = [size for size in hosts if size % prompts == 0 and size % outputs == 0]
    total, fixed = sum(hosts), int(q.bounds.get("replicas", 0))
    for x in range(1, max(0, total - outputs) // prompts + 1):
        y = (total - x * prompts) // outputs
        if fixed <= y:
            yield x, fixed or y


def _pair(q: ServeQuestion, prompts: Option, outputs: Option, x: int, y: int) -> Option:
    """Return an option of `x` replicas for prompts and `y` replicas for outputs."""
    assert prompts.cost
    first = replace(prompts.layout, replicas=x)
    pool = PromptPool(prompts.cost, prompts.limits, x / y, _transfer(q, prompts, outputs))
    layout = replace(outputs.layout, replicas=y, prefill=first)
    return replace(outputs, layout=layout, pool=pool, most_users=outputs.most_users * y)


def _transfer(q: ServeQuestion, prompts: Option, outputs: Option) -> float:
    """Return the seconds in which the cache of a prompt goes from one pool to the other: over the link of a host, or the network."""
    rows = cached_rows(q.model, q.runtime, q.cache_request(1, 1))
    chip, hosts = q.cards[0].chip, q.cards[-1].host
    link = q.cluster.network if hosts else q.cluster.node.link or chip.host
    if link is None:
        return transfer_seconds(1.0, 1.0, 0.0, 0.0, 1)
    share = choose_serve(chip, q.runtime.key or q.runtime.engine).link
    size = float(sum(row.kv for row in rows))
    devices = min(len(prompts.layout.cards), len(outputs.layout.cards))
    return transfer_seconds(size, q.load.prompt.mean, share * link.bandwidth, latency(link, bool(hosts)), devices)
