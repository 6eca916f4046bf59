"""What a program supports: chips, methods, formats of a frozen base, optimizers, objectives, and pairs that do not work together."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.frameworks import Framework, find_framework, tuners
from meshwise.cost.axes import VALUES
from meshwise.cost.layout import Layouts
from meshwise.cost.work import Train
from meshwise.errors import UserError
from meshwise.units import GIB

WIRED_SHARES = {"apple": 0.75}
"""Share of the memory that a GPU may use, by kind of chip: macOS lets it wire about three quarters (Metal's recommendedMaxWorkingSetSize on
machines with more than 36 GB; iogpu.wired_limit_mb raises it)."""
NEAREST_METHODS = {"qlora": "lora", "dora": "lora", "freeze": "lora"}
Side = tuple[str, tuple[str, ...]]


def usable(cluster: Cluster) -> Cluster:
    """Return a cluster whose devices have the memory that a GPU may use, with a note where that is less than all."""
    chip = cluster.chip
    share = WIRED_SHARES.get(chip.kind)
    if share is None:
        return cluster
    less = replace(chip, memory=share * chip.memory)
    nodes = tuple((count, replace(node, chips=((node.devices, less),))) for count, node in cluster.nodes)
    note = f"macOS lets the GPU wire about {share:.0%} of the memory: {less.memory / GIB:.0f} of {chip.memory / GIB:.0f} GiB"
    return replace(cluster, nodes=nodes, notes=(*cluster.notes, note))


def check_task(framework: Framework, work: Train, chip: Chip, model_type: str = "") -> None:
    """Refuse a task that a program cannot do, with what excludes it and the nearest that works."""
    f, how = framework, work.finetune
    if not f.trains_on(chip.kind, chip.vendor):
        others = tuners(chip.kind, chip.vendor, model_type)
        there = f": expected {' or '.join(others)}" if others else ", and no program of the catalogue fine-tunes there"
        raise UserError(f"{f.name} does not train on {chip.name} ({_where(f)} only){there}")
    if f.methods and how.method not in f.methods:
        near = NEAREST_METHODS.get(how.method, "full")
        near = near if near in f.methods else f.methods[0]
        others = [name for name in tuners(chip.kind, chip.vendor, model_type) if _has(find_framework(name), how.method)]
        given = f"--finetune {near}{f':{how.rank or 16}' if near != 'full' else ''}"
        raise UserError(
            f"{f.name} has no {how.method}: expected {' or '.join((given, *(f'--framework {name}' for name in others[:2])))}"
        )
    if how.quantized and how.stored not in (f.bases or ("nf4", "nf4-single")):
        raise UserError(
            f"{f.name} trains adapters over no base in {how.stored}: expected {_listed(f.bases) or 'nf4'}, or lora in 16 bits"
        )
    if f.optimizers and work.optimizer not in f.optimizers:
        raise UserError(f"{f.name} has no optimizer {work.optimizer}: expected --optimizer {_listed(f.optimizers)}")
    if f.losses and work.loss_kind not in f.losses:
        raise UserError(f"{f.name} has no {work.loss_kind} loss: expected --loss {_listed(f.losses)}")
    if work.in_backward and not (f.updates_in_backward and how.method == "full"):
        why = f"{f.name} has none" if not f.updates_in_backward else f"{how.method} trains adapters, or a part"
        raise UserError(
            f"--in-backward updates all weights inside the backward pass, and {why}: expected --framework torchtune --finetune full"
        )
    if f.objectives and work.objective.name not in f.objectives:
        raise UserError(f"{f.name} has no objective {work.objective.name}: expected --objective {_listed(f.objectives)}")
    for pair in f.excludes:
        sides = _sides(pair)
        if all(name in TASK for name, _ in sides) and all(_fact(work, name) in values for name, values in sides):
            one, other = (f"{name} {_fact(work, name)}" for name, _ in sides)
            raise UserError(
                f"{f.name}: {one} does not work with {other}; expected another {sides[0][0]}, or another {sides[1][0]}"
            )


def _has(framework: Framework, method: str) -> bool:
    return not framework.methods or method in framework.methods


def _where(framework: Framework) -> str:
    names = {"gpu": "GPUs", "apple": "Apple chips", "cpu": "CPUs", "tpu": "TPUs"}
    return _listed([names.get(word, word) for word in framework.chips], "and")


def _listed(words: Iterable[str], last: str = "or") -> str:
    *others, end = list(words) or [""]
    return f"{', '.join(others)} {last} {end}" if others else end


TASK = ("optimizer", "method", "base", "objective", "loss", "precision")
"""Facts of a task that a pair of `excludes` may name; the others are axes of a layout."""


def _fact(work: Train, name: str) -> str:
    how = work.finetune
    facts = {"optimizer": work.optimizer, "method": how.method, "base": how.stored, "objective": work.objective.name}
    return (facts | {"loss": work.loss_kind, "precision": work.precision})[name]


def _sides(pair: str) -> tuple[Side, Side]:
    """Return the two sides of a pair 'optimizer=adamw-8bit & offload=optimizer,parameters', each a name and its values."""
    one, other = (side.strip().partition("=") for side in pair.split("&", 1))
    return (one[0], tuple(one[2].split(","))), (other[0], tuple(other[2].split(",")))


def excluded(work: Train, a: Layouts) -> dict[str, NDArray[np.bool_]]:
    """Return the pairs that do not work together in a program as rules on layouts."""
    rules: dict[str, NDArray[np.bool_]] = {}
    for pair in work.framework.excludes:
        sides = _sides(pair)
        if not any(name in TASK and _fact(work, name) not in values for name, values in sides):
            axes = [side for side in sides if side[0] not in TASK]
            both = (
                np.logical_and.reduce([_holds(a, name, values) for name, values in axes])
                if axes
                else np.zeros(len(a), dtype=bool)
            )
            words = " and ".join(f"{name} {_fact(work, name) if name in TASK else '/'.join(values)}" for name, values in sides)
            rules[f"the framework has no {words} together"] = ~both
    return rules


def _holds(a: Layouts, axis: str, values: tuple[str, ...]) -> NDArray[np.bool_]:
    known = VALUES.get(axis)
    return np.isin(getattr(a, axis), [known.index(value) if known else int(value) for value in values])
