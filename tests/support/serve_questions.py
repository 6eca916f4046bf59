"""Questions about serving that several tests ask."""

from functools import cache
from typing import Any

from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.search import Found, Option, search


@cache
def question(model: str = "llama-3.3-70b:q4_k_m", cluster: str = "4xrtx4060ti-16gb", **more: Any) -> ServeQuestion:
    asked: dict[str, Any] = {"context": 16384} | more
    return ServeAsk(model=model, on=cluster, **asked).question()


@cache
def found(model: str = "llama-3.3-70b:q4_k_m", cluster: str = "4xrtx4060ti-16gb", **more: Any) -> Found:
    return search(question(model, cluster, **more))


def split(answer: Found, kind: str, cards: int) -> Option:
    """The plain way of that split over so many cards."""
    every = (*answer.options, *answer.misses)
    return next(one for one in every if one.layout.name == f"{kind} split, {cards} cards")
