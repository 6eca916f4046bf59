"""Rank of layouts: expected seconds, which count the chance that a layout does not fit and how far it lies outside of measured ones."""

from dataclasses import dataclass

import numpy as np

from meshwise.catalogue import evidence
from meshwise.catalogue.calibrations import calibrations
from meshwise.cost import interval
from meshwise.cost.layout import Floats, Layouts
from meshwise.cost.train.question import Question
from meshwise.plan.train.rules import Mask

EXTRAPOLATED_SHARE = 0.03
"""Share by which a layout must be faster for each doubling of an axis beyond what was measured of its program. An assumption: of many
layouts the one with the luckiest error looks best, and the pick among layouts never seen lost 2.2% (docs/reports/accuracy.md)."""


@dataclass(frozen=True)
class Rank:
    """What the order of layouts depends on beside their predicted seconds."""

    chance: Floats  # probability that the layout fits
    factor: Floats
    """Expected over predicted seconds: a start that fails counts as a lost run, so 1 / chance; more where the layout is extrapolated."""
    risky: Mask  # whether the chance of not fitting exceeds the accepted one (--risk): such layouts come after all others

    @staticmethod
    def of(q: Question, layouts: Layouts, needs: Floats) -> "Rank":
        """Rank layouts that need these bytes on the fullest device."""
        room = q.chip.memory * max(1.0, 1 - q.work.reserve)  # `explain` asks for unlimited memory with a negative reserve
        chance = interval.fits(needs, room, q.calibration.memory_spread)
        factor = (1 + EXTRAPOLATED_SHARE * extrapolated(q, layouts)) / np.maximum(chance, 1e-9)
        return Rank(chance, factor, chance < 1 - q.work.risk)


def programs(q: Question) -> tuple[str, ...]:
    """Return the programs whose runs are evidence for a question: its own, and those of calibrations fitted to it."""
    own = q.work.framework.key
    together = {name for known in calibrations() if own in known.frameworks for name in known.frameworks}
    return tuple(sorted({own, *together}))


def extrapolated(q: Question, layouts: Layouts) -> Floats:
    """Return the doublings by which axes exceed the largest that was measured, and sequences on a context rank fall below the shortest."""
    known, beyond = evidence.bounds(programs(q), q.chip.kind), np.zeros(len(layouts))
    for axis, largest in known.largest.items():
        beyond += np.log2(np.maximum(1.0, getattr(layouts, axis) / largest))
    shorter = np.log2(np.maximum(1.0, known.shortest / (q.work.seq / layouts.cp)))
    return beyond + np.where(layouts.cp > 1, shorter, 0.0)
