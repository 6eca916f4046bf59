"""Groups of equal layouts: a formula is evaluated once per group of layouts that it cannot tell apart, and its result copied to each.

Worked: the first block of BLOOM on 384 GPUs with torchtitan has 16,380 layouts but 204 distinct (tp, cp, ep, mbs), so matrix products are
computed 204 times; it has 193 distinct device cuts, so bandwidths of communication groups are computed 193 times.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwise.cost.axes import CUTS, MODEL_CUTS, OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.models.model import Model

MAX_CODES_PER_LAYOUT = 8
"""Possible codes per layout beyond which sorting the codes is quicker than a lookup table with an entry for each possible code."""
MAX_GROUPS_PER_LAYOUT = 0.75
"""Groups per layout beyond which copying results to layouts takes longer than computing them for every layout."""
ZERO_STAGES = 4
ACTIVATION_CHOICES = len(RECOMPUTE) * 2 * 2 * 2 * 2
"""Choices that change which activations are kept: recompute, with or without sequence parallelism, interleaved or not, offloaded or not,
one micro-batch at a time or several."""


@dataclass(frozen=True)
class Groups:
    """Deduplicated layouts: `rows[k]` represents group k, `which[i]` is the group of layout i, as np.unique returns them."""

    rows: Ints
    which: Ints
    trivial: bool = False  # whether each layout is its own group, in order

    @staticmethod
    def one_each(number: int) -> "Groups":
        """Put each of `number` layouts into its own group."""
        return Groups(np.arange(number), np.arange(number), trivial=True)

    @staticmethod
    def of_runs(*columns: Ints) -> "Groups":
        """Group consecutive layouts that are equal in every column. A search lists equal cuts consecutively, so nothing is sorted."""
        differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        rows = np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(differs) + 1])
        return Groups(rows, np.repeat(np.arange(len(rows)), np.diff(rows, append=len(columns[0]))))

    @staticmethod
    def of(*columns: Ints) -> "Groups":
        """Group layouts that are equal in every column of integers, in any order."""
        code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
        for column in columns:
            values = Groups._by_code(column, int(column.max()) + 1)
            code, size = code * len(values.rows) + values.which, size * len(values.rows)
        return Groups._by_code(code, size)

    def split_by(self, choice: Ints, choices: int) -> "Groups":
        """Split each group by `choice`, one of range(choices) per layout."""
        if self.trivial:
            return self
        return Groups._by_code(self.which * choices + choice, len(self.rows) * choices).if_fewer()

    def if_fewer(self) -> "Groups":
        """Return these groups, or one per layout where there are nearly as many groups as layouts."""
        return Groups.one_each(len(self.which)) if len(self.rows) > MAX_GROUPS_PER_LAYOUT * len(self.which) else self

    def compose(self, inner: "Groups") -> "Groups":
        """Turn these groups of `inner`'s representatives into groups of the layouts themselves."""
        return Groups(inner.rows[self.rows], self.which[inner.which])

    def expand(self, values: Floats) -> Floats:
        """Copy one value per group to each layout of the group."""
        return values if self.trivial else values.take(self.which)

    def expand_row(self, values: Floats, row: Ints) -> Floats:
        """Copy values to layouts as `expand` does, from row `row[i]` of a 2-D array for layout i."""
        return values.ravel().take(self.which + row * len(self.rows))

    @staticmethod
    def _by_code(code: Ints, size: int) -> "Groups":
        """Group layouts by an integer code below `size`."""
        if size > MAX_CODES_PER_LAYOUT * len(code):
            _, rows, which = np.unique(code, return_index=True, return_inverse=True)
            return Groups(rows, which)
        row = np.full(size, -1)
        row[code] = np.arange(len(code))  # any layout of a group can represent it
        present = np.flatnonzero(row >= 0)
        place = np.empty(size, dtype=np.int64)
        place[present] = np.arange(len(present))
        return Groups(row[present], place.take(code))


@dataclass(frozen=True)
class LayoutGroups:
    """Groupings of one block of layouts, one per formula, by the axes that it reads."""

    layouts: Layouts
    extra: tuple[Ints, ...]
    """Columns beyond the axes: the model variant in a search over shapes, the batch in a table of measurements."""
    partial: Groups
    """Equal device cut and micro-batch: everything except the inner choices (ZeRO stage, recompute, schedule, offload)."""

    @staticmethod
    def of(model: Model, batch: "int | Ints", a: Layouts) -> "LayoutGroups":
        extra = tuple(np.asarray(column) for column in (model.variant, batch) if np.ndim(column))
        partial = Groups.of_runs(*extra, *(getattr(a, axis) for axis in CUTS), a.mbs).if_fewer()
        return LayoutGroups(a, extra, partial)

    @cached_property
    def cuts(self) -> Groups:
        """Equal device cut, any micro-batch: the bandwidth of communication groups depends on nothing else."""
        a, rows = self.layouts, self.partial.rows
        axes = (*self.extra, *(getattr(a, axis) for axis in CUTS))
        return Groups.of_runs(*(axis[rows] for axis in axes)).compose(self.partial)

    @cached_property
    def _sequence_work(self) -> Groups:
        """Groups of `cuts` that divide a layer alike: equal work per device and sequence."""
        a, rows = self.layouts, self.cuts.rows
        return Groups.of(*(axis[rows] for axis in (*self.extra, *(getattr(a, axis) for axis in MODEL_CUTS if axis != "pp"))))

    def passes(self, timing: Groups) -> Groups:
        """Groups of `timing` that divide a layer alike, with equal mbs: equal computation per micro-batch."""
        return Groups.of(self._sequence_work.which[self.cuts.which[timing.rows]], self.layouts.mbs[timing.rows])

    def timing(self, *link_ids: Ints) -> Groups:
        """Equal time per micro-batch and equal pipeline bubble: all but the ZeRO stage, offload and how dp is split. `link_ids` are further
        columns per cut: on a torus, the links that other groups leave to it."""
        if self.partial.trivial:
            return self.partial
        a, rows, cuts = self.layouts, self.partial.rows, self.cuts
        distinct = a.take(cuts.rows)
        placed = Groups.of(self._sequence_work.which, distinct.pp, distinct.dp, *link_ids)
        paths = Groups.of(placed.which[cuts.which[rows]], a.mbs[rows]).compose(self.partial)
        return paths.split_by(a.schedule * ACTIVATION_CHOICES + self._activation_choice, len(SCHEDULES) * ACTIVATION_CHOICES)

    @property
    def _activation_choice(self) -> Ints:
        a = self.layouts
        apart = (a.vpp > 1) * 2 + (a.schedule == SCHEDULES.index("naive"))
        return ((a.recompute * 2 + a.sp) * 4 + apart) * 2 + (a.offload == OFFLOAD.index("activations"))

    @property
    def activations(self) -> Groups:
        """Equal activation memory."""
        return self.partial.split_by(self._activation_choice, ACTIVATION_CHOICES)

    @property
    def states(self) -> Groups:
        """Equal cost once per step (reduction, optimizer, offload), and equal weights, gradients and optimizer state per device."""
        a = self.layouts
        return self.partial.split_by(a.zero * len(OFFLOAD) + a.offload, ZERO_STAGES * len(OFFLOAD))
