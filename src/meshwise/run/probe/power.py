"""Power in a probe: this machine's meter read in each phase, and the shares of the limit that they make."""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from meshwise.calibrate.train.probe import Row, of_kind
from meshwise.catalogue.chips import Chip, Source
from meshwise.catalogue.power import Power, power_of
from meshwise.run.meter import Meter

IDLE, WAITING, FULL = "idle power", "waiting", "sustained rate"
"""Phases: no program uses the devices; one does and waits; one multiplies matrices all the time."""
IDLE_TIME_SHARE, MAX_IDLE_SECONDS = 0.05, 3.0


class Phases(list[tuple[str, float]]):
    """The phases of a probe and their beginnings, in seconds since 1970."""

    def begin(self, what: str) -> None:
        if not self or self[-1][0] != what:
            self.append((what, time.time()))

    def rows(self, meter: Meter, devices: int) -> list[Row]:
        """Return the power of one device in the second half of each phase, when it is warm; no rows without a meter."""
        found: list[Row] = []
        for (what, begin), (_, end) in pairwise(self):
            seen = meter.between((begin + end) / 2, end)
            if seen and seen.watts > 0:
                row: Row = {"kind": "power", "what": what, "watts": seen.watts / devices}
                found.append(row | {"seconds": seen.seconds, "meter": seen.meter})
        return found


def watts(rows: Sequence[Row], what: str) -> float:
    """Return the power of one device in a phase; 0 where it was not measured."""
    return next((float(row["watts"]) for row in of_kind(rows, "power", what)), 0.0)


def shares(rows: Sequence[Row], chip: Chip) -> tuple[Chip, Power] | None:
    """Return the chip with its limit, and what it draws as shares of it; None where no full power was measured. What a FLOP and a byte
    add is that of chips like it."""
    full = watts(rows, FULL)
    if not full:
        return None
    limit, alike = chip.tdp or full, power_of(chip)
    fitted = f"meshwise probe of {rows[0]['name']}"
    return replace(chip, tdp=limit), replace(
        alike, key="", chips=(chip.key,), sold="", idle=watts(rows, IDLE) / limit or alike.idle,
        base=watts(rows, WAITING) / limit or alike.base, held=min(1.0, full / limit), fitted_on=fitted, date=str(rows[0]["date"]),
        sources=(Source(title=fitted, url="https://github.com/meshwise/meshwise"),),
    )  # fmt: skip
