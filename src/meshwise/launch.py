"""Launch: what `run` was asked for as the settings of the trainer, refused before any process starts where it cannot run."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from meshwise import hardware, lookup
from meshwise import plan as plans
from meshwise.cost.train import price
from meshwise.errors import UserError, nearest, quoted
from meshwise.model import Model, build
from meshwise.trainer.settings import DEVICES, PRECISIONS, RECOMPUTE, SCHEDULES, Layout, Settings, broken, unbuildable

DEFAULT = "llama-debug"
BATCH, SEQ = 8, 64
PROCESSES = 4
"""Processes for each core of a CPU, at most: more of them would wait for each other for minutes."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user typed; what is empty or None was left open."""

    what: str = ""
    axes: dict[str, int | str] = field(default_factory=dict[str, "int | str"])
    batch: int = 0
    seq: int = 0
    on: str = ""
    device: str = ""
    precision: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of Settings that need no thought: steps, lr, seed, out, weights, save, compile."""


@dataclass(frozen=True)
class Launch:
    """A run that can start."""

    settings: Settings
    model: Model
    on: str
    """The cluster in words; empty where the chip is not in the catalogue."""


def prepare(wish: Wish) -> Launch:
    """Everything looked up and checked."""
    device = wish.device or ("cuda" if gpus() else "cpu")
    _one_of("--device", device, DEVICES)
    precision = wish.precision or ("bf16" if device == "cuda" else "fp32")
    _one_of("--precision", precision, PRECISIONS)
    ask, axes = _planned(wish.what) if _is_plan(wish.what) else (None, dict[str, "int | str"]())
    values, name = _buildable(ask.model if ask else wish.what or DEFAULT)
    batch, seq = wish.batch or (ask.batch if ask else BATCH), wish.seq or (ask.seq if ask else SEQ)
    layout = _layout(axes | wish.axes, batch)
    if ask and layout.devices != _devices(axes):
        raise UserError(f"the plan is for {_devices(axes)} devices, and the axes given beside it multiply to {layout.devices}")
    _check_devices(layout, device)
    settings = Settings(
        name=name, model=values, layout=layout, batch=batch, seq=seq, precision=precision, device=device, **wish.options
    )
    rules = broken(settings)
    if rules:
        raise UserError(f"the layout cannot run: {'; '.join(rules)}")
    on = wish.on or (ask.cluster if ask else _here(device, layout.devices))
    model = build(values, name, "")
    return Launch(replace(settings, facts=_facts(model, settings, on)), model, on)


def _one_of(option: str, given: str, valid: tuple[str, ...]) -> None:
    if given not in valid:
        raise UserError(f"{option} {quoted(given)} is none of {', '.join(valid)}{nearest(given, valid)}")


def _is_plan(what: str) -> bool:
    return what.endswith(".json") and os.path.isfile(what) and "ask" in lookup.values_of(Path(what))


def _planned(what: str) -> tuple[plans.Ask, "dict[str, int | str]"]:
    """The question of a plan and its best layout, less what the trainer does of its own."""
    made = plans.read(Path(what))
    row = made.choices[0].layout
    if int(row["ep"]) > 1 or row["offload"] != "none":
        raise UserError(f"{what}: the trainer has no expert parallelism and no offload; plan with --fix ep=1,offload=none")
    if made.ask.precision not in PRECISIONS or made.ask.optimizer != "adamw":
        raise UserError(
            f"{what} is for {made.ask.precision} and {made.ask.optimizer}; the trainer has bf16 and adamw: plan with these"
        )
    return made.ask, {f.name: row[f.name] for f in fields(Layout)}


def _buildable(name: str) -> tuple[dict[str, Any], str]:
    if name.lower().endswith(".gguf"):
        raise UserError(f"{quoted(name)}: the trainer builds models from a config.json, not from a .gguf")
    values, label, _ = lookup.find_values(name)
    reason = unbuildable(values)
    if reason:
        raise UserError(f"the trainer cannot build {label}: {reason}; try llama-debug or bloom-560m")
    build(values, label, "")  # what the planner refuses of a config, such as a missing key, is said in its words
    return {key: value for key, value in values.items() if key != "meshwise"}, label


def _devices(axes: "dict[str, int | str]") -> int:
    return Layout(**cast(Any, axes)).devices


def _layout(axes: "dict[str, int | str]", batch: int) -> Layout:
    for name, valid in (("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
        if name in axes:
            _one_of(f"--{name}", str(axes[name]), valid)
    found = Layout(**cast(Any, axes))
    if "mbs" in axes:
        return found
    # a pipeline of p stages idles (p - 1) / m of m micro-batches: twice as many as stages where the batch has them
    rounds = 1 if found.pp == 1 else found.pp * max(r for r in (1, 2) if r == 1 or batch % (found.dp * found.pp * r) == 0)
    return replace(found, mbs=max(1, batch // max(1, found.dp * rounds)))


def gpus() -> list[str]:
    """The names of this machine's NVIDIA GPUs, as many as CUDA_VISIBLE_DEVICES leaves."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([one for one in visible.split(",") if one.strip()])]


