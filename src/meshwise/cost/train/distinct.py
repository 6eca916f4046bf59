"""Few for many: layouts that a formula cannot tell apart are asked of it once, and its answer is spread to all of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.models.model import Model

SPARSE = 8
"""Codes per layout beyond which sorting them is quicker than a table of all that there could be."""
NEARLY_ALL = 0.75
"""Kinds per layout beyond which spreading what was found of them takes longer than finding it for every layout."""
ZERO_STAGES = 4
KEPT = len(RECOMPUTE) * 2 * 2
"""Ways to keep activations: recompute, with sequence parallelism or without, interleaved or not."""


@dataclass(frozen=True)
class Few:
    """Kinds of layouts."""

    rows: Ints
    """One layout of each kind,"""
    which: Ints
    """and the kind of every layout."""
    single: bool = False
    """Every layout is a kind of its own, in their order."""

    @staticmethod
    def singles(number: int) -> "Few":
        return Few(np.arange(number), np.arange(number), single=True)

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
        if self.single:
            return self
        return Few._coded(self.which * choices + choice, len(self.rows) * choices).if_fewer()

    def if_fewer(self) -> "Few":
        """These, or where there are nearly as many kinds as layouts, every layout by itself."""
        return Few.singles(len(self.which)) if len(self.rows) > NEARLY_ALL * len(self.which) else self

    def over(self, below: "Few") -> "Few":
        """Kinds of kinds, as kinds of the layouts themselves."""
        return Few(below.rows[self.rows], self.which[below.which])

    def spread(self, value: Floats) -> Floats:
        """What was found of each kind, for every layout."""
        return value if self.single else value.take(self.which)

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
class Alike:
    """Layouts by what formulas look at."""

    layouts: Layouts
    own: tuple[Ints, ...]
    """Columns that only stacks of shapes and tables of measurements have: which shape, and what batch."""
    starts: Few
    """Cuts with a micro-batch: all but what is chosen inside."""

    @staticmethod
    def of(model: Model, batch: "int | Ints", a: Layouts) -> "Alike":
        own = tuple(np.asarray(column) for column in (model.variant, batch) if np.ndim(column))
        return Alike(a, own, Few.neighbours(*own, a.dp_replicate, a.dp_shard, a.tp, a.pp, a.cp, a.ep, a.mbs).if_fewer())

    @cached_property
    def cuts(self) -> Few:
        """How devices are laid out, whatever the micro-batch: bandwidths of groups."""
        a, rows = self.layouts, self.starts.rows
        axes = (*self.own, a.dp_replicate, a.dp_shard, a.tp, a.pp, a.cp, a.ep)
        return Few.neighbours(*(axis[rows] for axis in axes)).over(self.starts)

    @cached_property
    def _computed(self) -> Few:
        """Of cuts: what each device computes of a sequence."""
        a, rows = self.layouts, self.cuts.rows
        return Few.of(*(axis[rows] for axis in (*self.own, a.tp, a.cp, a.ep)))

    def shapes(self, slots: Few) -> Few:
        """Of slots: what a micro-batch computes."""
        return Few.of(self._computed.which[self.cuts.which[slots.rows]], self.layouts.mbs[slots.rows])

    def slots(self, *seen: Ints) -> Few:
        """All that says how long a micro-batch takes and stages wait for one another: not who shares out the optimizer state. `seen` is
        what else tells cuts apart for it: on a torus, the links that other groups leave."""
        if self.starts.single:
            return self.starts
        a, rows, cuts = self.layouts, self.starts.rows, self.cuts
        some = a.take(cuts.rows)
        placed = Few.of(self._computed.which, some.pp, some.dp, *seen)
        paths = Few.of(placed.which[cuts.which[rows]], a.mbs[rows]).over(self.starts)
        return paths.each(a.schedule * KEPT + self._kept, len(SCHEDULES) * KEPT)

    @property
    def _kept(self) -> Ints:
        a = self.layouts
        return (a.recompute * 2 + a.sp) * 2 + (a.vpp > 1)

    @property
    def activations(self) -> Few:
        """All that says what a micro-batch leaves behind for its backward pass."""
        return self.starts.each(self._kept, KEPT)

    @property
    def states(self) -> Few:
        """All that says what happens once a step, and what a device holds of the weights and their state."""
        a = self.layouts
        return self.starts.each(a.zero * len(OFFLOAD) + a.offload, ZERO_STAGES * len(OFFLOAD))
