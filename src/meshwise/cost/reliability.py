"""Reliability: how often devices fail and what that costs; goodput.py says what becomes of a run. No arrays here: start-up is felt."""

from dataclasses import dataclass

from meshwise import units
from meshwise.errors import UserError

DAY = 86400.0
LLAMA3_MTBF = 54 * DAY * 16_384 / 419
"""50,677 device-hours: 419 unexpected interruptions in 54 days on 16,384 H100 (The Llama 3 Herd of Models, arXiv:2407.21783, 3.3.4)."""

ACCEPTED = {
    "mtbf": ("seconds", 1.0, 1e12),
    "checkpoint_bandwidth": ("bytes/s", 1.0, 1e18),
    "checkpoint_every": ("seconds", 1e-3, 1e9),
    "restart": ("seconds", 0.0, 1e9),
    "repair": ("seconds", 0.0, 1e9),
    "spares": ("nodes", 0.0, 1e5),
    "straggler": ("share", 0.0, 0.99),
}
"""The quantity of each number of a Reliability, the least and the most."""


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often things fail and what that costs. Seconds, bytes/s and shares."""

    mtbf: float = LLAMA3_MTBF
    """Mean time between failures of one device, its share of host, network and software included."""
    checkpoint_bandwidth: float | None = None
    """To the storage, of the whole cluster; as much a device as Llama 3 had where it is not given."""
    checkpoint_every: float | None = None
    """Between two checkpoints; Daly's optimum where it is not given."""
    async_checkpoint: bool = False
    """Steps go on while a checkpoint is written: only the copy into the hosts' memory holds them up."""
    restart: float = 600.0
    """Until steps run again, but for reading the checkpoint: notice, find and replace the node, start up. Assumed: 10 minutes."""
    repair: float = DAY
    """Until a node is back, as a mean. Assumed: a day."""
    spares: int | None = None
    """Nodes that stand by; as many as pay for themselves where it is not given."""
    straggler: float = 0.005
    """Standard deviation of a device's step time over its mean. Assumed: 0.5%."""

    def __post_init__(self) -> None:
        for name, (quantity, least, most) in ACCEPTED.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag} {_shown(value, quantity)} is not {_shown(least, quantity)} to {_shown(most, quantity)}")
        if self.spares is not None and self.spares != int(self.spares):
            raise UserError(f"--spares {self.spares} is no whole number of nodes")


def _shown(value: float, quantity: str) -> str:
    return f"{value:,.6g}" if quantity == "nodes" or not value > 0 else units.show(value, quantity, digits=3)
