"""Limits of an engine on a placement: tokens of KV cache that fit, states and windows of each request, and its own limits."""

import math
from collections.abc import Sequence

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.load.requests import Limits
from meshwise.cost.serve.memory.blocks import PagedLayer, Pool, pool
from meshwise.cost.serve.memory.buffers import Footprint, footprints
from meshwise.cost.serve.memory.cache import CacheRequest, cached_rows, layer_caches, layer_windows, pass_sizes
from meshwise.cost.serve.memory.placement import Load as DeviceLoad
from meshwise.cost.serve.memory.placement import Placement, cache_part, with_caches
from meshwise.cost.work import Serve
from meshwise.models.model import Model

LONG_CONTEXT = 2**20  # tokens of a context that is longer than every window


def limits(
    model: Model, runtime: Runtime, placement: Placement, chips: Sequence[Chip], work: Serve, *, sequences: int = 0
) -> Limits:
    """Return the limits of one replica. A paged engine fills what weights and buffers leave with blocks; another one allocates the whole
    context of every request at the start. `sequences`: the most requests at once, where it is set; otherwise the engine's default."""
    request = CacheRequest(context=work.context, sequences=1, key=work.kv, value=work.kv, **pass_sizes(runtime, chips))
    small = with_caches(placement, layer_caches(model, runtime, request))
    needs = footprints(model, runtime, small, request, flash=work.flash)
    most = sequences or (runtime.sequences_on(chips[0]) if chips else runtime.sequences)
    tokens = runtime.tokens_on(chips[0]) if chips else runtime.batch
    whole = [_left(runtime, chip, need) / need.cache for chip, need in zip(chips, needs[1:], strict=True) if need.cache]
    if not runtime.paged:
        fitting = math.floor(min(whole)) if whole else most
        return Limits(sequences=max(0, min(most, fitting)), tokens=tokens, chunked=runtime.chunked)
    if placement.apart:  # every device has limits of its own for requests of its own
        most, tokens = most * placement.tp, tokens * placement.tp
    capacity, fixed = _tokens(model, runtime, placement, chips, needs, work)
    states = [_left(runtime, chip, need) / need.cache for chip, need in zip(chips, needs[1:], strict=True) if need.cache]
    if math.isinf(capacity) and states:  # recurrent models: only states, which do not grow
        most = max(0, min(most, math.floor(min(states))))
    return Limits(
        sequences=most, tokens=tokens, cache=capacity, fixed=fixed, reserves=runtime.reserves, chunked=runtime.chunked,
        poll_passes=runtime.poll_passes, ahead=runtime.ahead,
    )  # fmt: skip


def _left(runtime: Runtime, chip: Chip, need: Footprint) -> float:
    """Return the bytes of a device that its cache may fill."""
    return max(0.0, runtime.room(chip) - need.weights - need.compute) * runtime.cache_share


def _tokens(
    model: Model, runtime: Runtime, placement: Placement, chips: Sequence[Chip], needs: Sequence[Footprint], work: Serve
) -> tuple[float, float]:
    """Return the tokens of full attention that fit, and what a request needs besides its tokens, in tokens."""
    request = CacheRequest(context=1, key=work.kv, value=work.kv)
    rows = cached_rows(model, runtime, request)
    long = CacheRequest(context=max(work.context, LONG_CONTEXT), key=work.kv, value=work.kv)
    kept = layer_caches(model, runtime, long)
    windowed = [cache.tokens < long.context and cache.tokens > 0 for cache in kept]
    tp = placement.tp if placement.split == "tensor" else 1
    found: list[tuple[float, float]] = []
    # devices with requests of their own hold whole rows of 1/tp of the requests
    own, shards = (tp, 1) if placement.apart else (1, tp)
    every = zip(placement.devices, chips, needs[1:], strict=True)
    for (layers, left), load in {(load.layers, _left(runtime, chip, need)): load for load, chip, need in every}.items():
        states = sum(math.ceil(rows[i].state / shards) for i in layers)
        growing = [i for i in layers if not windowed[i]]
        grows = sum(cache_part(rows[i], shards) - math.ceil(rows[i].state / shards) for i in growing) / own
        bounded = (kept[i] for i in layers if windowed[i])
        fixed = states + sum(_window(cache.kv, cache.heads, shards, work.context, cache.tokens) for cache in bounded)
        if grows and runtime.grouped_pages:
            blocks = device_pool(model, runtime, load, left, work, shards)
            held = blocks.needed(work.context) - blocks.full * math.ceil(work.context / blocks.size)
            per_token = blocks.full / blocks.size
            found.append((own * blocks.blocks / per_token, held / per_token + blocks.size / 2))
        elif grows:
            found.append((left / grows, fixed / own / grows))
    return min(found) if found else (math.inf, 0.0)


def device_pool(model: Model, runtime: Runtime, load: DeviceLoad, left: float, work: Serve, shards: int = 1) -> Pool:
    """Return the blocks of cache that fit into `left` bytes of a device with these layers, each shared by `shards` devices."""
    rows = cached_rows(model, runtime, CacheRequest(context=1, key=work.kv, value=work.kv))
    # compressed attention reads a window, but also keeps something of every token
    kept = layer_caches(model, runtime, CacheRequest(context=LONG_CONTEXT, key=work.kv, value=work.kv))
    bounded = (cache.tokens < LONG_CONTEXT for cache in kept)
    windows = [window if ends else 0 for window, ends in zip(layer_windows(model, runtime), bounded, strict=True)]
    layers: list[PagedLayer] = []
    for i in load.layers:
        state = math.ceil(rows[i].state / shards)
        token = cache_part(rows[i], shards) - state
        layers += [PagedLayer(token, windows[i])] if token else []
        layers += [PagedLayer(0.0, 0, state)] if state else []
    return pool(layers, left, runtime.pad)


def _window(kv: int, heads: int, tp: int, context: int, kept: int) -> float:
    """Return bytes of a windowed layer on one device: its window, or the whole context where that is shorter."""
    size = kv // heads * max(1, heads // tp) if heads else kv
    return size * min(1.0, context / kept)
