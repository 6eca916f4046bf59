"""Placement: the tensors and the part of the cache on each device, for llama.cpp's splits and vLLM's tensor and pipeline parallelism."""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal

from meshwise.cost.serve.memory.cache import LayerCache
from meshwise.errors import UserError
from meshwise.models.formats import Weight, Weights
from meshwise.models.model import Model
from meshwise.models.op import BY_OUTPUT, Op
from meshwise.models.tensors import EMBEDDING_LAYER

HOST_MEMORY = -1  # the device number of host memory

SPLIT_ROWS_MULTIPLE = 128  # llama.cpp's row split cuts matrices at multiples of this many rows on NVIDIA cards since Volta
VOCABULARY_MULTIPLE = 64  # vLLM pads the vocabulary to a multiple of this before it shards it

MAX_SHARE = 1e30  # larger than any memory, and well within single precision

Pin = tuple[str, int]  # a pattern of tensor names, and the device that holds matching tensors: llama.cpp's -ot
ALL_EXPERTS: Pin = (r"\.ffn_(up|down|gate_up|gate)_exps", HOST_MEMORY)  # -ot exps=CPU, or --cpu-moe


def host_experts(layers: int) -> tuple[Pin, ...]:
    """Return pins that keep the experts of the first `layers` layers on the host: --n-cpu-moe."""
    return tuple((rf"blk\.{i}\.ffn_(up|down|gate_up|gate)_exps", HOST_MEMORY) for i in range(layers))


@dataclass(frozen=True, kw_only=True)
class Load:
    """Bytes of weights and cache on one device, and bytes of weights that a step reads."""

    device: int
    layers: tuple[int, ...] = ()  # layers whose cache is on this device; with tensor parallelism, a part of each
    head: bool = False
    weights: int = 0
    once: int = 0  # bytes of weights that every step reads once, for any number of tokens
    experts: int = 0  # bytes of experts
    routed: float = 0.0  # share of the experts that one token reads
    cache: int = 0
    adapter: int = 0  # bytes of one LoRA adapter; those of all adapters are part of `weights`

    @property
    def bytes(self) -> int:
        return self.weights + self.cache

    def read(self, tokens: float = 1) -> float:
        """Return bytes of weights, without the embedding, that a step reads: 1 - (1 - a/e)^tokens of the experts, with even routing."""
        return self.once + self.experts * (1 - (1 - self.routed) ** tokens)


@dataclass(frozen=True)
class Placement:
    """A whole model on one host and its devices."""

    split: Literal["layer", "row", "tensor"]
    host: Load
    devices: tuple[Load, ...]
    tp: int = 1  # devices that share each layer in a tensor split
    apart: bool = False
    """Whether these devices share the experts only: each has whole experts, all other weights, and requests of its own."""
    adapters: int = 0  # LoRA adapters in memory

    @property
    def loads(self) -> tuple[Load, ...]:
        return (self.host, *self.devices)


def _single(value: float) -> float:
    """Round `value` to single precision, in which llama.cpp computes its splits."""
    return struct.unpack("f", struct.pack("f", value))[0]


def layer_devices(layers: int, proportions: Sequence[float], gpu_layers: int | None = None) -> tuple[int, ...]:
    """Return the device of each layer, then of the head: upper bound over cumulative proportions (llama.cpp, load_tensors). `proportions`
    are -ts, or each device's free memory. `gpu_layers` is -ngl: the last `gpu_layers` of layers + 1 leave the host. Worked: 33 over 4
    equal devices: 9, 8, 8 and 8, of which the last is the head."""
    if not all(0 <= share <= MAX_SHARE for share in proportions) or (proportions and not sum(map(_single, proportions))):
        raise UserError("the shares of a split must be finite and not negative, and at least one above zero")
    moved = min(layers + 1, layers + 1 if gpu_layers is None else gpu_layers) if proportions else 0
    if moved <= 0:
        return (HOST_MEMORY,) * (layers + 1)
    sums = list(accumulate((_single(share) for share in proportions), lambda a, b: _single(a + b)))
    bounds = [_single(bound / sums[-1]) for bound in sums]
    start = layers + 1 - moved
    # The quotient is below 1 and the last bound is 1, so there is always a device.
    return (HOST_MEMORY,) * start + tuple(bisect_right(bounds, _single(i / moved)) for i in range(moved))


