"""Power of a training step, from its seconds by part, and the energy of the whole training."""

from collections.abc import Mapping

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.power import power_of
from meshwise.cost.power import Activity, Energy, device_watts, node_watts, slowdown
from meshwise.plan.ask import EnergyAsk
from meshwise.plan.energy import energy

PRODUCTS = ("matmul", "attention", "recompute")
MEMORY_BOUND = ("elementwise", "optimizer")
"""Parts of a training step that are products, and that read and write memory; in all others devices wait."""
PRODUCT_BANDWIDTH, STREAMING = 0.2, 0.85  # shares of the memory's bandwidth that these two use


def trained(
    ask: EnergyAsk, chip: Chip, devices: int, per_node: int, parts: Mapping[str, float], mfu: float, hours: float | None
) -> Energy | None:
    """Return the power of a training step from its seconds by part, and the energy of the whole training. None if the chip states no
    limit."""
    if not chip.tdp or not sum(parts.values()):
        return None
    power, tdp = power_of(chip), chip.tdp
    limit = min(tdp, ask.power_limit or tdp)
    doing = _mean(parts, mfu)
    later = slowdown(power, tdp, limit, doing)
    each, usual = device_watts(power, limit, doing, tdp), device_watts(power, tdp, doing)
    nodes = max(1.0, devices / max(1, per_node))
    wall = nodes * node_watts(chip, min(devices, per_node), each) * ask.pue
    kwh = wall * hours * later / 1e3 if hours else None
    return energy(ask, chip, devices * each, wall, later, 1 - each * later / usual, kwh)


def _mean(parts: Mapping[str, float], mfu: float) -> Activity:
    """Return the mean activity of a step: parts take turns within milliseconds, faster than a device changes its clock. Products run at the
    share of the peak that the MFU implies."""
    step, products = sum(parts.values()), sum(parts.get(name, 0.0) for name in PRODUCTS)
    streams = sum(parts.get(name, 0.0) for name in MEMORY_BOUND)
    memory = (PRODUCT_BANDWIDTH * products + STREAMING * streams) / step
    return Activity(min(products / step, mfu), memory)
