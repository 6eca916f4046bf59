"""Search every layout of a served model: the memory of each device, whether it fits, its speed, and which layout is best."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from meshwise import wanted
from meshwise.catalogue.calibrations import choose_serve
from meshwise.catalogue.chips import host_cpu
from meshwise.cost.serve import layouts as splits
from meshwise.cost.serve.distance import POOLS_RATIO
from meshwise.cost.serve.load.admission import limits
from meshwise.cost.serve.load.requests import Load
from meshwise.cost.serve.memory.buffers import footprints
from meshwise.cost.serve.memory.cache import CacheRequest, LayerCache, layer_caches
from meshwise.cost.serve.memory.placement import Placement, with_adapters, with_caches
from meshwise.cost.serve.passes.demand import demand
from meshwise.cost.serve.passes.speed import PassCost, Speed
from meshwise.cost.serve.question import ServeQuestion
from meshwise.cost.serve.rig import Rig
from meshwise.plan.serve.option import Found, Option
from meshwise.plan.serve.pools import pooled_options

TIE_SHARE = 0.01  # layouts closer than this count as equally fast; the one with fewer devices wins
SPARE_BYTES = 2.0**29  # bytes that should stay free on a device: a desktop, a longer batch or another build may need them
UNBOUNDED_USERS = 1 << 20
MOST_SLOTS, ROOMY = 32, 0.9  # slots of an engine without pages where requests arrive at a rate, and the share of those that fit
EVENLY_FILLED = "evenly filled"
UNQUANTISED = ("f32", "f16", "bf16")  # cache types that llama.cpp's tensor split can cut
CONTEXT_STEP = 256  # contexts are tried in multiples of this


def search(q: ServeQuestion, *, pools: bool = True) -> Found:
    """Evaluate every layout of the engine, as a single replica and in as many replicas as devices and requests allow, and in `pools`."""
    tried: list[Option] = []
    every = chain(splits.layouts(q.engine, q.model, q.cards, q.rooms), splits.expert_layouts(q.engine, q.expert_count, q.cards))
    most = q.work.users if not q.load.rate else UNBOUNDED_USERS
    for layout in _bounded(q, every):
        first = with_memory(q, layout)
        for copied in (layout, *(splits.with_replicas(layout, q.cards, most) if q.engine.copies else ())):
            if _allowed(q, copied):
                tried += _with_shares(q, first if copied is layout else with_memory(q, copied, first))
    shared = any(card.chip.shares_memory for card in q.cards)  # what does not fit on the device has no other place
    if q.engine.offload and not shared and not any(option.fits for option in tried):
        tried += _offloaded(q)
    memory = q.cluster.node.host.memory
    if memory and not shared:  # layers in host memory need room there too
        tried = [replace(one, fits=one.fits and one.footprints[0].bytes <= memory) for one in tried]
    fitting = [with_speed(q, option) for option in tried if option.fits]
    plain = [] if "prefill" in q.bounds else fitting  # where --fix asks for pools for prompts, there is nothing without them
    misses = sorted((option for option in tried if not option.fits), key=lambda option: -option.spare)
    return Found(tuple(_ranked(q, [*plain, *(_pools(q, fitting) if pools else ())])), tuple(misses))


def _pools(q: ServeQuestion, plain: Sequence[Option]) -> list[Option]:
    """Return options with pools of their own for prompts: where they are asked for, where nothing else meets the targets, or where the best
    of them beats every other option by more than such predictions err."""
    found = [with_speed(q, option) for option in pooled_options(q, plain)]
    if "prefill" in q.bounds or not found:
        return found
    order = [*_ranked(q, [*plain, *found])]
    best = _ranked(q, plain)
    enough = best and _missed(q, best[0]) <= 1 and worth(q, order[0]) < worth(q, best[0]) * POOLS_RATIO
    return [option for option in found if option is order[0] and not enough]


def _bounded(q: ServeQuestion, candidates: Iterable[splits.ServeLayout]) -> Iterator[splits.ServeLayout]:
    """Yield the layouts that the engine runs and that match --fix; the number of replicas is checked later."""
    replicas = int(q.bounds.get("replicas", 1))
    return (layout for layout in candidates if _runs(q, layout) and _allowed(q, replace(layout, replicas=replicas)))


def _runs(q: ServeQuestion, layout: splits.ServeLayout) -> bool:
    """Return whether a layout is planned: one that the model can be placed by; of llama.cpp's, a row split only if it is asked for, since
    it is deprecated, and a tensor split only without a quantised cache."""
    if splits.refuses(layout, q.model, q.weights):
        return False
    if not q.engine.gguf:
        return True
    if layout.split == "row":
        return q.bounds.get("split") == "row"
    return layout.split != "tensor" or q.work.kv in UNQUANTISED


def _allowed(q: ServeQuestion, layout: splits.ServeLayout) -> bool:
    """Return whether a layout matches --fix."""
    axes = {
        "split": layout.split, "cards": len(layout.cards), "tp": layout.tp, "pp": layout.pp,
        "ep": layout.tp if layout.apart else 1, "replicas": layout.replicas, "hosts": layout.hosts,
    }  # fmt: skip
    apart = "prefill" in q.bounds  # pools are made of single replicas, whose number is not that of --fix
    return all(axes[axis] == value for axis, value in q.bounds.items() if axis in axes and not (apart and axis == "replicas"))


def users_of(q: ServeQuestion, layout: splits.ServeLayout) -> int:
    """Return the requests of the busiest replica."""
    return math.ceil(q.work.users / layout.replicas)


def load_of(q: ServeQuestion, layout: splits.ServeLayout) -> Load:
    """Return the load of the busiest replica."""
    if q.load.rate:
        return replace(q.load, rate=q.load.rate / layout.replicas)
    return replace(q.load, users=users_of(q, layout))


def with_memory(q: ServeQuestion, layout: splits.ServeLayout, like: Option | None = None) -> Option:
    """Return an option with the memory of a layout. `like`: an option with the same weights on the same devices and another cache."""
    chips = [q.cards[i].chip for i in layout.cards]
    load = load_of(q, layout)
    one = layer_caches(q.model, q.runtime, q.cache_request(1))
    placement = with_caches(like.placement, one) if like else _place(q, layout, one)
    rooms = tuple(q.rooms[i] for i in layout.cards)
    slots = 0 if q.runtime.paged else users_of(q, layout)
    if slots and q.load.rate:  # as many as fit with some memory left
        fitting = limits(q.model, q.runtime, placement, chips, q.work).sequences
        slots = max(1, min(MOST_SLOTS, int(fitting * ROOMY)))
    found = limits(q.model, q.runtime, placement, chips, q.work, sequences=slots)
    running = found.running(load)
    if q.runtime.paged:
        held = q.cache_request(1)
        fits = _enough(q, placement, held, rooms) and running >= 1
        number = max(1, math.floor(min(load.users or running, running)))
        context = max(1, min(q.work.context, math.ceil(found.held(load) - found.fixed)))
        held = q.cache_request(number, context) if fits else held
    else:
        held = q.cache_request(slots)
        fits = True
    placement = with_caches(placement, layer_caches(q.model, q.runtime, held))
    needs = footprints(q.model, q.runtime, placement, held, flash=q.work.flash)
    option = Option(
        layout=layout, placement=placement, footprints=needs, rooms=rooms, users=q.work.users, limits=found, most_users=0,
        fits=fits, pool=like.pool if like else None,
    )  # fmt: skip
    if q.runtime.paged:
        return replace(option, most_users=math.floor(running) * layout.replicas)
    room_for = [
        (room - need.weights - need.compute) / (need.cache / held.sequences)
        for room, need in zip(rooms, needs[1:], strict=True)
        if need.cache
    ]
    most = max(0, math.floor(min(room_for))) * layout.replicas if room_for else 0
    return replace(option, most_users=most, fits=option.spare >= 0)


def _place(q: ServeQuestion, layout: splits.ServeLayout, caches: Sequence[LayerCache]) -> Placement:
    """Return the weights, adapters and cache of each device of one replica."""
    placement = splits.place(layout, q.model, q.weights, caches)
    return with_adapters(placement, q.model, q.work.adapters, q.work.rank) if q.work.adapters else placement


def _enough(q: ServeQuestion, placement: Placement, held: CacheRequest, rooms: Sequence[float]) -> bool:
    """Return whether weights, buffers and this cache fit on every device."""
    needs = footprints(q.model, q.runtime, placement, held, flash=q.work.flash)
    return all(need.weights + need.cache + need.compute <= room for need, room in zip(needs[1:], rooms, strict=True))


def with_speed(q: ServeQuestion, option: Option, *, detailed: bool = False) -> Option:
    """Return the option with its predicted speed at the load. `detailed`: with percentiles."""
    wanted.check()
    layout = option.layout
    cluster = splits.subcluster(q.cluster, [q.cards[i] for i in layout.cards])
    engine = q.runtime.key or q.runtime.engine
    rig = Rig.of(cluster, host_cpu(cluster))
    load = load_of(q, layout)
    work = replace(q.work, users=max(1, min(users_of(q, layout), math.ceil(option.limits.running(load)))))
    cost = PassCost(demand(q.model, q.weights, option.placement, rig, q.runtime, work), lambda chip: choose_serve(chip, engine))
    option = replace(option, cost=cost)
    report = option.at(load, detailed=detailed or bool(q.targets))
    if q.load.rate and report:
        work = replace(work, users=max(1, round(report.running)))
    prompts = option.pool.cost if option.pool else cost
    predicted = Speed(cost.decode(work), prompts.prefill(work), work.users, work.prompt)
    return replace(option, speed=predicted, report=report)


def _with_shares(q: ServeQuestion, first: Option) -> Iterator[Option]:
    """Yield the engine's own split; one that fills devices evenly, if that does not fit; and one with the fastest filled first."""
    yield first
    layout = first.layout
    if layout.split != "layer" or not q.engine.shares or len(layout.cards) == 1:
        return
    sizes, rooms = _sizes(q, first), _offered(first)
    if not first.fits:
        shares = splits.even_shares(sizes, rooms)
        if shares:
            yield with_memory(q, replace(layout, shares=shares, shared=EVENLY_FILLED))
    speeds = [q.cards[i].chip.bandwidth for i in layout.cards]
    if len(set(speeds)) > 1:
        shares = splits.fastest_shares(sizes, rooms, speeds)
        if shares:
            yield with_memory(q, replace(layout, shares=shares, shared="fastest cards full"))