def split_layers(
    weights: Weights, caches: Sequence[LayerCache], proportions: Sequence[float], *, gpu_layers: int | None = None,
    pins: Iterable[Pin] = (),
) -> Placement:  # fmt: skip
    """Place whole layers with their cache, the embedding on the host: llama.cpp's default, -sm layer."""
    owners = layer_devices(weights.layers, proportions, gpu_layers)
    patterns = [(re.compile(pattern), _check_device(device, len(proportions))) for pattern, device in pins]
    held: dict[int, list[tuple[Weight, int]]] = {}
    for weight in weights.tensors:
        device = HOST_MEMORY if weight.layer == EMBEDDING_LAYER else owners[weight.layer]
        device = next((pinned for pattern, pinned in patterns if pattern.search(weight.name)), device)
        held.setdefault(device, []).append((weight, weight.bytes))
    return _placement("layer", held, caches, owners, len(proportions))


def _check_device(device: int, devices: int) -> int:
    if not HOST_MEMORY <= device < devices:
        raise UserError(f"no device {device} to pin tensors to: there are {devices}, counted from 0, and the host")
    return device


def split_rows(
    weights: Weights, caches: Sequence[LayerCache], proportions: Sequence[float], *, gpu_layers: int | None = None
) -> Placement:
    """Split matrices by rows over all devices; experts, vectors and cache stay with their layer: llama.cpp's -sm row."""
    owners = layer_devices(weights.layers, proportions, gpu_layers)
    held: dict[int, list[tuple[Weight, int]]] = {}
    for weight in weights.tensors:
        owner = HOST_MEMORY if weight.layer == EMBEDDING_LAYER else owners[weight.layer]
        slot = weight.slot
        if owner == HOST_MEMORY or slot.rows == 1 or slot.copies > 1 or "_norm." in slot.name:
            held.setdefault(owner, []).append((weight, weight.bytes))
            continue
        for device, rows in enumerate(row_counts(slot.rows, proportions)):
            held.setdefault(device, []).append((weight, weight.bytes // slot.rows * rows))
    return _placement("row", held, caches, owners, len(proportions))


def row_counts(rows: int, proportions: Sequence[float]) -> list[int]:
    """Return rows of a matrix per device: cut at cumulative proportions, down to multiples of SPLIT_ROWS_MULTIPLE (get_row_split)."""
    return list(_row_counts(rows, tuple(proportions)))


@lru_cache(maxsize=256)
def _row_counts(rows: int, proportions: tuple[float, ...]) -> tuple[int, ...]:
    """Cached, since a model has few distinct matrix heights and a search splits each of them hundreds of times."""
    before = [rows * share / sum(proportions) for share in accumulate(proportions, initial=0.0)][:-1]
    cuts = [int(cut) // SPLIT_ROWS_MULTIPLE * SPLIT_ROWS_MULTIPLE for cut in before]
    return tuple(high - low for low, high in pairwise([*cuts, rows]))


def _placement(
    split: Literal["layer", "row"], held: dict[int, list[tuple[Weight, int]]], caches: Sequence[LayerCache],
    owners: Sequence[int], devices: int,
) -> Placement:  # fmt: skip
    """Sum the tensors held by each device, and add the cache of its layers."""
    loads: list[Load] = []
    for device in range(HOST_MEMORY, devices):
        layers = [i for i, owner in enumerate(owners[:-1]) if owner == device]
        cache = sum(caches[i].bytes for i in layers)
        # On the host a tied head shares the embedding; a device needs its own copy.
        load = _load(held.get(device, []), shared=device == HOST_MEMORY)
        loads.append(replace(load, device=device, layers=tuple(layers), head=owners[-1] == device, cache=cache))
    return Placement(split, loads[0], tuple(loads[1:]))


def _load(held: list[tuple[Weight, int]], *, shared: bool) -> Load:
    """Sum the weights of one device. `shared`: it has the embedding, so a tied head takes no more memory but is still read."""
    experts = [(weight, size) for weight, size in held if weight.slot.expert]
    return Load(
        device=HOST_MEMORY, weights=sum(size for weight, size in held if weight.slot.stored or not shared),
        once=sum(size for weight, size in held if weight.slot.share == 1), experts=sum(size for _, size in experts),
        routed=max((weight.slot.share for weight, _ in experts), default=0.0),
    )  # fmt: skip


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage in vLLM: equal, the remainder on the last but one and those before it (get_pp_indices)."""
    if not 1 <= pp <= layers:
        raise UserError(f"{layers} layers cannot be split into {pp} pipeline stages; choose 1 to {layers}")
    each, rest = divmod(layers, pp)
    counts = [each] * pp
    for i in range(2, rest + 2):
        counts[-i] += 1
    return tuple(counts)


def refuses_tp(model: Model, tp: int) -> str:
    """Return why vLLM cannot split this model over `tp` devices and which sizes work; '' where it can."""
    why = _obstacle(model, tp)
    choices = [str(n) for n in range(1, 17) if why and not _obstacle(model, n)]
    return f"{why}; choose {', '.join(choices)}" if why else ""


def _obstacle(model: Model, tp: int) -> str:
    """Return the first reason why a model cannot be split over `tp` devices, or ''."""
    d = model.decoder
    if tp < 1:
        return f"no model can be split over {tp} devices"
    if d.heads % tp:
        return f"{d.heads} heads cannot be split over {tp} devices"
    if d.kv_heads and d.kv_heads % tp and tp % d.kv_heads:
        return f"{d.kv_heads} KV heads and {tp} devices: one must be a multiple of the other"
    for op in model.ops:
        cut = {"column": op.n, "row": op.k, "heads": op.m if op.kind in ("attention", "scan") else op.n}.get(op.shard, 0)
        if cut % tp:
            return f"{op.name} of width {cut:.0f} cannot be split over {tp} devices"
    if _padded_vocabulary(d.vocab) % tp:
        return f"a vocabulary of {_padded_vocabulary(d.vocab):,}, padding included, cannot be split over {tp} devices"
    return ""


def _padded_vocabulary(vocab: int) -> int:
    return ceil(vocab / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def split_tensors(
    model: Model, weights: Weights, caches: Sequence[LayerCache], tp: int, pp: int = 1, *, host_embedding: bool = False
) -> Placement:
    """Place pipeline stages of whole layers, each sharded over `tp` devices, as vLLM does. All devices of a stage have equal loads.
    `host_embedding`: the embedding stays on the host, as in llama.cpp (-sm tensor)."""
    refusal = refuses_tp(model, tp)
    if refusal:
        raise UserError(f"{model.name}: {refusal}")
    counts = stage_layers(weights.layers, pp)
    starts = list(accumulate(counts, initial=0))
    loads: list[Load] = []
    for stage, (first, end) in enumerate(pairwise(starts)):
        last = stage == pp - 1
        held = [weight for layer in weights.by_layer[first:end] for weight in layer]
        held += weights.embedding if stage == 0 and not host_embedding else ()
        held += weights.by_layer[-1] if last else ()
        load = replace(
            _load([(weight, _part(model, weight, tp)) for weight in held], shared=stage == 0 and not host_embedding),
            layers=tuple(range(first, end)), head=last, cache=sum(cache_part(caches[i], tp) for i in range(first, end)),
        )  # fmt: skip
        loads += [replace(load, device=stage * tp + i) for i in range(tp)]
    on_host = (
        _load([(weight, weight.bytes) for weight in weights.embedding], shared=True)
        if host_embedding
        else Load(device=HOST_MEMORY)
    )
    return Placement("tensor", on_host, tuple(loads), tp)


def refuses_experts(model: Model, weights: Weights, devices: int) -> str:
    """Return why the experts of a model cannot lie apart on `devices` devices; '' where they can."""
    # the biases of all experts are one tensor
    numbers = {weight.slot.copies for weight in weights.tensors if weight.slot.expert and weight.slot.product}
    if not numbers:
        return f"{model.name} has no experts"
    wrong = [number for number in numbers if number % devices]
    return f"{wrong[0]} experts cannot be spread over {devices} devices" if wrong else ""


def split_experts(model: Model, weights: Weights, caches: Sequence[LayerCache], devices: int) -> Placement:
    """Place whole experts on single devices and everything else on each of them, which compute attention for requests of their own (expert
    parallelism with data-parallel attention). `caches` are those of all requests."""
    refusal = refuses_experts(model, weights, devices)
    if refusal:
        raise UserError(f"{model.name}: {refusal}")
    held = [(weight, weight.bytes // devices if weight.slot.expert else weight.bytes) for weight in weights.tensors]
    load = replace(
        _load(held, shared=True), layers=tuple(range(weights.layers)), head=True,
        cache=sum(ceil(cache.bytes / devices) for cache in caches),
    )  # fmt: skip
    return Placement(
        "tensor", Load(device=HOST_MEMORY), tuple(replace(load, device=i) for i in range(devices)), devices, apart=True
    )


def _part(model: Model, weight: Weight, tp: int) -> int:
    """Return bytes of one tensor on each of `tp` devices; where there are fewer KV heads than devices, each device copies one."""
    match weight.slot.shard:
        case "":
            return weight.bytes
        case "kv":
            heads = model.decoder.kv_heads
            return weight.bytes // heads * max(1, heads // tp)
        case "vocab":
            return weight.bytes // weight.slot.rows * (_padded_vocabulary(weight.slot.rows) // tp)
        case _:
            return ceil(weight.bytes / tp)


def cache_part(cache: LayerCache, tp: int, apart: bool = False) -> int:
    """Return bytes of a layer's cache on each of `tp` devices: latents whole, the rest split; `apart`: of 1/tp of the requests."""
    if apart:
        return ceil(cache.bytes / tp)
    keys = cache.kv // cache.heads * max(1, cache.heads // tp) if cache.heads else cache.kv
    return keys + ceil(cache.state / tp)


def with_adapters(placement: Placement, model: Model, number: int, rank: int) -> Placement:
    """Return a placement with `number` LoRA adapters of this rank beside the weights, in 16 bits: an input matrix and an output matrix for
    every product except those of routed experts. Of a product that is cut by outputs each device has the whole input matrix, and the other
    way round. Worked: rank 16 on Llama 3 8B: 16 x 2 bytes x (q 8,192 + k and v 2 x 5,120 + o 8,192 + three of 18,432) x 32 layers: 84
    MB."""
    tp = placement.tp if placement.split == "tensor" and not placement.apart else 1
    sizes = {name: _adapter_bytes(ops, model.times[name], rank, tp) for name, ops in model.blocks.items() if model.times[name]}
    layers = [sum(sizes[block] for block in layer) for layer in model.layers]

    def held(load: Load) -> Load:
        adapter = sum(layers[i] for i in load.layers)
        return replace(load, adapter=adapter, weights=load.weights + number * adapter)

    return replace(placement, host=held(placement.host), devices=tuple(map(held, placement.devices)), adapters=number)


def _adapter_bytes(ops: Iterable[Op], times: int, rank: int, tp: int) -> int:
    """Return bytes of an adapter in one block on each of `tp` devices."""
    total = 0.0
    for op in ops:
        if op.kind == "matmul" and not op.expert:
            by_output = op.n / tp if op.shard in BY_OUTPUT else op.n
            by_input = op.k / tp if op.shard == "row" else op.k
            total += 2 * rank * (by_input + by_output) * op.count / times
    return round(total)


def with_caches(placement: Placement, caches: Sequence[LayerCache]) -> Placement:
    """Return a placement with the same weights and other caches: another context, type or number of sequences."""
    cut = placement.tp if placement.split == "tensor" else 0
    sizes = [cache_part(cache, cut, placement.apart) if cut else cache.bytes for cache in caches]
    host, *devices = (replace(load, cache=sum(sizes[i] for i in load.layers)) for load in placement.loads)
    return replace(placement, host=host, devices=tuple(devices))
