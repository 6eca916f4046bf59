"""Layouts: how a model is cut over devices, one row per layout, and the rules that say which can run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwise.errors import UserError, nearest

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


def name_of(row: Mapping[str, int | str]) -> str:
    """'dp8 tp4 pp12 mbs2 full' and whatever else is not the default."""
    dp = int(row["dp_replicate"]) * int(row["dp_shard"])
    axes = [f"dp{dp}", f"tp{row['tp']}", f"pp{row['pp']}"]
    axes += [f"{axis}{row[axis]}" for axis in ("cp", "ep", "vpp") if int(row[axis]) > 1]
    axes.append(f"mbs{row['mbs']}")
    if int(row["dp_replicate"]) > 1 and int(row["dp_shard"]) > 1:
        axes.append(f"shard{row['dp_shard']}")
    axes += [f"zero{row['zero']}"] if int(row["zero"]) else []
    axes += ["sp"] if int(row["sp"]) else []
    axes += [f"{row['recompute']} recompute"] if row["recompute"] != "none" else []
    axes += [str(row["schedule"])] if row["schedule"] == "zero-bubble" else []
    return " ".join([*axes, *([f"offload {row['offload']}"] if row["offload"] != "none" else [])])


def parse_axes(text: str) -> dict[str, tuple[int, int]]:
    """'tp=8,pp=1..12,recompute=full' as bounds on axes."""
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    axes = ("dp", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp", "zero", "sp", *words)
    bounds: dict[str, tuple[int, int]] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        axis, equals, value = (part.strip() for part in piece.partition("="))
        if axis not in axes or not equals:
            raise UserError(f"'{piece}' is not axis=value{nearest(axis, axes) or '; axes: ' + ', '.join(axes)}")
        least, dots, most = value.partition("..")
        try:
            pair = [words[axis].index(word) if axis in words else int(word) for word in (least, most if dots else least)]
            if max(pair) > 10**9:
                raise ValueError
        except ValueError:
            known = ", ".join(words[axis]) if axis in words else "a whole number or a range such as 1..12"
            raise UserError(f"'{piece}': {axis} is {known}") from None
        if axis in bounds and bounds[axis] != (pair[0], pair[1]):
            raise UserError(f"{axis} is given twice with different values")
        floor = 0 if axis in ("zero", "sp", *words) else 1
        if pair[0] > pair[1] or pair[1] < floor:
            raise UserError(f"'{piece}' is an empty range: {axis} starts at {floor}")
        bounds[axis] = (max(floor, pair[0]), pair[1])
    return bounds


def layouts_of(row: Mapping[str, int | str]) -> Layouts:
    """One layout from its words, as in a plan.json."""
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    values = {f.name: words[f.name].index(str(row[f.name])) if f.name in words else int(row[f.name]) for f in fields(Layouts)}
    return Layouts.of(**{name: np.array([value]) for name, value in values.items()})
