"""Few for many: layouts that a formula cannot tell apart are asked of it once, and its answer is spread to all of them."""

from dataclasses import dataclass

import numpy as np

from meshwise.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Floats, Ints, Layouts
from meshwise.model import Model

SPARSE = 8
"""Codes per layout beyond which sorting them is quicker than a table of all that there could be."""
ZERO_STAGES = 4


@dataclass(frozen=True)
class Few:
    """Kinds of layouts."""

    rows: Ints
    """One layout of each kind,"""
    which: Ints
    """and the kind of every layout."""

    @staticmethod
    def neighbours(*columns: Ints) -> "Few":
        """Layouts that follow one another and are the same in every column: a search lists them so, and nothing has to be sorted."""
        differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        rows = np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(differs) + 1])
        return Few(rows, np.repeat(np.arange(len(rows)), np.diff(rows, append=len(columns[0]))))

    @staticmethod
    def of(*columns: Ints) -> "Few":
        """Layouts that are the same in every column of whole numbers, wherever they stand."""
        code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
        for column in columns:
            values = Few._coded(column, int(column.max()) + 1)
            code, size = code * len(values.rows) + values.which, size * len(values.rows)
        return Few._coded(code, size)

    def each(self, choice: Ints, choices: int) -> "Few":
        """Kinds that differ also in what they have of so many choices."""
        return Few._coded(self.which * choices + choice, len(self.rows) * choices)

    def over(self, below: "Few") -> "Few":
        """Kinds of kinds, as kinds of the layouts themselves."""
        return Few(below.rows[self.rows], self.which[below.which])

    def spread(self, value: Floats) -> Floats:
        """What was found of each kind, for every layout."""
        return value.take(self.which)

    def pick(self, values: Floats, row: Ints) -> Floats:
        """The same of several rows of it, one of them for each layout."""
        return values.ravel().take(self.which + row * len(self.rows))

    @staticmethod
    def _coded(code: Ints, size: int) -> "Few":
        if size > SPARSE * len(code):
            _, rows, which = np.unique(code, return_index=True, return_inverse=True)
            return Few(rows, which)
        row = np.full(size, -1)
        row[code] = np.arange(len(code))  # any layout of a kind stands for it
        found = np.flatnonzero(row >= 0)
        place = np.empty(size, dtype=np.int64)
        place[found] = np.arange(len(found))
        return Few(row[found], place.take(code))


@dataclass(frozen=True)
class Starts:
    """Layouts that differ only in what is chosen inside a cut with a micro-batch."""

    own: tuple[Ints, ...]
    """Columns that only stacks of shapes and tables of measurements have: which shape, and what batch."""
    starts: Few
    cuts: Few
    """How devices are laid out, whatever the micro-batch."""

    @staticmethod
    def of(model: Model, batch: "int | Ints", a: Layouts) -> "Starts":
        own = tuple(np.asarray(column) for column in (model.variant, batch) if np.ndim(column))
        cut = (*own, a.dp_replicate, a.dp_shard, a.tp, a.pp, a.cp, a.ep)
        starts = Few.neighbours(*cut, a.mbs)
        return Starts(own, starts, Few.neighbours(*(axis[starts.rows] for axis in cut)).over(starts))


@dataclass(frozen=True)
class Alike:
    """What of a layout each group of formulas looks at."""

    cuts: Few
    """How devices are laid out: bandwidths of groups."""
    shapes: Few
    """What a micro-batch computes."""
    slots: Few
    """All that says how long a micro-batch takes and stages wait for one another: not who shares out the optimizer state."""
    states: Few
    """All that says what happens once a step, and what a device holds of the weights and their state."""

    @staticmethod
    def of(here: Starts, a: Layouts, *seen: Ints) -> "Alike":
        """`seen` is what else tells cuts apart for a micro-batch: on a torus, the links that other groups leave to it."""
        starts, cuts = here.starts, here.cuts
        some = a.take(cuts.rows)
        shaped = Few.of(*(column[cuts.rows] for column in here.own), some.tp, some.cp, some.ep)
        placed = Few.of(shaped.which, some.pp, some.dp, *seen)
        paths = Few.of(placed.which[cuts.which[starts.rows]], a.mbs[starts.rows]).over(starts)
        shapes = Few.of(shaped.which[cuts.which[paths.rows]], a.mbs[paths.rows]).over(paths)
        how = ((a.schedule * len(RECOMPUTE) + a.recompute) * 2 + a.sp) * 2 + (a.vpp > 1)
        return Alike(
            cuts=cuts,
            shapes=shapes,
            slots=paths.each(how, len(SCHEDULES) * len(RECOMPUTE) * 2 * 2),
            states=starts.each(a.zero * len(OFFLOAD) + a.offload, ZERO_STAGES * len(OFFLOAD)),
        )