def _sizes(q: ServeQuestion, option: Option) -> list[float]:
    """Return the bytes of each layer with its cache; the head is last."""
    caches = layer_caches(q.model, q.runtime, q.cache_request(users_of(q, option.layout)))
    return [weight + cache for weight, cache in zip(q.weights.layer_bytes, [*(c.bytes for c in caches), 0], strict=True)]


def _offered(option: Option) -> list[float]:
    """Return the bytes that each device offers for layers, after its compute buffer."""
    return [room - need.compute for room, need in zip(option.rooms, option.footprints[1:], strict=True)]


# Layers or experts in host memory.


def _offloaded(q: ServeQuestion) -> Iterator[Option]:
    """Yield layouts that keep layers in host memory: as many layers on devices as leave some memory free, or as fit; for a mixture of
    experts, all layers on devices with as few experts in host memory as that takes."""
    candidates = _bounded(q, splits.layouts(q.engine, q.model, q.cards, q.rooms))
    layered = [layout for layout in candidates if layout.split == "layer" and layout.hosts == 1]
    if not layered:
        return
    layout = max(layered, key=lambda layout: sum(layout.shares))
    layers = len(q.model.layers)
    yield _fullest(q, lambda n: with_memory(q, replace(layout, gpu_layers=n)), layers)
    if q.engine.experts_on_host and any(weight.slot.expert for weight in q.weights.tensors):
        yield _fullest(q, lambda n: _without_experts(q, layout, layers - n), layers)


