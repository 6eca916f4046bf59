"""Energy: the power of a plan with its dollars and carbon, as its question states prices and grid."""

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.power import intensity, measured
from meshwise.cost.power import Energy, carbon
from meshwise.plan.ask import EnergyAsk


def energy(
    ask: EnergyAsk, chip: Chip, watts: float, wall: float, slower: float, saved: float, kwh: float | None
) -> Energy:  # fmt: skip
    """Return power and energy with what they cost in dollars and carbon."""
    dollars = kwh * ask.energy_price if kwh is not None and ask.energy_price else None
    return Energy(
        watts=watts, wall=wall, limit=min(chip.tdp or 0.0, ask.power_limit or chip.tdp or 0.0), slower=slower, saved=saved,
        metered=measured(chip), kwh=kwh, dollars=dollars, grams=carbon(kwh, intensity(ask.grid)) if kwh is not None else (),
    )  # fmt: skip
