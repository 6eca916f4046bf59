"""Layouts: how a model is distributed over devices. A struct of arrays with one row per layout; formulas take one row or a million."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwise.cost import axes
from meshwise.cost.axes import AXES, Row

Ints = NDArray[Any]  # integers, one per layout; formulas also take floats here
Floats = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """One array per axis of `axes.AXES`, all of one length. `recompute`, `schedule` and `offload` are indices of their values."""

    dp_replicate: Ints
    dp_shard: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    mbs: Ints
    vpp: Ints
    zero: Ints
    recompute: Ints
    sp: Ints
    schedule: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def dp(self) -> Ints:
        return self.dp_replicate * self.dp_shard

    @property
    def devices(self) -> Ints:
        return self.dp * self.tp * self.pp * self.cp

    def as_floats(self) -> "Layouts":
        """Convert to floats, in which formulas compute."""
        return Layouts(**{axis.name: getattr(self, axis.name).astype(np.float64) for axis in fields(self)})

    def take(self, rows: Ints | NDArray[np.bool_]) -> "Layouts":
        return Layouts(**{axis.name: getattr(self, axis.name)[rows] for axis in fields(self)})

    def row(self, number: int) -> dict[str, int | str]:
        """Return one layout in words, as in plan.json."""
        values = {axis.name: int(getattr(self, axis.name)[number]) for axis in AXES}
        return {name: axes.VALUES[name][value] if name in axes.VALUES else value for name, value in values.items()}

    @staticmethod
    def of(**given: int | Ints) -> "Layouts":
        """Build layouts from the axes that differ from their default; scalars are repeated to the length of the arrays."""
        values = {axis.name: axis.least for axis in AXES} | given
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=np.int64)) for v in values.values()))
        return Layouts(**dict(zip(values, arrays, strict=True)))

    @staticmethod
    def from_row(row: Row) -> "Layouts":
        """Build one layout from its words, as in plan.json."""
        return Layouts.of(**{axis.name: axes.index(axis.name, row[axis.name]) for axis in AXES})