def _fullest(q: ServeQuestion, holding: Callable[[int], Option], layers: int) -> Option:
    """Return the option with the most layers that leaves memory free; where none does, with the most that fit."""
    roomy = _largest(lambda n: holding(n).fits and _roomy(q, holding(n)), layers)
    return holding(roomy or _largest(lambda n: holding(n).fits, layers))


def _without_experts(q: ServeQuestion, layout: splits.ServeLayout, number: int) -> Option:
    """Return an option with the experts of the first `number` layers in host memory and the rest spread evenly over the devices."""
    first = with_memory(q, replace(layout, expert_layers=number))
    sizes = _sizes(q, first)
    for i, layer in enumerate(q.weights.by_layer[:number]):
        sizes[i] -= sum(weight.bytes for weight in layer if weight.slot.expert)
    shares = splits.even_shares(sizes, _offered(first)) if len(layout.cards) > 1 else None
    return with_memory(q, replace(first.layout, shares=shares, shared=EVENLY_FILLED)) if shares else first


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 0 to `most` for which a monotone predicate holds; 0 where it holds for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# Ranking.


def meets(q: ServeQuestion, option: Option) -> bool:
    """Return whether an option serves the load and meets the latency targets."""
    return option.report is not None and q.targets.missed(option.report) <= 1


