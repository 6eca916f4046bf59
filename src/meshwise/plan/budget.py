"""Budget: training by back-of-the-envelope arithmetic: FLOPs, chip-years, days at an assumed MFU, bytes, and the fewest devices
that hold them."""

import math
from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.catalogue import clusters
from meshwise.catalogue.chips import Cluster
from meshwise.cost.work import batch_tokens
from meshwise.errors import UserError, quoted
from meshwise.models.count import Count
from meshwise.models.model import Model

WEIGHT_BYTES = 2.0
MOMENT_BYTES = 8.0  # adam's two float32 moments; weights are bf16 and there is no master copy


@dataclass(frozen=True)
class Budget:
    """Seconds, bytes and FLOPs of training `tokens` tokens; 6 FLOPs per active parameter and token."""

    tokens: float
    flops_per_token: float
    flops: float
    token_seconds: float  # seconds for one token on one device at its peak rate
    device_seconds: float  # seconds for all tokens on one device at its peak rate
    devices: int
    mfu: float
    seconds: float  # seconds for all tokens on all devices at the assumed MFU
    weights: float
    optimizer: float
    activations: float
    """Bytes kept for the backward pass of one batch: `checkpoints` bf16 vectors of the model's width per layer and token."""
    checkpoints: int
    device_memory: float

    @property
    def memory(self) -> float:
        return self.weights + self.optimizer + self.activations

    @property
    def least_devices(self) -> int:
        return math.ceil(self.memory / self.device_memory)

    @property
    def least_seconds(self) -> float:
        """Seconds on the fewest devices that hold the model, at the same MFU."""
        return self.seconds * self.devices / self.least_devices

    @property
    def device_bytes(self) -> float:
        """Bytes on each device of the cluster if memory is divided evenly."""
        return self.memory / self.devices


def budget(model: Model, cluster: Cluster, tokens: float, batch_tokens: float, mfu: float, checkpoints: int) -> Budget:
    """Compute the budget of training on a cluster at an assumed MFU."""
    if not 0 < mfu <= 1:
        raise UserError(f"an MFU of {units.show(mfu, 'share')} is impossible: expected a share of the peak, such as 40%")
    chip = cluster.chip
    if len(cluster.chips) > 1:
        raise UserError(f"cluster {quoted(cluster.name)} mixes chips; a budget is for one kind of chip")
    peak = chip.flops.get("bf16") or chip.flops.get("fp16") or max(chip.flops.values())
    flops = model.flops_6n(tokens)
    kept = WEIGHT_BYTES * model.decoder.hidden * batch_tokens * checkpoints * model.decoder.layers
    return Budget(
        tokens=tokens, flops_per_token=model.flops_6n(1), flops=flops, token_seconds=model.flops_6n(1) / peak,
        device_seconds=flops / peak, devices=cluster.devices, mfu=mfu, seconds=flops / (peak * cluster.devices * mfu),
        weights=WEIGHT_BYTES * model.params, optimizer=MOMENT_BYTES * model.params, activations=kept, checkpoints=checkpoints,
        device_memory=chip.memory,
    )  # fmt: skip


def as_row(b: Budget) -> dict[str, Any]:
    """Return the budget with its derived figures, for JSON and CSV."""
    return vars(b) | {name: getattr(b, name) for name in ("memory", "least_devices", "least_seconds", "device_bytes")}


def with_budget(count: Count, on: str, batch: str, mfu: str | float, checkpoints: int) -> Count:
    """Return a count with the training budget on a cluster and its rooflines."""
    from meshwise.plan.roofline import verdicts

    if not batch:
        raise UserError("--on needs --batch, such as --batch 4M: the tokens of a step decide what overlaps and what fits")
    cluster = clusters.find_cluster(on)
    tokens, seq = batch_tokens(batch, count.seq)
    row = as_row(budget(count.model, cluster, count.tokens, tokens, units.parse(mfu, "share"), checkpoints))
    row |= {"cluster": cluster.name, "rooflines": verdicts(count.model, cluster, tokens, seq)}
    return replace(count, more=count.more | {"budget": row})
