"""Remedies for a model that does not fit: changes of the question in the order of their harm, each with the bytes that it saves.

A change may let another layout fit, or another framework whose offload the host's memory then holds. So the bytes of a change are those
of one layout, the one that fits in the end, with and without the change: on its fullest device, and in the host's memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue.frameworks import find_framework
from meshwise.cost.axes import layout_name
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import host_memory, host_needs, peak
from meshwise.cost.work import OBJECTIVES
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.fallback import Attempt, first_that_fits
from meshwise.units import GIB

RANK = "16"
IN_BACKWARD_BATCH = 2  # sequences of a step without accumulation, as in torchtune's recipe for one device
UNLIMITED_BYTES = 1e18  # bytes of host memory that hold anything
MIN_SAVING_BYTES = 0.05 * GIB  # savings below this are rounded to nothing


@dataclass(frozen=True)
class Remedy:
    """One change of the question."""

    flag: str  # in the words of the command line
    saves: float  # bytes of the fullest device, of the layout that fits in the end, after the changes before this one
    on_host: float = 0.0  # bytes of a host's memory that it saves of the same layout


@dataclass(frozen=True)
class Cure:
    """Changes that together make a model fit, and the layout that then fits."""

    remedies: tuple[Remedy, ...]
    layout: str
    framework: str
    peak: float
    on_host: float  # bytes of a host's memory that the layout needs
    host: float  # bytes of a host's memory


Change = Callable[[TrainAsk], tuple[str, TrainAsk] | None]


def _without(ask: TrainAsk, axis: str) -> TrainAsk:
    """Return the question without a bound on an axis."""

    def left(texts: tuple[str, ...]) -> tuple[str, ...]:
        pieces = (piece.strip() for text in texts for piece in text.split(","))
        return tuple(piece for piece in pieces if piece and piece.partition("=")[0].strip() != axis)

    return replace(ask, fix=left(ask.fix), allow=left(ask.allow))


def _fixed(ask: TrainAsk, axis: str, value: str) -> TrainAsk:
    free = _without(ask, axis)
    return replace(free, fix=(*free.fix, f"{axis}={value}"))


def _checkpointing(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return full recompute where the user bounds it; the search already tries it elsewhere."""
    return ("--fix recompute=full", _fixed(ask, "recompute", "full")) if "recompute" in ask.bounds else None