def _check_devices(layout: Layout, device: str) -> None:
    need, cores = layout.devices, os.cpu_count() or 1
    have = len(gpus()) if device == "cuda" else PROCESSES * cores
    if need > have:
        what = "GPUs" if device == "cuda" else f"processes on its {cores} CPU cores"
        raise UserError(
            f"the layout is for {need} devices, and this machine has {have} {what}; choose axes that multiply to at most {have}"
        )


def _here(device: str, devices: int) -> str:
    """This machine in the words of a cluster: as `meshwise probe` measured it, or as the catalogue knows its chip."""
    own = hardware.known_chip(hardware.part_of_here(devices if device == "cpu" else 1))
    if device == "cpu":
        return f"1x{devices}x{own.key if own and own.kind == 'cpu' else 'cpu'}"
    name = gpus()[0]
    chip = hardware.known_chip(name.removeprefix("NVIDIA "))
    if own and own.name == f"{own.key}: {chip.name if chip else name}":
        return f"1x{devices}x{own.key}"
    return f"1x{devices}x{chip.key}" if chip else ""


def _facts(model: Model, settings: Settings, on: str) -> "dict[str, float | str]":
    """What the trainer cannot know: FLOPs a token, and the peak and memory of the chip."""
    tokens = float(settings.seq)
    found: dict[str, float | str] = {"flops_per_token": model.flops(tokens, settings.seq) / tokens, "params": float(model.params)}
    if settings.device == "cuda" and on:
        from meshwise.clusters import find_cluster

        chip = find_cluster(on).nodes[0][1].chips[0][1]
        peak = chip.flops.get(cast(Any, settings.precision))
        known = hardware.catalogued(chip) if chip.key == hardware.HERE else chip
        found |= {"gpu": (known or chip).key, "capacity": chip.memory} | ({"peak": peak} if peak else {})
    return found


def predicted(launch: Launch) -> plans.Choice:
    """The planner's answer for the same layout."""
    s = launch.settings
    half = "bf16" if s.precision == "fp32" else s.precision
    ask = plans.Ask(model=s.name, cluster=launch.on, batch=s.batch, seq=s.seq, framework="meshwise", precision=half)
    question = ask.question(launch.model)
    a = s.layout
    row: dict[str, int | str] = {f.name: getattr(a, f.name) for f in fields(Layout)}
    row |= {"ep": 1, "sp": int(a.tp > 1), "offload": "none", "zero": a.zero if a.dp_shard > 1 else 0}
    row |= {"schedule": "zero-bubble" if a.schedule == "zbv" else a.schedule}
    layouts = plans.layouts_of(row)
    return plans.choice(question, layouts, price(question, layouts), 0)


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError("'meshwise run' needs PyTorch, which is not installed: pip install '.[train]' in the folder of meshwise")


def command(settings: Settings, file: Path) -> list[str]:
    """What starts the workers of this machine."""
    workers = ["--standalone", "--nproc-per-node", str(settings.layout.devices)]
    return [sys.executable, "-m", "torch.distributed.run", *workers, "-m", "meshwise.trainer", str(file)]


def threads(settings: Settings) -> str:
    """Cores for each process of a CPU run, shared out evenly."""
    return str(max(1, (os.cpu_count() or 1) // settings.layout.devices)) if settings.device == "cpu" else "8"
