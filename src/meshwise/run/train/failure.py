"""Aftermath: why a run failed, and where memory ran out, what the planner says of it and which layout would fit."""

import json
import resource
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from meshwise.catalogue import here
from meshwise.cost.train.memory import Parameters
from meshwise.plan.train.choice import Choice, choice
from meshwise.plan.train.search import search
from meshwise.run.train.launch import Launch
from meshwise.units import GIB
from meshwise.workers.trainer.settings import Layout, broken

MARGIN = 0.9
"""What fits must be predicted to need this share of what did not."""
LOST = ("killed", "gone", "lost", "hang")
"""Kinds of failure that are not of the run's own making."""
CUTS = ("dp_replicate", "dp_shard", "tp", "pp", "cp")


def failure(out: Path) -> dict[str, Any]:
    """What the workers left; nothing where they left nothing."""
    try:
        return json.loads((out / "failure.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def reason(found: dict[str, Any], code: int, checkpoint_every: int) -> str:
    """Why a run failed, in one line; and where a rank was lost in the middle of one that saved nothing, what would have kept it."""
    why = found.get("message") or f"training stopped with exit code {code}; what the workers said is above"
    lost = found.get("kind") in LOST and found.get("step", 0) > 1 and not checkpoint_every
    return f"{why}; no step is saved: --checkpoint-every would have kept them" if lost else why


def memory_lines(ready: Launch) -> list[str]:
    """The planner's memory by part for the layout that failed, and the nearest that fits."""
    if not ready.on:
        return ["the planner does not know this machine: name it with --on, such as 1x8xh200, to see the memory by part"]
    now = ready.predicted()
    held, have = parts(ready, now), capacity(ready, now)
    total = sum(held.values())
    each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in held.items())
    share = (
        f" that each of {processes_here(ready)} processes has of this machine"
        if ready.settings.device == "cpu" and processes_here(ready) > 1
        else ""
    )
    lines = [f"predicted for a device: {each} GiB: {total / GIB:.2f} GiB of {have / GIB:.2f} GiB{share}"]
    near = nearest(ready, MARGIN * min(total, have))
    if near is None:
        return [
            *lines,
            "no layout of these devices is predicted to need clearly less: take more devices, a smaller --batch or --seq",
        ]
    words = _options(ready.settings.layout, near)
    needs = sum(parts(ready, near).values()) / GIB
    return [*lines, f"nearest that needs less: {words}: {needs:.2f} GiB, {near.step / now.step:.2f} x the time"]


def parts(ready: Launch, row: Choice) -> dict[str, float]:
    """The planner's bytes of a device by kind. It counts 16-bit numbers: where the trainer's are float32, theirs instead.

    A parameter, its gradient and AdamW's moments then take 4 + 4 + 8 bytes (docs/trainer.md), and activations twice the planner's.
    """
    s, a = ready.settings, _layout(row)
    if s.device == "cuda" and s.precision != "fp32":
        return row.memory
    sizes = Parameters.of(ready.model)
    layers = -(-sizes.layers // a.pp)
    tables = sizes.table * (sizes.tables if a.pp == 1 else 1)
    own = (sizes.dense * layers / sizes.layers + tables) / (a.tp * a.dp_shard * a.cp)
    wide = 2 if s.precision == "fp32" else 1
    states = {"weights": 4 * own, "gradients": 4 * own, "optimizer": 8 * own}
    return row.memory | states | {"activations": wide * row.memory["activations"]}


def tight(ready: Launch, row: Choice) -> str:
    """What to say before a run that the memory of this machine may not hold; nothing where it does. A GPU says it itself, soon."""
    if ready.settings.device == "cuda":
        return ""
    # what a process takes for itself differs too much from one CPU's PyTorch to the next
    each = sum(size for kind, size in parts(ready, row).items() if kind != "context")
    have, many = here.host_memory(), processes_here(ready)
    if each * many <= have:
        return ""
    return (
        f"predicted to need {each * many / GIB:.1f} GiB ({each / GIB:.1f} GiB for each process), and this machine has "
        f"{have / GIB:.1f} GiB: it may be killed; a smaller --mbs, --batch or --seq, or --recompute full, needs less"
    )


def processes_here(ready: Launch) -> int:
    """Processes on this machine."""
    return ready.settings.layout.devices // ready.hosts.nodes


def capacity(ready: Launch, now: Choice) -> float:
    """Bytes of a device: a GPU's own, and of a CPU the share that each process has of what this machine gives."""
    if ready.settings.device == "cuda":
        return now.capacity
    share = here.host_memory() / processes_here(ready)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return share if limit == resource.RLIM_INFINITY else min(share, float(limit))


def nearest(ready: Launch, most: float) -> Choice | None:
    """The layout of as many devices with the fewest changes that is predicted to need at most so much, and of these the fastest."""
    question = ready.question()
    own = ready.settings.layout
    same_cuts = {axis: (getattr(own, axis), getattr(own, axis)) for axis in CUTS}
    for bounds in (same_cuts, {}):
        found = search(question, bounds=bounds, top=64)
        rows = [choice(question, found.layouts, found.cost, i) for i in range(len(found.layouts))]
        fit = [row for row in rows if _runs(ready, row) and sum(parts(ready, row).values()) <= most]
        if fit:
            return min(fit, key=lambda row: (len(_changes(own, row)), row.step))
    return None


def _layout(row: Choice) -> Layout:
    return Layout(**{f.name: row.layout[f.name] for f in fields(Layout)} | ({} if int(row.layout["zero"]) else {"zero": 3}))  # pyright: ignore[reportArgumentType]


def _runs(ready: Launch, row: Choice) -> bool:
    return row.layout["offload"] == "none" and row.layout["ep"] == 1 and not broken(replace(ready.settings, layout=_layout(row)))


def _changes(own: Layout, row: Choice) -> dict[str, Any]:
    new = _layout(row)
    return {f.name: getattr(new, f.name) for f in fields(Layout) if getattr(new, f.name) != getattr(own, f.name)}


def _options(own: Layout, row: Choice) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in _changes(own, row).items())
