"""Watts of devices and nodes from what they do, the effect of a power limit, and energy in kWh, dollars and carbon. Pure formulas."""

from dataclasses import dataclass

from meshwise.catalogue.chips import Chip
from meshwise.catalogue.power import DESKTOP_WATTS, SERVER_WATTS_PER_DEVICE, SUPPLY_SHARE, Power

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Activity:
    """What a device does on average: shares of its datasheet's rates."""

    flops: float = 0.0  # FLOP/s of products over the peak of their type
    memory: float = 0.0  # bytes per second over the bandwidth


WAITING = Activity()


def needed(power: Power, activity: Activity) -> float:
    """Return the share of the limit that an activity would draw if nothing held it back."""
    return power.base + power.flop * activity.flops + power.byte * activity.memory


def device_watts(power: Power, limit: float, activity: Activity, tdp: float = 0.0) -> float:
    """Return the watts of a device with a power limit; `tdp`: the usual limit, of which the shares are, where the limit is lower."""
    return min(needed(power, activity) * (tdp or limit), power.held * limit)


def slowdown(power: Power, tdp: float, limit: float, activity: Activity) -> float:
    """Return the seconds under a limit over those without: (power needed above what is fixed / power left)^exponent, between the exponents
    of products and of memory by what draws the power."""
    if limit >= tdp or not tdp:
        return 1.0
    fixed = power.fixed * tdp
    wanted, left = device_watts(power, tdp, activity) - fixed, max(0.02 * tdp, power.held * limit - fixed)
    if wanted <= left:
        return 1.0
    products, memory = power.flop * activity.flops, power.byte * activity.memory
    share = products / (products + memory) if products + memory else 0.0
    exponent = share * power.flop_exponent + (1 - share) * power.byte_exponent
    return (wanted / left) ** exponent


def node_watts(chip: Chip, devices: int, each: float) -> float:
    """Return the watts at the wall of one host with this many devices of `each` watts; a CPU's and an APU's host is itself."""
    if chip.kind in ("cpu", "apple") or (chip.kind == "gpu" and not chip.host and not chip.in_servers):
        return devices * each * (1 + SUPPLY_SHARE)
    host = SERVER_WATTS_PER_DEVICE * devices if chip.in_servers else DESKTOP_WATTS
    return (devices * each + host) * (1 + SUPPLY_SHARE)


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Power at the wall, and what it costs."""

    watts: float
    """Of all devices."""
    wall: float
    """At the wall of the building: devices, hosts, power supplies, and the building's own share (PUE)."""
    limit: float
    """Power limit of one device, watts."""
    slower: float
    """Seconds under the limit over those without; 1 without a lower limit."""
    saved: float
    """Share of the energy of the same work that the limit saves."""
    metered: bool
    """Whether the power of this chip was measured, not scaled from another."""
    kwh: float | None = None
    """Of a million output tokens, or of a whole training."""
    dollars: float | None = None
    grams: tuple[float, ...] = ()
    """Grams of CO2: at the mean of the grid, at its best hour and at its worst."""


def carbon(kwh: float, grid: tuple[float, ...]) -> tuple[float, ...]:
    """Return grams of CO2 of some energy at the mean of a grid, its best and its worst hour; () where no grid is given."""
    return (kwh * sum(grid) / len(grid), kwh * min(grid), kwh * max(grid)) if grid else ()
