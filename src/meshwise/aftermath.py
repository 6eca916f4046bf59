"""Aftermath: why a run failed, and where memory ran out, what the planner says of it and which layout would fit."""

import json
import os
import resource
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from meshwise import launch
from meshwise.launch import Launch
from meshwise.plan import Choice, choice
from meshwise.search import search
from meshwise.trainer.settings import Layout, broken

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
    now = launch.predicted(ready)
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in now.memory_parts.items())
    have = capacity(ready, now)
    lines = [f"predicted for a device: {parts} GiB: {now.memory / 2**30:.2f} of {have / 2**30:.2f}"]
    near = nearest(ready, MARGIN * min(now.memory, have))
    if near is None:
        return [
            *lines,
            "no layout of these devices is predicted to need clearly less: take more devices, a smaller --batch or --seq",
        ]
    words = _options(ready.settings.layout, near)
    return [
        *lines,
        f"nearest that needs less: {words}: {near.memory / 2**30:.2f} GiB, {near.seconds / now.seconds:.2f} x the time",
    ]


def capacity(ready: Launch, now: Choice) -> float:
    """Bytes of a device: a GPU's own, and of a CPU the share that each process has of what this machine gives."""
    if ready.settings.device == "cuda":
        return now.capacity
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (ready.settings.layout.devices / ready.hosts.nodes)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return here if limit == resource.RLIM_INFINITY else min(here, float(limit))


def nearest(ready: Launch, most: float) -> Choice | None:
    """The layout of as many devices with the fewest changes that is predicted to need at most so much, and of these the fastest."""
    question = launch.question_of(ready)
    own = ready.settings.layout
    same_cuts = {axis: (getattr(own, axis), getattr(own, axis)) for axis in CUTS}
    for bounds in (same_cuts, {}):
        found = search(question, bounds=bounds, top=64)
        rows = [choice(question, found.layouts, found.cost, i) for i in range(len(found.layouts)) if found.cost.peak[i] <= most]
        fit = [row for row in rows if _runs(ready, row)]
        if fit:
            return min(fit, key=lambda row: (len(_changes(own, row)), row.seconds))
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
