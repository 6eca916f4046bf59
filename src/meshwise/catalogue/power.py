"""Power of a device by what it does, as shares of its limit, fitted on meters; of a node around its devices; and of a grid in carbon."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Chip, Source
from meshwise.errors import UserError, quoted
from meshwise.units import Count

Sold = Literal["in servers", "as cards", ""]


@dataclass(frozen=True, kw_only=True)
class Power:
    """Shares of a device's power limit. Work adds to `base` up to `held` of the limit, where clocks fall."""

    key: str = field(default="", metadata={"derived": True})
    chips: tuple[str, ...]
    sold: Sold  # the kind of chips that it stands for where they have no file of their own; '' for none
    idle: Count  # no program has opened the device
    base: Count  # a program runs, and the memory and the matrix units do nothing
    flop: Count  # added at the datasheet's peak of products
    byte: Count  # added at the datasheet's bandwidth
    held: Count  # what the device draws where its limit holds it back
    flop_exponent: Count
    byte_exponent: Count
    """Rate over that without a lower limit = (power that is left above `fixed` over that needed) to this power: of work bound by
    products, and of work bound by memory."""
    fixed: Count  # what no lower clock saves
    fitted_on: str
    date: str
    error: Count  # largest error on workloads left out of the fit
    sources: tuple[Source, ...]


SERVER_WATTS_PER_DEVICE, DESKTOP_WATTS = 115.0, 60.0
"""Host, network cards and fans of a server for each of its devices, and a desktop without its cards, in watts."""
SUPPLY_SHARE = 0.10
"""Loss of power supplies, and fans that follow the load. With both: 8 H100 at 5.5 kW make 7.0 kW at the wall, 8 B200 at 7.9 kW 9.6 kW
(MLPerf's meters: 6.8 to 7.2, and 9.6 kW)."""
GRIDS = {
    "world": 480.0, "eu": 240.0, "us": 370.0, "france": 55.0, "germany": 380.0, "uk": 210.0, "sweden": 25.0, "norway": 30.0,
    "poland": 660.0, "china": 560.0, "india": 710.0, "japan": 480.0, "canada": 170.0, "switzerland": 40.0,
}  # fmt: skip
"""Grams of CO2 per kWh of a year's mean, rounded (recalled from Ember's yearly electricity data; check before you cite)."""
MAX_INTENSITY = 2000.0


@files.cached
def powers() -> tuple[Power, ...]:
    """Return every fitted device."""
    paths = files.files("power", ".toml")
    return tuple(replace(records.read(Power, files.table_of(path), path.name), key=key) for key, path in paths.items())


def power_of(chip: Chip) -> Power:
    """Return the shares of a chip: its own, else those of chips that are sold as it is."""
    own = next((power for power in powers() if chip.key in power.chips), None)
    sold = "in servers" if chip.in_servers else "as cards"
    return own or next(power for power in powers() if power.sold == sold)


def measured(chip: Chip) -> bool:
    """Return whether the power of this very chip was metered."""
    return chip.key in power_of(chip).chips


def intensity(text: str) -> tuple[float, ...]:
    """Return grams of CO2 per kWh of a grid: its name, one number, or 24 numbers by hour of the day, '120,110,...'; () of ''."""
    if not text:
        return ()
    name = text.strip().lower()
    if name in GRIDS:
        return (GRIDS[name],)
    words = [word for word in re.split(r"[,\s]+", name.removesuffix("g/kwh").removesuffix("g")) if word]
    try:
        values = tuple(float(word) for word in words)
    except ValueError:
        values = ()
    if len(values) not in (1, 24) or not all(0 <= value <= MAX_INTENSITY for value in values):
        raise UserError(f"--grid {quoted(text)}: expected grams of CO2 per kWh, 24 of them by hour, or one of {', '.join(GRIDS)}")
    return values
