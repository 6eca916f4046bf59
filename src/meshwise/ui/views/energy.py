"""The power and energy of a plan in a few sentences."""

from meshwise.cost.power import Energy
from meshwise.plan.ask import EnergyAsk
from meshwise.units import figure


def asked(ask: EnergyAsk) -> bool:
    """Return whether a question says anything about power."""
    return bool(ask.power_limit or ask.grid or ask.energy_price or ask.pue != 1.0)


def energy_lines(ask: EnergyAsk, energy: Energy | None, of: str, *, verbose: bool = False) -> list[str]:
    """Return what the devices draw, what `of` takes, and what a power limit changes; nothing where it was not asked for."""
    if energy is None or not (asked(ask) or verbose):
        return []
    scaled = "" if energy.metered else ", scaled from a metered chip"
    used = [f"{figure(energy.kwh, 4)} kWh {of}"] if energy.kwh is not None else []
    used += [f"${figure(energy.dollars, 4)}"] if energy.dollars is not None else []
    used += [_carbon(energy.grams)] if energy.grams else []
    lines = [
        f"Power: {energy.watts:,.0f} W of the devices{scaled}, {energy.wall:,.0f} W at the wall"
        + (f"; {', '.join(used)}." if used else ".")
    ]
    if energy.slower > 1.0005 or ask.power_limit:
        lines.append(
            f"A limit of {energy.limit:,.0f} W per device: {100 * (energy.slower - 1):.1f}% slower, {100 * energy.saved:.1f}% less energy "
            "of the devices for the same work; the times above are without it."
        )
    return lines


def _carbon(grams: tuple[float, ...]) -> str:
    """Return the carbon at the mean of the grid, with its best and worst hour where they differ."""
    mean, best, worst = grams
    text = f"{figure(mean / 1e3, 4)} kg CO2"
    return text if best == worst else f"{text} ({figure(best / 1e3, 4)} to {figure(worst / 1e3, 4)} by hour)"
