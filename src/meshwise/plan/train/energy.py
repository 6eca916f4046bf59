"""Power of a training step, from its seconds by part, and the energy of the whole training."""

from collections.abc import Mapping

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.power import power_of
from meshwise.cost.power import STREAMING, WAITING, Activity, Energy, device_watts, node_watts, slowdown
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.energy import energy

PRODUCTS = ("matmul", "attention", "recompute")
MEMORY_BOUND = ("elementwise", "optimizer")
"""Parts of a training step that are products, and that read and write memory; in all others devices wait."""


def trained(
    ask: EnergyAsk, chip: Chip, devices: int, per_node: int, parts: Mapping[str, float], rate: float, hours: float | None
) -> Energy | None:
    """Return the power of a training step from its seconds by part, and the energy of the whole training. `rate`: share of the peak of
    products while they run. None if the chip states no limit."""
    if not chip.tdp or not sum(parts.values()):
        return None
    power, tdp = power_of(chip), chip.tdp
    limit = min(tdp, ask.power_limit or tdp)
    doing = {name: Activity(rate, 0.2) if name in PRODUCTS else STREAMING if name in MEMORY_BOUND else WAITING for name in parts}
    step = sum(parts.values())
    later = sum(seconds * slowdown(power, tdp, limit, doing[name]) for name, seconds in parts.items())
    usual = sum(seconds * device_watts(power, tdp, doing[name]) for name, seconds in parts.items())
    joules = sum(
        seconds * slowdown(power, tdp, limit, doing[name]) * device_watts(power, limit, doing[name], tdp)
        for name, seconds in parts.items()
    )
    each = joules / later
    nodes = max(1.0, devices / max(1, per_node))
    wall = nodes * node_watts(chip, min(devices, per_node), each) * ask.pue
    kwh = wall * hours * later / step / 1e3 if hours else None
    return energy(ask, chip, devices * each, wall, later / step, 1 - joules / usual, kwh)
