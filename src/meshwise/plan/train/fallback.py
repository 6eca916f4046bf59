"""Search with the usual framework of a machine, then with those that need less memory; unequal cards in both ways to use them."""

from dataclasses import replace
from typing import NamedTuple

from meshwise.cost.train.question import Question
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
    """Return the first framework with which a layout fits; the one that comes nearest where none does. `top`: layouts to keep, instead of
    those that the question asks for."""
    if lookup.mixed(ask):
        return _unequal(ask, q, top or ask.top)
    tried: list[Attempt] = []
    for name in lookup.candidates(ask, q.cluster, q.model):
        one = q if name == q.work.framework.key else lookup.question(replace(ask, framework=name), q.model)
        tried.append(Attempt(one, search(one, bounds=ask.bounds, top=top or ask.top, nodes=nodes)))
        if tried[-1].fits:
            return tried[-1]
    return _nearest(tried)


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
    return min(fitting, key=lambda attempt: float(attempt.found.cost.step[0])) if fitting else _nearest(tried)


def usual_note(usual: Question, chosen: Question) -> tuple[str, ...]:
    """Return the note of a framework that is not the usual one; none where it is."""
    before, after = usual.work.framework, chosen.work.framework
    if before.key == after.key:
        return ()
    return (f"{before.name} is usual here, but nothing fits, or it is slower: planned with {after.name}",)
