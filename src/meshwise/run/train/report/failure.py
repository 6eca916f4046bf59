"""Why a run failed; and where memory ran out, the predicted memory by kind and the nearest layout that needs less."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.plan.train.choice import Choice
from meshwise.run.train.launch import Launch
from meshwise.run.train.report.memory import capacity, layout_of, parts
from meshwise.runs.compare import layouts
from meshwise.units import GIB
from meshwise.workers.trainer.contract.settings import Layout, broken_rules

MAX_MEMORY_SHARE = 0.9  # largest share of the memory that ran out that a suggested layout may need
LOST = ("killed", "gone", "lost", "hang")  # kinds of failure that the training program did not cause
LAYOUTS_SEARCHED = 64  # layouts to look at: the trainer may not be able to run the fastest ones
CUTS = ("dp_replicate", "dp_shard", "tp", "pp", "cp")


def failure(out: Path) -> dict[str, Any]:
    """Return the content of failure.json, which workers write; empty if there is none."""
    try:
        written: object = json.loads(files.text_of(out / "failure.json"))
    except (UserError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", written) if isinstance(written, dict) else {}


def reason(failed: dict[str, Any], code: int, checkpoint_every: int) -> str:
    """Return why a run failed, in one line; with a hint where a rank was lost and no checkpoint was saved."""
    why = failed.get("message") or f"training stopped with exit code {code}; the output of the workers is above"
    lost = failed.get("kind") in LOST and failed.get("step", 0) > 1 and not checkpoint_every
    return f"{why}; no checkpoint was saved: use --checkpoint-every" if lost else why


def memory_lines(ready: Launch) -> list[str]:
    """Return the predicted memory by kind of the layout that failed, and the nearest layout that fits."""
    if not ready.on:
        return ["no prediction of memory: the catalogue does not have this GPU; name the machine with --on, such as 1x8xh200"]
    now = ready.predicted()
    held, have = parts(ready, now), capacity(ready, now)
    total = sum(held.values())
    each = ", ".join(f"{name} {size / GIB:.2f}" for name, size in held.items())
    shared = ready.settings.device == "cpu" and ready.processes_here > 1
    share = f" for each of {ready.processes_here} processes on this machine" if shared else ""
    lines = [f"predicted per device: {each} GiB; {total / GIB:.2f} GiB of {have / GIB:.2f} GiB{share}"]
    near = nearest(ready, MAX_MEMORY_SHARE * min(total, have))
    if near is None:
        none = "no layout on these devices is predicted to need clearly less: use more devices, a smaller --batch or --seq"
        return [*lines, none]
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in _changes(ready.settings.layout, near).items())
    needs = sum(parts(ready, near).values()) / GIB
    return [*lines, f"nearest layout that needs less: {words}: {needs:.2f} GiB, {near.step / now.step:.2f} x the time"]


def nearest(ready: Launch, most: float) -> Choice | None:
    """Return the layout on as many devices that is predicted to need at most `most` bytes: with the fewest changes, then the fastest."""
    question = ready.question()
    current = ready.settings.layout
    same_cuts = {axis: (getattr(current, axis), getattr(current, axis)) for axis in CUTS}
    for bounds in (same_cuts, {}):
        runnable = layouts(question, lambda row: _runs(ready, row), bounds=bounds, tried=LAYOUTS_SEARCHED)
        if fit := [row for row in runnable if sum(parts(ready, row).values()) <= most]:
            return min(fit, key=lambda row: (len(_changes(current, row)), row.step))
    return None


def _runs(ready: Launch, row: Choice) -> bool:
    alone = row.layout["offload"] == "none" and row.layout["ep"] == 1
    return alone and not broken_rules(replace(ready.settings, layout=layout_of(row.layout)))


def _changes(current: Layout, row: Choice) -> dict[str, Any]:
    new = layout_of(row.layout)
    return {f.name: getattr(new, f.name) for f in fields(Layout) if getattr(new, f.name) != getattr(current, f.name)}
