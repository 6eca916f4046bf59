"""The axes of a training layout: one row each. Search, rules, tables, `--fix`, plan.json and the trainer's flags all read this table.

Without numpy, so that `--help` and parsing a question start fast; `layout.py` has the arrays of layouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from meshwise.errors import UserError, nearest

RECOMPUTE = ("none", "selective", "full", "mlp", "layernorm", "moe_act", "minimal", "save_qkv_proj", "save_out_proj")
"""Recomputation of activations. selective: as the framework means it (Framework.selective); mlp, layernorm and moe_act: Megatron's modules;
minimal and save_*: MaxText's policies. `cost/train/recompute.py` says what each keeps and repeats."""
SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "naive")
"""Pipeline schedules. naive: stages run one after another in one process, as layers that a device_map spreads over devices do."""
OFFLOAD = ("none", "optimizer", "parameters", "activations")

Row = Mapping[str, int | str]  # one layout in words, as in plan.json: {"dp_replicate": 1, "tp": 8, ..., "recompute": "full"}
Bounds = Mapping[str, tuple[int, int]]  # the least and most value per axis that the user allows


@dataclass(frozen=True)
class Axis:
    """One axis of a layout, named as in torchtitan."""

    name: str
    help: str
    least: int = 1  # its smallest value and default: 1 for a number of devices, 0 for a choice that is off
    values: tuple[str, ...] = ()  # names of its values, where they are words; a layout stores their index
    role: Literal["cut", "batch", "inner"] = "inner"
    """Whether it divides the devices into groups, sets the micro-batch, or is an inner choice for a given cut and micro-batch."""
    minor: bool = False
    """Whether layouts that differ only in this axis give every device nearly the same work, so that tables merge them."""
    shown: str = ""  # its text in the name of a layout where it is not the default; '' where layout_name handles it
    short: str = ""  # its text in a narrow table
    within: str = ""  # the axis without which it has its default: no stages, no interleaving

    @property
    def default(self) -> int | str:
        """Its default, as in plan.json."""
        return self.values[self.least] if self.values else self.least


AXES = (
    Axis("dp_replicate", "Copies of the model.", role="cut", minor=True),
    Axis("dp_shard", "Devices that shard weights, gradients or optimizer state (ZeRO, FSDP).", role="cut", minor=True),
    Axis("tp", "Tensor parallelism.", role="cut", shown="tp{}"),
    Axis("pp", "Pipeline stages.", role="cut", shown="pp{}"),
    Axis("cp", "Context parallelism.", role="cut", shown="cp{}"),
    Axis("ep", "Expert parallelism.", role="cut", shown="ep{}"),
    Axis("etp", "Tensor parallelism of experts: 1, or the same as tp.", role="cut", shown="etp{}", within="tp"),
    Axis("mbs", "Sequences in a micro-batch.", role="batch", shown="mbs{}"),
    Axis("vpp", "Model chunks per pipeline stage (interleaving).", shown="vpp{}", within="pp"),
    Axis("zero", "ZeRO stage.", least=0, minor=True, shown="zero{}", short="z{}"),
    Axis("recompute", "Which activations are recomputed.", least=0, values=RECOMPUTE, shown="{} recompute", short="{}"),
    Axis("sp", "Sequence parallelism within tensor parallelism.", least=0, minor=True, shown="sp", within="tp"),
    Axis("schedule", "Pipeline schedule.", least=0, values=SCHEDULES, minor=True, shown="{}", short="zb", within="pp"),
    Axis("offload", "State kept in host memory.", least=0, values=OFFLOAD, minor=True, shown="offload {}", short="off-{}"),
)
BY_NAME = {axis.name: axis for axis in AXES}
NAMES = tuple(BY_NAME)
VALUES = {axis.name: axis.values for axis in AXES if axis.values}
CUTS = tuple(axis.name for axis in AXES if axis.role == "cut")
INNER = tuple(axis.name for axis in AXES if axis.role == "inner")
MINOR = tuple(axis.name for axis in AXES if axis.minor)
DATA = ("dp_replicate", "dp_shard")  # axes of data parallelism: their product is dp
MODEL_CUTS = tuple(axis for axis in CUTS if axis not in DATA)  # axes that divide the model or its sequences, not the batch
BOUNDABLE_AXES = ("dp", *NAMES)  # axes that `--fix` and `--allow` accept


def index(axis: str, value: int | str) -> int:
    """Return the number that a layout stores for a value: index('recompute', 'full') is 2."""
    return VALUES[axis].index(str(value)) if axis in VALUES else int(value)


def parse(text: str) -> dict[str, tuple[int, int]]:
    """Parse bounds such as 'tp=8,pp=1..12,recompute=full'."""
    bounds: dict[str, tuple[int, int]] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        axis, equals, value = (part.strip() for part in piece.partition("="))
        if axis not in BOUNDABLE_AXES or not equals:
            raise UserError(
                f"'{piece}' is not axis=value{nearest(axis, BOUNDABLE_AXES) or '; axes: ' + ', '.join(BOUNDABLE_AXES)}"
            )
        pair = _range(axis, value, piece)
        if axis in bounds and bounds[axis] != pair:
            raise UserError(f"{axis} is given twice with different values")
        bounds[axis] = pair
    return bounds


def _range(axis: str, value: str, piece: str) -> tuple[int, int]:
    least, dots, most = value.partition("..")
    try:
        pair = [index(axis, word) for word in (least, most if dots else least)]
        if max(pair) > 10**9:
            raise ValueError
    except ValueError:
        known = ", ".join(VALUES[axis]) if axis in VALUES else "a whole number or a range such as 1..12"
        raise UserError(f"'{piece}': {axis} is {known}") from None
    floor = BY_NAME[axis].least if axis in BY_NAME else 1
    if pair[0] > pair[1] or pair[1] < floor:
        raise UserError(f"'{piece}' is an empty range: {axis} starts at {floor}")
    return max(floor, pair[0]), pair[1]


def layout_name(row: Row, *, short: bool = False) -> str:
    """Return 'dp8 tp4 pp12 mbs2 zero1 full recompute', or short: 'dp8 tp4 pp12 mbs2 z1 full'. Omits defaults except dp, tp, pp, mbs."""
    replicas, shards = (int(row[axis]) for axis in DATA)
    words = [f"dp{replicas * shards}", f"tp{row['tp']}", f"pp{row['pp']}"]
    words += [f"{axis}{row[axis]}" for axis in ("cp", "ep") if int(row[axis]) > 1]
    words += [f"etp{row['etp']}"] if int(row["ep"]) > 1 and row["etp"] != row["tp"] else []
    words += [f"vpp{row['vpp']}"] if int(row["vpp"]) > 1 else []
    words.append(f"mbs{row['mbs']}")
    words += [f"shard{shards}"] if replicas > 1 and shards > 1 else []
    for axis in ("zero", "sp", "recompute", "schedule", "offload"):
        value, about = row[axis], BY_NAME[axis]
        if index(axis, value) == about.least or value == "interleaved":  # vpp implies it
            continue
        brief = short and about.short and value != "naive"
        words.append((about.short if brief else about.shown).format(value))
    return " ".join(words)
