"""Reliability: how often devices fail and what that costs; goodput.py computes the effect on a run. Without numpy, for a fast start."""

from dataclasses import dataclass

from meshwise import units
from meshwise.errors import UserError

DAY_SECONDS = 86400.0
LLAMA3_MTBF_SECONDS = 54 * DAY_SECONDS * 16_384 / 419
"""50,677 device-hours: 419 unexpected interruptions in 54 days on 16,384 H100 (The Llama 3 Herd of Models, arXiv:2407.21783, 3.3.4)."""

ACCEPTED_RANGES = {
    "mtbf": ("seconds", 1.0, 1e12), "checkpoint_bandwidth": ("bytes/s", 1.0, 1e18), "checkpoint_every": ("seconds", 1e-3, 1e9),
    "restart": ("seconds", 0.0, 1e9), "repair": ("seconds", 0.0, 1e9), "spares": ("nodes", 0.0, 1e5),
    "straggler": ("share", 0.0, 0.99),
}  # fmt: skip
"""The quantity and the accepted range of each field of a Reliability."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Failure rates, and the cost of checkpoints, restarts, repairs and stragglers. In seconds, bytes/s and shares."""

    mtbf: float = LLAMA3_MTBF_SECONDS
    """Mean time between failures of one device, its share of host, network and software included."""
    checkpoint_bandwidth: float | None = None
    """From the whole cluster to storage; None: per device as much as Llama 3 had."""
    checkpoint_every: float | None = None
    """Time between two checkpoints; None: Daly's optimum."""
    async_checkpoint: bool = False
    """Whether steps continue while a checkpoint is written: only the copy to host memory pauses them."""
    restart: float = 600.0
    """Time until steps run again, without reading the checkpoint: detect the failure, replace the node, start up. Assumed: 10 minutes."""
    repair: float = DAY_SECONDS
    """Mean time until a failed node is back. Assumed: a day."""
    spares: int | None = None
    """Spare nodes; None: as many as pay for themselves."""
    straggler: float = 0.005
    """Standard deviation of a device's step time over its mean. Assumed: 0.5%."""

    def __post_init__(self) -> None:
        for name, (quantity, least, most) in ACCEPTED_RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                given, low, high = (_shown(number, quantity) for number in (value, least, most))
                raise UserError(f"{name.replace('_', ' ')} {given} is out of range: expected {low} to {high}")
        if self.spares is not None and self.spares != int(self.spares):
            raise UserError(f"spares {self.spares} is not a whole number of nodes")


def _shown(value: float, quantity: str) -> str:
    return f"{value:,.6g}" if quantity == "nodes" or not value > 0 else units.show(value, quantity, digits=3)
