"""Memory of a served model per device: weights, cache, and compute buffers. Array sizes are counted; how many are alive is calibrated."""

from dataclasses import dataclass

from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.memory.cache import SIZES, CacheRequest, cache_type, round_up
from meshwise.cost.serve.memory.placement import Load, Placement
from meshwise.errors import UserError
from meshwise.models.model import Model


@dataclass(frozen=True, kw_only=True)
class ArraySizes:
    """Bytes of the arrays that one micro-batch creates."""

    hidden: float  # one array of hidden width
    ffn: float  # one array of feed-forward width
    logits: float
    scores: float  # attention scores of all heads, without flash kernels
    mask: float  # the attention mask, one per copy of the inputs
    masks: float  # further masks that are not copied


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes needed on one device, by kind."""

    device: int
    weights: float
    cache: float
    compute: float
    context: float

    @property
    def bytes(self) -> float:
        return self.weights + self.cache + self.compute + self.context


def array_sizes(model: Model, runtime: Runtime, request: CacheRequest, *, flash: bool | None = None, tp: int = 1) -> ArraySizes:
    """Return sizes for the largest micro-batch: a full one, at the end of the context. Sequences share it, so more of them add nothing."""
    flash = runtime.flash if flash is None else flash
    if not flash and SIZES[cache_type(request.value, runtime)][0] > 1:
        raise UserError(f"{runtime.name} keeps values in {request.value} only with flash attention; without it they can be f16")
    context = round_up(request.context, runtime.pad)
    size = request.batch or runtime.batch
    rows = size if runtime.paged else min(size, context * request.sequences)  # paged engines measure a full batch when they start
    heads = max((op.m for op in model.ops if op.kind == "attention"), default=0)
    mask = rows * context * (runtime.mask_bytes if flash else runtime.plain_mask_bytes) if heads else 0.0
    return ArraySizes(
        hidden=rows * model.decoder.hidden * runtime.element, ffn=rows * _width(model) * runtime.element / tp,
        logits=min(rows, request.logits or runtime.logit_rows or rows) * model.decoder.vocab * 4 * runtime.logit_copies,
        scores=0.0 if flash else rows * context * heads * 4, mask=mask, masks=0.0 if flash else mask * runtime.plain_masks,
    )  # fmt: skip


def _width(model: Model) -> float:
    """Return the widest activation of a token inside a layer: feed-forward, all active experts together, or a recurrent mixer's input."""
    widest = 0.0
    for name, times in model.times.items():
        ops = model.blocks.get(name, ())
        ups = sum(op.n * (op.m * op.count / times if op.expert else 1) for op in ops if op.name.endswith(".up"))
        widest = max(widest, ups, *(op.n for op in ops if op.kind == "matmul"))
    return widest


def compute_bytes(size: ArraySizes, runtime: Runtime, *, copies: int, hops: float, head: bool) -> float:
    """Return the largest of three peaks: attention, the feed-forward, and (on the device with the head) the logits. Each peak has one mask
    per copy of the inputs, one input per copy from the host or another device, and a calibrated number of arrays of hidden width. Form and
    counts are read off llama.cpp's dry runs and logs, which the result matches to the MiB."""
    inputs = hops * (copies + runtime.hop_hidden) * size.hidden
    attention = size.scores + size.masks + runtime.attention_hidden * size.hidden if size.scores else 0.0
    feed = runtime.ffn_widths * size.ffn + runtime.ffn_hidden * size.hidden
    logits = size.logits + runtime.logits_hidden * size.hidden if head else 0.0
    return copies * size.mask + inputs + max(attention, feed, logits)


def host_bytes(size: ArraySizes, runtime: Runtime, *, copies: int) -> float:
    """Return the pinned host memory for inputs."""
    return copies * size.mask + size.masks + (runtime.host_hidden + copies * runtime.host_copied) * size.hidden


def footprints(
    model: Model, runtime: Runtime, placement: Placement, request: CacheRequest, *, flash: bool | None = None
) -> tuple[Footprint, ...]:
    """Return the footprints of the host, then of every device. Inputs are copied where devices with whole layers run as a pipeline."""
    size = array_sizes(model, runtime, request, flash=flash, tp=placement.tp)
    busy = [load.device for load in placement.devices if load.weights or load.cache]
    several = len(busy) > placement.tp
    whole = placement.split == "layer" and not placement.host.layers and not placement.host.head
    copies = runtime.copies if several and whole else 1
    per_device = [_footprint(placement.host, host_bytes(size, runtime, copies=copies), 0.0)]
    for load in placement.devices:
        hops = 0.0 if not several else runtime.first_hops if load.device == busy[0] else 1.0
        compute = compute_bytes(size, runtime, copies=copies, hops=hops, head=load.head) if load.device in busy else 0.0
        compute += runtime.communication if placement.tp > 1 else 0.0
        compute += runtime.token_reserve * (request.batch or runtime.batch)
        per_device.append(_footprint(load, compute, runtime.context))
    return tuple(per_device)


def _footprint(load: Load, compute: float, context: float) -> Footprint:
    return Footprint(device=load.device, weights=load.weights, cache=load.cache, compute=compute, context=context)
