"""The number of copies, or the policy, that holds the targets at the least money or energy: found by replaying the trace."""

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwise.errors import UserError
from meshwise.replay.answer import Figures, Setting, targets_of
from meshwise.replay.ask import copies_of
from meshwise.replay.compared import Compared, Variant, compared, variant

MOST_COPIES = 256  # copies that are tried at most, where no bounds are given
MORE_COPIES = 1.5  # copies that a policy may start at most, over those that hold the targets all the time. A choice.


def answer(at: Setting) -> Compared:
    """Find the fewest constant copies by doubling and bisection, then try policies that start as many where they are needed."""
    if not targets_of(at):
        raise UserError("--cheapest needs a target: --ttft 1s@p95, --tpot 40ms or --e2e 20s")
    if at.deployment.option.pool is not None:
        raise UserError(f"--cheapest: {at.deployment.name} has pools for prompts and outputs; it varies copies of one kind")
    if at.ask.autoscale:
        raise UserError("--cheapest tries policies itself; drop --autoscale")
    low, high = copies_of(at.ask.copies)
    constant = _constant(at, max(1, low), high or MOST_COPIES)
    fewest = min((number for number, one in constant.items() if _holds(one)), default=0)
    tried = [constant[number] for number in sorted(constant)]
    most = min(high or MOST_COPIES, max(fewest + 1, math.ceil(MORE_COPIES * fewest)))
    for words in _policies(at, constant[fewest].figures, fewest) if fewest else ():
        scaled = replace(at.ask, cheapest=False, autoscale=words, copies=f"{max(1, low)}..{most}")
        tried.append(variant(replace(at, ask=scaled), f"{words}, {scaled.copies} copies"))
    holding = [i for i, one in enumerate(tried) if _holds(one)]
    by = "money" if at.ask.by == "money" and at.deployment.rent is not None else "energy"
    best = min(holding, key=lambda i: _spent(tried[i].figures, by), default=-1)
    notes = () if fewest else (f"no number of copies up to {max(constant)} holds the targets",)
    if fewest and not at.ask.start_up:
        notes = (f"a new copy serves after {at.deployment.start_up:.0f} s, an assumption; --start-up states your own",)
    return compared(at, "the cheapest copies and policies that hold the targets", tried, best=best, by=by, notes=notes)


def _holds(one: Variant) -> bool:
    return one.figures is not None and one.figures.holds


def _spent(figures: Figures | None, by: str) -> float:
    assert figures
    spent = figures.dollars if by == "money" else figures.kwh
    return spent if spent is not None else figures.device_hours


def _constant(at: Setting, low: int, high: int) -> dict[int, Variant]:
    """Return replays with constant numbers of copies: doubled until the targets hold, then bisected to the fewest."""
    tried: dict[int, Variant] = {}

    def holds(number: int) -> bool:
        if number not in tried:
            ask = replace(at.ask, cheapest=False, copies=str(number), autoscale="")
            tried[number] = variant(replace(at, ask=ask), f"{number} {'copy' if number == 1 else 'copies'}")
        return _holds(tried[number])

    number = low
    while not holds(number) and number < high:
        number = min(high, 2 * number)
    below = max((one for one in tried if not _holds(tried[one])), default=low - 1)
    while holds(number) and number - below > 1:
        middle = (below + number) // 2
        number, below = (middle, below) if holds(middle) else (number, middle)
    return tried


def _policies(at: Setting, figures: Figures | None, copies: int) -> Iterator[str]:
    """Yield policies whose targets follow from what the fewest constant copies saw."""
    assert figures
    in_flight = max(1.0, figures.requests / figures.seconds * figures.e2e.mean / copies)
    yield from (f"busy:{max(1, round(in_flight * factor))}" for factor in (1, 2, 4))
    yield from ("queue:1", "queue:4", "kv:50%", "kv:80%")
    first = targets_of(at).ttft
    if first:
        yield f"ttft:{first.seconds / 2:g}s"
    busiest = max(1e-3, at.facts.busiest / copies)
    yield from (f"rate:{busiest * factor:.3g}" for factor in (0.7, 1.0))
