"""Remedies for a model that does not fit: changes of the question in the order of their harm, each with the bytes that it saves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwise.cost.objective import OBJECTIVES
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import Found, search
from meshwise.units import GIB

RANK = "16"


@dataclass(frozen=True)
class Remedy:
    """One change of the question."""

    flag: str
    """In the words of the command line."""
    saves: float
    """Bytes per device of the smallest layout, after the changes before it."""


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
    return (
        None if ask.loss == "fused" or not OBJECTIVES[ask.objective].vocabulary else ("--loss fused", replace(ask, loss="fused"))
    )


def _eight_bits(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return ("--optimizer adamw-8bit", replace(ask, optimizer="adamw-8bit")) if ask.optimizer in ("adamw", "") else None


def _lora(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    whole = ask.tune in ("", "full") or ask.tune.startswith("freeze")
    return (f"--tune lora:{RANK}", replace(ask, tune=f"lora:{RANK}")) if whole else None


def _qlora(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    method, colon, rest = ask.tune.partition(":")
    return (f"--tune qlora{colon}{rest}", replace(ask, tune=f"qlora{colon}{rest}")) if method in ("lora", "dora") else None


def _offload(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return offload where the user bounds it or names a framework; the search already tries it elsewhere."""
    if "offload" in ask.bounds:
        return "offload of any kind", _without(ask, "offload")
    return ("--framework deepspeed, which offloads", replace(ask, framework="deepspeed")) if ask.framework else None


def _smaller_batch(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    """Return sequences one at a time, where the user bounds the micro-batch."""
    return ("--fix mbs=1", _fixed(ask, "mbs", "1")) if "mbs" in ask.bounds else None


def _shorter(ask: TrainAsk) -> tuple[str, TrainAsk] | None:
    return (f"--seq {ask.seq // 2}", replace(ask, seq=ask.seq // 2)) if ask.seq >= 1024 else None


CHANGES: tuple[Change, ...] = (
    _checkpointing, _fused, _eight_bits, _lora, _qlora, _offload, _smaller_batch, _shorter, _shorter, _shorter
)  # fmt: skip
"""In the order of their harm."""


def remedies(ask: TrainAsk, smallest: float) -> list[Remedy]:
    """Return the changes that make the model fit, in the order of their harm, and no change that the others make superfluous; empty where
    all of them together do not suffice."""
    for number in range(1, len(CHANGES) + 1):
        if _fits(ask, CHANGES[:number]):
            return _saved(ask, _needed(ask, CHANGES[:number]), smallest)
    return []


def _needed(ask: TrainAsk, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Return the changes without those that can be left out, of which the most harmful go first; the last one is needed."""
    for change in reversed(changes[:-1]):
        fewer = tuple(other for other in changes if other is not change)
        if _fits(ask, fewer):
            changes = fewer
    return changes


def _applied(ask: TrainAsk, changes: tuple[Change, ...]) -> Iterator[tuple[str, TrainAsk]]:
    """Yield each change that applies, on top of those before it."""
    for change in changes:
        changed = change(ask)
        if changed is not None:
            yield changed
            ask = changed[1]


def _fits(ask: TrainAsk, changes: tuple[Change, ...]) -> bool:
    steps = list(_applied(ask, changes))
    return bool(steps) and len(_found(steps[-1][1]).layouts) > 0


def _saved(ask: TrainAsk, changes: tuple[Change, ...], smallest: float) -> list[Remedy]:
    """Return the changes with the bytes that each saves; of several to one option, the last, with what all of them save."""
    merged: dict[str, Remedy] = {}
    for flag, changed in _applied(ask, changes):
        need = _found(changed).smallest
        option = flag.partition(" ")[0] if flag.startswith(("--seq", "--tune")) else flag
        before = merged.pop(option, None)
        merged[option] = Remedy(flag, smallest - need + (before.saves if before else 0.0))
        smallest = need
    return list(merged.values())


def _found(ask: TrainAsk) -> Found:
    """Return the search with the first of the usual frameworks that fits, or with the one that comes nearest."""
    try:
        q = ask.question()
    except UserError:  # a type without names for adapters
        return search(replace(ask, tune="").question(), bounds=ask.bounds, top=1)
    found: list[Found] = []
    for name in lookup.candidates(ask, q.cluster, q.model):
        found.append(search(replace(ask, framework=name).question(), bounds=ask.bounds, top=1))
        if len(found[-1].layouts):
            return found[-1]
    return min(found, key=lambda one: one.smallest)


def words(found: list[Remedy]) -> str:
    """Return the changes in one clause: '--loss fused saves 2.9 GiB, --tune lora:16 70.1 GiB more: then it fits'."""
    listed = [
        f"{remedy.flag} {'saves ' if i == 0 else ''}{remedy.saves / GIB:.1f} GiB{' more' if i else ''}"
        for i, remedy in enumerate(found)
    ]
    return f"{', '.join(listed)}: then it fits" if found else ""
