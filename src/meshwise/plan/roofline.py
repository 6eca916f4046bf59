"""Roofline verdicts without a search: whether each device has enough tokens per step to hide the communication of FSDP or tensor
parallelism, at datasheet rates."""

import math
from dataclasses import dataclass
from itertools import product

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Cluster
from meshwise.cost.layout import Layouts
from meshwise.cost.train.comm import Communicators, Fabric
from meshwise.models.model import Model

IDEAL_LINKS = Calibration(link=1.0, network=1.0)  # links at their full datasheet bandwidth


@dataclass(frozen=True)
class Roofline:
    """Tokens per device and step, and how many are needed to hide each kind of communication (How to Scale Your Model, part 5)."""

    devices: int
    sequences: float
    tokens: float  # tokens per device and step
    fsdp: float | None
    """Tokens needed to hide FSDP's all-gather of weights over all devices: a forward pass moves 2 bytes per parameter and computes
    2 FLOPs per active parameter and token. None on one device."""
    mixed: float | None
    """Tokens needed when one torus axis reduces activations (tensor parallelism) and the others gather weights (FSDP). None
    without a torus of two axes, for models with experts or without a feed-forward width, and where pure FSDP is best."""
    best_fsdp: float | None  # number of data ranks at which both kinds of communication take equally long
    pod_tokens: float
    pod: float | None  # tokens per pod (or site) needed to hide the gradient reduction between pods; None for a single pod

    @property
    def powers(self) -> tuple[int, int]:
        """The powers of two nearest to the best split of a pod into data and tensor ranks."""
        assert self.best_fsdp is not None
        fsdp = 2 ** round(math.log2(max(1.0, self.best_fsdp)))
        return fsdp, 2 ** math.floor(math.log2(max(1.0, self.devices / fsdp)))


def roofline(model: Model, cluster: Cluster, batch_tokens: float, seq: int) -> Roofline:
    """Compute every bound from the chip's peak rate and its links."""
    _, node = cluster.nodes[0]
    chip = node.chips[0][1]
    peak = chip.flops.get("bf16") or chip.flops.get("fp16") or max(chip.flops.values())
    fabric = Fabric.of(cluster, IDEAL_LINKS)
    pods = cluster.node_count if cluster.torus else 1
    devices = cluster.devices // pods
    whole = Communicators.of(fabric, Layouts.of(dp_shard=devices).as_floats()).shard
    mixed, best = _mixed(model, fabric, peak, batch_tokens / pods, devices)
    total_over_active = model.params / model.active_params  # all experts are gathered, whether a token needs them or not
    return Roofline(
        devices=devices, sequences=batch_tokens / seq, tokens=batch_tokens / cluster.devices,
        fsdp=total_over_active * peak / float(whole.bandwidth[0]) if devices > 1 else None, mixed=mixed, best_fsdp=best,
        pod_tokens=batch_tokens / pods, pod=total_over_active * peak * devices / fabric.network if pods > 1 else None,
    )  # fmt: skip


def _mixed(model: Model, fabric: Fabric, peak: float, batch_tokens: float, devices: int) -> tuple[float | None, float | None]:
    """Return the tokens per device that FSDP with tensor parallelism needs, and the best number of data ranks (How to Scale Your Model,
    part 5). Worked: v5p, two closed axes gather and one sums: (459e12 / 90e9)^2 / (4 links x 2 links x 28,672) = 113 tokens, and sqrt(2 x
    4.19e6 x 8,960 / 28,672) = 1,619 ranks."""
    width = model.decoder.ffn
    if fabric.torus is None or not width or any(op.expert for op in model.ops):
        return None, None
    links = fabric.torus.links
    tensor = max(links, key=lambda count: count * (sum(links) - count))
    gather = sum(links) - tensor
    best = math.sqrt(batch_tokens / width * gather / tensor * devices) if gather else math.inf
    if best >= devices:
        return None, None
    return (peak / fabric.torus.link) ** 2 / (gather * tensor * width), best


def verdicts(model: Model, cluster: Cluster, batch_tokens: float, seq: int) -> list[str]:
    """Return one sentence per bound."""
    r = roofline(model, cluster, batch_tokens, seq)
    lines: list[str] = []
    if r.sequences < cluster.devices:
        lines.append(
            f"Data parallelism alone stops at {r.sequences:,.0f} of the {cluster.devices:,} devices: a batch has that many sequences."
        )
    if r.fsdp is not None:
        method = "FSDP over batch and sequence" if r.sequences < cluster.devices else "Pure FSDP"
        lines.append(
            f"{method} would be {_bound(r.tokens, r.fsdp)}: {r.tokens:,.0f} tokens per device and step, {r.fsdp:,.0f} needed to hide "
            "the all-gather of weights, at datasheet rates."
        )
    if r.mixed is not None and r.best_fsdp is not None:
        fsdp, tensor = r.powers
        where = " in each pod" if r.pod is not None else ""
        lines.append(
            f"FSDP with tensor parallelism would be {_bound(r.tokens, r.mixed)}: {r.mixed:,.0f} tokens per device needed; best near "
            f"{r.best_fsdp:,.0f} x {r.devices / r.best_fsdp:.1f}{where}, in powers of two {fsdp:,} x {tensor}."
        )
        lines += _not_a_slice(cluster, fsdp * tensor)
    if r.pod is not None:
        lines.append(
            f"Data parallelism between pods would be {_bound(r.pod_tokens, r.pod)}: {r.pod_tokens:,.0f} tokens per pod and step, "
            f"{r.pod:,.0f} needed to hide the reduction of gradients over the network between pods."
        )
    return lines


def _bound(tokens: float, needed: float) -> str:
    return "communication-bound" if tokens < needed else "compute-bound"


def _not_a_slice(cluster: Cluster, devices: int) -> list[str]:
    """Return a sentence where no block of the torus has this many chips: 8,192 in 16x20x28 would need an axis of 32."""
    shape = cluster.torus
    sides = [[d for d in range(1, side + 1) if devices % d == 0] for side in shape]
    if any(math.prod(block) == devices for block in product(*sides)):
        return []
    return [
        f"No block of {'x'.join(map(str, shape))} has {devices:,} chips, so those powers of two cannot be laid out as they are."
    ]