def _fused(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return ("--loss fused", replace(ask, loss="fused")) if ask.loss != "fused" and OBJECTIVES[ask.objective].vocabulary else None


def _eight_bits(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return ("--optimizer adamw-8bit", replace(ask, optimizer="adamw-8bit")) if ask.optimizer in ("adamw", "") else None


def _in_backward(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return torchtune's recipe for one device: all weights in 16 bits, updated in the backward pass by a paged 8-bit AdamW, so that
    neither gradients nor moments are all on the device. Only where the user names no program."""
    if ask.framework or ask.finetune != "full" or ask.in_backward:
        return None
    flags = f"--framework torchtune --optimizer adamw-paged-8bit --in-backward --batch {IN_BACKWARD_BATCH}"
    changed = replace(
        ask, framework="torchtune", optimizer="adamw-paged-8bit", in_backward=True, batch=IN_BACKWARD_BATCH, loss=""
    )
    return flags, _without(changed, "mbs")


def _lora(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    whole = ask.finetune in ("", "full") or ask.finetune.startswith("freeze")
    return (f"--finetune lora:{RANK}", replace(ask, finetune=f"lora:{RANK}")) if whole else None


def _qlora(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    method, smaller = ask.finetune[:4], f"qlora{ask.finetune[4:]}"
    return (f"--finetune {smaller}", replace(ask, finetune=smaller)) if method in ("lora", "dora") else None


def _unsloth(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return ("--framework unsloth", replace(ask, framework="unsloth")) if "qlora" in ask.finetune and not ask.framework else None


def _offload(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return offload where the user bounds it or names a framework; the search already tries it elsewhere."""
    if "offload" in ask.bounds:
        return "offload of any kind", _without(ask, "offload")
    other = "trl" if lookup.tunes(ask) else "deepspeed"
    offers = ask.framework and (other == "deepspeed" or "+" in ask.framework or not find_framework(ask.framework).through)
    return (f"--framework {other}, which offloads", replace(ask, framework=other)) if offers else None


def _smaller_batch(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return sequences one at a time, where the user bounds the micro-batch."""
    return ("--fix mbs=1", _fixed(ask, "mbs", "1")) if "mbs" in ask.bounds else None


def _shorter(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return (f"--seq {ask.seq // 2}", replace(ask, seq=ask.seq // 2)) if ask.seq >= 1024 else None


CHANGES: tuple[Change, ...] = (
    _checkpointing, _fused, _eight_bits, _in_backward, _lora, _qlora, _unsloth, _offload, _smaller_batch, _shorter, _shorter, _shorter
)  # fmt: skip
"""In the order of their harm. What a program cannot combine is refused by its own facts (support.py), so that no such set is offered."""


def cure(ask: TrainAsk) -> Cure | None:
    """Return the changes that make the model fit, in the order of their harm, and no change that the others make superfluous; None where
    all of them together do not suffice."""
    changes = _needed(ask, _fits)
    return _cured(ask, changes) if changes else None


def needed_changes(ask: TrainAsk, fits: Callable[[TrainAsk], bool]) -> list[str]:
    """Return a minimal set of changes, as flags, that makes a question fit; empty if all together do not suffice."""
    return [flag for flag, _ in _applied(ask, _needed(ask, fits))]


def _needed(ask: TrainAsk, fits: Callable[[TrainAsk], bool]) -> tuple[Change, ...]:
    """Return the first changes after which a question fits, without those that can be left out, of which the most harmful go first; the
    last one is needed."""

    def suffice(changes: tuple[Change, ...]) -> bool:
        steps = list(_applied(ask, changes))
        return bool(steps) and fits(steps[-1][1])

    changes = next((chosen for number in range(1, len(CHANGES) + 1) if suffice(chosen := _until(number))), ())
    for change in reversed(changes[:-1]):
        fewer = tuple(other for other in changes if other is not change)
        if suffice(fewer):
            changes = fewer
    return changes


def _until(number: int) -> tuple[Change, ...]:
    """Return the first changes; another program only as the last of them, since the others are of the user's."""
    chosen = CHANGES[:number]
    return tuple(change for change in chosen if change is not _in_backward or change is chosen[-1])


def _applied(ask: TrainAsk, changes: tuple[Change, ...]) -> Iterator[tuple[str, TrainAsk]]:
    """Yield each change that applies, on top of those before it."""
    for change in changes:
        changed = change(ask)
        if changed is not None:
            yield changed
            ask = changed[1]


def _fits(ask: TrainAsk) -> bool:
    found = _attempt(ask)
    return found is not None and found.fits


def _attempt(ask: TrainAsk) -> Attempt | None:
    """Return the search for a question; None where the model lacks what it names, such as targets of adapters."""
    try:
        return first_that_fits(ask, lookup.question(ask), top=1)
    except UserError:
        return None


def _cured(ask: TrainAsk, changes: tuple[Change, ...]) -> Cure:
    """Return the changes with the bytes that each saves. Several changes of one option are merged into the last."""
    steps = list(_applied(ask, changes))
    fitted = _attempt(steps[-1][1])
    assert fitted is not None
    q, layout = fitted.question, fitted.found.layouts.take(np.zeros(1, dtype=np.int64))
    merged: dict[str, Remedy] = {}
    before = _bytes(ask, q, layout)
    for flag, changed in steps:
        after = _bytes(changed, q, layout)
        option = flag.partition(" ")[0] if flag.startswith(("--seq", "--finetune")) else flag
        earlier = merged.pop(option, Remedy(flag, 0.0))
        merged[option] = Remedy(flag, earlier.saves + before[0] - after[0], earlier.on_host + before[1] - after[1])
        before = after
    return Cure(tuple(merged.values()), layout_name(layout.row(0)), q.work.framework.name, *before, host_memory(q))


def _bytes(ask: TrainAsk, fitted: Question, layout: Layouts) -> tuple[float, float]:
    """Return the bytes of a device and of a host's memory that a layout needs under a question, within the bounds of that question."""
    row = layout.row(0)
    named = replace(ask, framework=fitted.work.framework.program)
    q = lookup.question(named, in_turn=row["schedule"] == "naive" and lookup.mixed(ask))
    bounded = {axis: np.clip(getattr(layout, axis), *ask.bounds[axis]) for axis in CHANGED_AXES if axis in ask.bounds}
    layout = replace(layout, **bounded)
    return float(peak(q, layout)[0]), float(host_needs(q, layout)[0])


CHANGED_AXES = ("recompute", "mbs", "offload")  # axes that a change frees or fixes


def advice(ask: TrainAsk) -> str:
    """Return what would make a model fit, in one clause: changes of the question, or more memory of the hosts; '' where neither does."""
    found = cure(ask)
    return "; or ".join(filter(None, (words(found) if found else "", _adapters(ask, found), _more_host_memory(ask))))


def _adapters(ask: TrainAsk, found: Cure | None) -> str:
    """Return that adapters would fit, where the changes found train all weights with another program; '' elsewhere."""
    changed = _lora(ask)
    if changed is None or found is None or not any("--in-backward" in remedy.flag for remedy in found.remedies):
        return ""
    other = _attempt(changed[1])
    if other is None or not other.fits:
        return ""
    size, name = float(other.found.cost.peak[0]), layout_name(other.found.layouts.row(0))
    return f"{changed[0]} fits in {size / GIB:.1f} GiB ({name} with {other.question.work.framework.name})"


def words(found: Cure) -> str:
    """Return changes in one clause: '--loss fused saves 2.9 GiB, --finetune lora:16 70.1 GiB more: then it fits in 21.3 GiB (dp1 tp1 pp1
    mbs1 with PyTorch DDP)'. Host memory is told where the layout would not fit there without the change."""
    listed: list[str] = []
    for remedy in found.remedies:
        number = f"{'' if listed else 'saves '}{{:.1f}} GiB{' more' if listed else ''}"
        told = [number.format(remedy.saves / GIB)] if remedy.saves > MIN_SAVING_BYTES else []
        if remedy.on_host > MIN_SAVING_BYTES and (not told or found.on_host + remedy.on_host > found.host):
            told.append(f"{'saves ' if not listed and not told else ''}{remedy.on_host / GIB:.1f} GiB of host memory")
        listed.append(f"{remedy.flag} {' and '.join(told)}".rstrip())
    held = f" and {found.on_host / GIB:.1f} of the host's {found.host / GIB:.1f}" if found.on_host else ""
    return f"{', '.join(listed)}: then it fits in {found.peak / GIB:.1f} GiB{held} ({found.layout} with {found.framework})"


def _more_host_memory(ask: TrainAsk) -> str:
    """Return the host memory that offload alone would need to fit; '' if offload alone does not suffice."""
    found = _attempt(replace(ask, ram=UNLIMITED_BYTES))
    if found is None or not found.fits:
        return ""
    least = float(host_needs(found.question, found.found.layouts).min())
    have = host_memory(lookup.question(ask))
    have_it = f"{have / GIB:.0f}{'' if ask.ram else ' are assumed'} (--ram)"
    return f"offload fits with {least / GIB:.0f} GiB of host memory, of which {have_it}" if least > have else ""
