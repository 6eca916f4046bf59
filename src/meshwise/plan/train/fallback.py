"""Search with the usual framework of a machine, then with those that need less memory; unequal cards in both ways to use them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from meshwise.catalogue import clusters
from meshwise.cost.train.question import Question
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.plan.train.search import Found, search


class Attempt(NamedTuple):
    """A question with one framework, and what its search found."""

    question: Question
    found: Found

    @property
    def fits(self) -> bool:
        return len(self.found.layouts) > 0


def first_that_fits(ask: TrainAsk, q: Question, nodes: tuple[int, ...] = (), top: int = 0) -> Attempt:
    """Return the first framework with a layout that fits, else the one that comes nearest. `top`: layouts to keep, instead of the
    question's."""
    if lookup.mixed(ask):
        return _unequal(ask, q, top or ask.top)
    if lookup.tunes(ask):
        return fastest_way(ask, q, nodes, top or ask.top)
    tried: list[Attempt] = []
    for name in lookup.candidates(ask, q.cluster, q.model):
        one = (
            q
            if name in (q.work.framework.key, q.work.framework.program)
            else lookup.question(replace(ask, framework=name), q.model)
        )
        tried.append(Attempt(one, search(one, bounds=ask.bounds, top=top or ask.top, nodes=nodes)))
        if tried[-1].fits:
            return tried[-1]
    return _nearest(tried)


MODEL_PARALLEL = ("cp", "tp")
"""Axes that a fine-tuning tries only where no layout fits without them, or where they are named: few programs have them."""


def fastest_way(ask: TrainAsk, q: Question, nodes: tuple[int, ...], top: int) -> Attempt:
    """Return the fastest of the ways in which a program can shard, first without tensor and context ranks."""
    plain = {} if set(MODEL_PARALLEL) & set(ask.bounds) else dict.fromkeys(MODEL_PARALLEL, (1, 1))
    tried: list[Attempt] = []
    for bounds in ({**ask.bounds, **plain}, ask.bounds)[: 2 if plain else 1]:
        tried = [Attempt(one, search(one, bounds=bounds, top=top, nodes=nodes)) for one in in_each_way(ask, q)]
        fitting = [attempt for attempt in tried if attempt.fits]
        if fitting:  # one device has nothing to shard: another way is for what does not fit
            alone = q.cluster.devices == 1
            return fitting[0] if alone else min(fitting, key=lambda attempt: attempt.found.value)
    return _nearest(tried)


def in_each_way(ask: TrainAsk, q: Question) -> Iterator[Question]:
    """Yield the question with its program in each way in which that can shard; on one device one that offloads through another too."""
    for name in lookup.candidates(ask, q.cluster, q.model):
        yield q if name == q.work.framework.program else lookup.question(replace(ask, framework=name), q.model)


def _nearest(tried: list[Attempt]) -> Attempt:
    return min(tried, key=lambda attempt: attempt.found.smallest)


def _unequal(ask: TrainAsk, q: Question, top: int) -> Attempt:
    """Search unequal cards as ranks that wait for the weakest, and as stages that run one after another, and return the faster way."""
    tried: list[Attempt] = []
    for name in lookup.candidates(ask, q.cluster, q.model):
        for in_turn in (False, True):
            one = lookup.question(replace(ask, framework=name), q.model, in_turn=in_turn)
            bounds = {**ask.bounds, "pp": (one.cluster.devices, one.cluster.devices)} if in_turn else ask.bounds
            if not in_turn or "naive" in one.work.framework.schedules:
                tried.append(Attempt(one, search(one, bounds=bounds, top=top)))
    fitting = [attempt for attempt in tried if attempt.fits]
    return min(fitting, key=lambda attempt: attempt.found.value) if fitting else _nearest(tried)


def usual_note(usual: Question, chosen: Question) -> tuple[str, ...]:
    """Return a note if the framework is not the default one."""
    before, after = usual.work.framework, chosen.work.framework
    if before.program == after.program:
        return ()
    if after.program.startswith(f"{before.program}+"):
        return (f"planned with {after.name}, which is faster here than its own sharding, or fits",)
    return (f"{before.name} is usual here, but nothing fits, or it is slower: planned with {after.name}",)


def faster_part(ask: TrainAsk, seconds: float) -> tuple[str, ...]:
    """Return a note where some kinds of unequal cards alone take fewer than `seconds` per step: ranks wait for the weakest card."""
    if not lookup.mixed(ask):
        return ()
    taken = {on: step for on in _kinds(ask.on) if (step := _seconds(replace(ask, on=on))) is not None}
    best = min(taken, key=lambda on: taken[on], default="")
    if not best or taken[best] >= NOTABLE_TIME_RATIO * seconds:
        return ()
    return (f"without the other cards a step takes {taken[best]:.3g} s instead of {seconds:.3g}: --on {best}",)


NOTABLE_TIME_RATIO = 0.98  # seconds of a part over those of all cards from which on the part is worth a note


def _kinds(on: str) -> Iterator[str]:
    """Yield every part of a node with whole kinds of cards: '2xrtx3090' and '1xrtx3060' of '2xrtx3090+1xrtx3060'."""
    cards = clusters.find_cluster(on).node.chips
    for number in range(1, len(cards)):
        for chosen in combinations(cards, number):
            yield "+".join(f"{count}x{chip.key}" for count, chip in chosen)


def _seconds(ask: TrainAsk) -> float | None:
    """Return the seconds of a step of the fastest layout; None where none fits."""
    try:
        found = first_that_fits(ask, lookup.question(ask), top=1).found
    except UserError:
        return None
    return float(found.cost.step[0]) if len(found.layouts) else None
