"""Questions about serving that several tests share."""

from functools import cache
from typing import Any

from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import Found, Option, search


@cache
def question(model: str = "llama-3.3-70b:q4_k_m", cluster: str = "4xrtx4060ti-16gb", **more: Any) -> ServeQuestion:
    asked: dict[str, Any] = {"context": 16384} | more
    return lookup.question(ServeAsk(model=model, on=cluster, **asked))


@cache
def found(model: str = "llama-3.3-70b:q4_k_m", cluster: str = "4xrtx4060ti-16gb", **more: Any) -> Found:
    return search(question(model, cluster, **more))


def split(answer: Found, kind: str, cards: int) -> Option:
    """The layout of that split over this many cards, without shares of its own."""
    every = (*answer.options, *answer.misses)
    return next(one for one in every if one.layout.name == f"{kind} split, {cards} cards")
