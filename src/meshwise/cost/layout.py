"""Layouts: how a model is cut over devices, one row per layout, and the rules that say which can run."""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[Any]
"""Whole numbers, one per layout; formulas take them as floats too."""
Floats = NDArray[Any]

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "interleaved", "zero-bubble")
OFFLOAD = ("none", "optimizer", "parameters")
Axis = Literal["dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp", "zero", "recompute", "sp", "schedule", "offload"]


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Struct of arrays, all of one length. Named as torchtitan names them; `recompute`, `schedule` and `offload` are indices."""

    dp_replicate: Ints
    dp_shard: Ints
    tp: Ints
    pp: Ints
    cp: Ints
    ep: Ints
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
        """The same layouts as floats, which is what formulas work in."""
        return Layouts(**{axis.name: getattr(self, axis.name).astype(np.float64) for axis in fields(self)})

    def take(self, rows: Ints | NDArray[np.bool_]) -> "Layouts":
        return Layouts(**{axis.name: getattr(self, axis.name)[rows] for axis in fields(self)})

    def row(self, index: int) -> dict[str, int | str]:
        """One layout in words."""
        values = {axis.name: int(getattr(self, axis.name)[index]) for axis in fields(self)}
        words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
        return {name: words[name][value] if name in words else value for name, value in values.items()}

    @staticmethod
    def of(**axes: int | Ints) -> "Layouts":
        """Layouts from the axes that are not 1 (or 0): scalars are repeated to the length of the arrays."""
        ones = dict.fromkeys(("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp"), 1)
        zeros = dict.fromkeys(("zero", "recompute", "sp", "schedule", "offload"), 0)
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, dtype=np.int64)) for v in (ones | zeros | axes).values()))
        return Layouts(**dict(zip(ones | zeros | axes, arrays, strict=True)))