def _ranked(q: ServeQuestion, options: Sequence[Option]) -> list[Option]:
    """Sort options: those that leave memory free first, of these those that meet the targets, by throughput; near-ties go to the one with
    fewer devices. Where nothing meets the targets, the smallest miss comes first."""
    ranked = sorted(options, key=lambda option: (not _roomy(q, option), _missed(q, option), -worth(q, option)))
    if not ranked:
        return []
    best = ranked[0]
    least = worth(q, best) * (1 - TIE_SHARE)
    alike = (option for option in ranked if (_roomy(q, option), _missed(q, option)) == (_roomy(q, best), _missed(q, best)))
    near = [option for option in alike if worth(q, option) >= least]
    winner = min(near, key=lambda option: (option.layout.devices, -worth(q, option)))
    return [winner, *(option for option in ranked if option is not winner)]


def _roomy(q: ServeQuestion, option: Option) -> bool:
    """Return whether memory is left for a desktop or a longer batch; a paged engine takes what it is given."""
    return q.runtime.paged or option.spare >= SPARE_BYTES


def worth(q: ServeQuestion, option: Option) -> float:
    """Return the figure that options are ranked by: output tokens per second at the load, prompts included. At a rate that all of them
    serve, the one whose requests take the shortest time is worth most."""
    if option.report is None:
        return 0.0
    return 1 / option.report.e2e.mean if q.load.rate and option.report.e2e.mean else option.throughput


def _missed(q: ServeQuestion, option: Option) -> float:
    """Return the factor by which an option misses its worst target; 1 where it meets all."""
    return q.targets.missed(option.report) if option.report else math.inf


# Other contexts and cache types in the same layout.


def fits_with(q: ServeQuestion, option: Option, *, context: int = 0, kv: str = "", users: int = 0) -> bool:
    """Return whether an option still fits with this cache. A paged engine needs room for one request of that context."""
    number = users or (1 if q.runtime.paged else users_of(q, option.layout))
    held = q.cache_request(number, context, kv)
    placement = with_caches(option.placement, layer_caches(q.model, q.runtime, held))
    return _enough(q, placement, held, option.rooms)


def largest_context(q: ServeQuestion, option: Option, kv: str = "", most: int = 2**20) -> int:
    """Return the longest context, in steps of 256, that fits in the option's layout with as many requests; 0 where none does."""
    return CONTEXT_STEP * _largest(
        lambda n: n == 0 or fits_with(q, option, context=n * CONTEXT_STEP, kv=kv), most // CONTEXT_STEP
    )
