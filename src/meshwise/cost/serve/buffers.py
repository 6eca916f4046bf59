"""Working memory of a served model per device: the arrays of its largest moment, counted; how many are alive at once, calibrated."""

from dataclasses import dataclass

from meshwise.catalogue.engines import Runtime
from meshwise.cost.serve.cache import SIZES, Held, cache_type, padded
from meshwise.cost.serve.placement import Load, Placement
from meshwise.errors import UserError
from meshwise.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Bytes of the arrays that a batch of tokens makes."""

    hidden: float
    ffn: float
    """One array of feed-forward width."""
    logits: float
    scores: float
    """Of attention without flash kernels, all heads."""
    mask: float
    masks: float
    """Beside those that are copied."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What one device must have, in bytes by kind."""

    device: int
    weights: float
    cache: float
    compute: float
    context: float

    @property
    def bytes(self) -> float:
        return self.weights + self.cache + self.compute + self.context


def moments(model: Model, runtime: Runtime, held: Held, *, flash: bool | None = None, tp: int = 1) -> Moments:
    """Sizes at the worst batch: a full one, at the end of the context. Sequences share the batch, so they add nothing."""
    flash = runtime.flash if flash is None else flash
    if not flash and SIZES[cache_type(held.value, runtime)][0] > 1:
        raise UserError(f"{runtime.name} keeps values in {held.value} only with flash attention; without it they can be f16")
    context = padded(held.context, runtime.pad)
    rows = min(held.batch or runtime.batch, context * held.sequences)
    heads = max((op.m for op in model.ops if op.kind == "attention"), default=0)
    mask = rows * context * (runtime.mask_bytes if flash else runtime.plain_mask_bytes) if heads else 0.0
    return Moments(
        hidden=rows * model.decoder.hidden * runtime.element,
        ffn=rows * _width(model) * runtime.element / tp,
        logits=min(rows, runtime.logit_rows or rows) * model.decoder.vocab * 4,
        scores=0.0 if flash else rows * context * heads * 4,
        mask=mask,
        masks=0.0 if flash else mask * runtime.plain_masks,
    )


def _width(model: Model) -> float:
    """The widest that a token becomes inside a layer: feed-forwards, active experts side by side, or a recurrent mixer's input."""
    widest = 0.0
    for name, ops in model.blocks.items():
        times = sum(layer.count(name) for layer in model.layers)
        if not times:
            continue
        ups = sum(op.n * (op.m * op.count / times if op.expert else 1) for op in ops if op.name.endswith(".up"))
        widest = max(widest, ups, *(op.n for op in ops if op.kind == "matmul"))
    return widest


def compute_bytes(size: Moments, runtime: Runtime, *, copies: int, hops: float, head: bool) -> float:
    """The largest of three moments: attention, the feed-forward, and (where the head is) the logits.

    In each the masks are there once per copy, and what comes from the host or another device once per copy, and the calibrated few
    arrays of hidden width. Form and counts: read off llama.cpp's dry runs and logs, which it meets to the MiB.
    """
    inputs = hops * (copies + runtime.hop_hidden) * size.hidden
    attention = size.scores + size.masks + runtime.attention_hidden * size.hidden if size.scores else 0.0
    feed = runtime.ffn_widths * size.ffn + runtime.ffn_hidden * size.hidden
    logits = size.logits + runtime.logits_hidden * size.hidden if head else 0.0
    return copies * size.mask + inputs + max(attention, feed, logits)


def host_bytes(size: Moments, runtime: Runtime, *, copies: int) -> float:
    """Pinned host memory that inputs are written into."""
    return copies * size.mask + size.masks + (runtime.host_hidden + copies * runtime.host_copied) * size.hidden


def footprints(
    model: Model, runtime: Runtime, placement: Placement, held: Held, *, flash: bool | None = None
) -> tuple[Footprint, ...]:
    """Host first, then every device. Inputs are copied where whole layers on several devices follow one another."""
    size = moments(model, runtime, held, flash=flash, tp=placement.tp)
    busy = [load.device for load in placement.devices if load.weights or load.cache]
    apart = len(busy) > placement.tp
    whole = placement.split == "layer" and not placement.host.layers and not placement.host.head
    copies = runtime.copies if apart and whole else 1
    found = [_footprint(placement.host, host_bytes(size, runtime, copies=copies), 0.0)]
    for load in placement.devices:
        hops = 0.0 if not apart else runtime.first_hops if load.device == busy[0] else 1.0
        used = compute_bytes(size, runtime, copies=copies, hops=hops, head=load.head) if load.device in busy else 0.0
        found.append(_footprint(load, used, runtime.context))
    return tuple(found)


def _footprint(load: Load, compute: float, context: float) -> Footprint:
    return Footprint(device=load.device, weights=load.weights, cache=load.cache, compute=compute, context=context)
