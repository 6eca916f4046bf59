"""The predicted memory of a run on each device of its machine."""

import resource
from dataclasses import fields
from typing import Any, cast

from meshwise.catalogue import here
from meshwise.cost.train.parameters import Parameters
from meshwise.plan.train.choice import Choice
from meshwise.run.train.launch import Launch
from meshwise.units import GIB
from meshwise.workers.trainer.contract.settings import Layout


def layout_of(row: "dict[str, int | str]") -> Layout:
    """Convert a planner's layout into the trainer's. Without shards, the ZeRO stage is the default."""
    axes = {f.name: row[f.name] for f in fields(Layout)}
    return Layout(**cast(Any, axes | ({} if int(row["dp_shard"]) > 1 else {"zero": Layout.zero})))


def parts(ready: Launch, row: Choice) -> dict[str, float]:
    """Return the predicted bytes of a device by kind, with 4 + 4 + 8 bytes per parameter where it has float32 (docs/use/run.md)."""
    s, a = ready.settings, layout_of(row.layout)
    if s.device == "cuda" and s.precision != "fp32":
        return row.memory
    sizes = Parameters.of(ready.model)
    layers = -(-sizes.layers // a.pp)
    tables = sizes.table * (sizes.tables if a.pp == 1 else 1)
    params = (sizes.dense * layers / sizes.layers + tables) / (a.tp * a.dp_shard * a.cp)
    wide = 2 if s.precision == "fp32" else 1
    states = {"weights": 4 * params, "gradients": 4 * params, "optimizer": 8 * params}
    return row.memory | states | {"activations": wide * row.memory["activations"]}


def memory_warning(ready: Launch, row: Choice) -> str:
    """Return a warning if a run on a CPU may exceed the machine's memory; '' otherwise. On a GPU the run itself fails soon."""
    if ready.settings.device == "cuda":
        return ""
    # the fixed memory of a process differs too much between builds of PyTorch for CPUs
    each = sum(size for kind, size in parts(ready, row).items() if kind != "context")
    have, many = here.host_memory(), ready.processes_here
    if each * many <= have:
        return ""
    return (
        f"predicted to need {each * many / GIB:.1f} GiB ({each / GIB:.1f} GiB per process), but this machine has "
        f"{have / GIB:.1f} GiB: it may be killed; a smaller --mbs, --batch or --seq, or --recompute full, needs less"
    )


def capacity(ready: Launch, now: Choice) -> float:
    """Return the bytes of a device: a GPU's memory, or the share of this machine's memory that each process on its CPU has."""
    if ready.settings.device == "cuda":
        return now.capacity
    share = here.host_memory() / ready.processes_here
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return share if limit == resource.RLIM_INFINITY else min(share, float(limit))
