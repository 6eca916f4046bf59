"""Layouts of 64 devices that exercise every axis, for exporters and the parsers of other programs."""

from collections.abc import Iterator
from typing import Any

from meshwise.programs.program import Program, Setup
from support.launch_files import base, with_layout

PLAIN: dict[str, Any] = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "vpp": 1, "schedule": "1f1b", "sp": 0, "offload": "none", "mbs": 1, "recompute": "none",
    "zero": 1, "dp_replicate": 1, "dp_shard": 64,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero 0": {"zero": 0, "dp_replicate": 64, "dp_shard": 1},
    "zero 1": {},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "zero 3, full": {"zero": 3, "recompute": "full"},
    "zero 3, selective": {"zero": 3, "recompute": "selective"},
    "hsdp": {"zero": 3, "dp_replicate": 8, "dp_shard": 8},
    "instances": {"zero": 1, "dp_replicate": 8, "dp_shard": 8},
    "tp": {"zero": 3, "tp": 8, "sp": 1, "dp_shard": 8},
    "tp without sp": {"zero": 3, "tp": 8, "dp_shard": 8},
    "tp, zero 1": {"tp": 8, "sp": 1, "dp_shard": 8},
    "cp": {"zero": 3, "cp": 4, "dp_shard": 16},
    "cp, zero 1": {"cp": 4, "dp_shard": 16},
    "pp": {"pp": 4, "dp_shard": 16, "mbs": 2},
    "pp, zero 2": {"pp": 4, "dp_shard": 16, "mbs": 2, "zero": 2},
    "vpp": {"pp": 4, "dp_shard": 16, "vpp": 4, "schedule": "interleaved"},
    "vpp, zero 2": {"pp": 4, "dp_shard": 16, "vpp": 4, "schedule": "interleaved", "zero": 2},
    "zero bubble": {"pp": 4, "dp_shard": 16, "vpp": 2, "schedule": "zero-bubble", "zero": 2},
    "uneven": {"pp": 3, "dp_shard": 21},
    "layernorm": {"tp": 2, "sp": 1, "dp_shard": 32, "recompute": "layernorm"},
    "full": {"tp": 2, "sp": 1, "pp": 2, "dp_shard": 16, "recompute": "full"},
    "offload": {"offload": "optimizer"},
    "offload, zero 3": {"offload": "optimizer", "zero": 3},
    "offload of parameters": {"offload": "parameters", "zero": 3},
    "offload of activations": {"offload": "activations"},
}
PRECISIONS = ("fp16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4")
EXPERTS: dict[str, dict[str, Any]] = {
    "ep": {"ep": 8, "dp_shard": 64},
    "ep, zero 3": {"ep": 8, "zero": 3},
    "ep and tp": {"ep": 8, "tp": 2, "sp": 1, "dp_shard": 32, "etp": 1},
    "ep and etp": {"ep": 8, "tp": 2, "sp": 1, "dp_shard": 32, "etp": 2},
}


def samples(program: Program) -> Iterator[tuple[str, Setup]]:
    """Yield the layouts above that a program does not refuse."""
    dense, mixed = base("dense"), base("experts")
    tried = {name: with_layout(dense, PLAIN | layout) for name, layout in LAYOUTS.items() if name != "uneven"}
    tried |= {name: with_layout(dense, PLAIN | {"zero": 3} | {"precision": name}) for name in PRECISIONS}
    tried |= {f"{name}, zero 1": with_layout(dense, PLAIN | {"precision": name}) for name in PRECISIONS}
    tried |= {name: with_layout(mixed, PLAIN | layout) for name, layout in EXPERTS.items()}
    for name, setup in tried.items():
        if not list(program.refuse(setup)):
            yield name, setup
