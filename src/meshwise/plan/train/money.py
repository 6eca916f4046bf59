"""Time and money of a training as somebody signs them: with intervals, in a usual team's hands, and rented or bought."""

from typing import NamedTuple

from meshwise import units
from meshwise.catalogue.power import SERVER_WATTS_PER_DEVICE
from meshwise.catalogue.prices import published_runs, purchase, usual_factor
from meshwise.cost.train.question import Question
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.choice import Choice

HOURS_PER_YEAR = 8766
OWNED_YEARS = 5
"""Years over which a server is written off: between 4 and 6 at large clouds (recalled from their yearly reports). A choice."""
DOLLARS_PER_KWH = 0.10
"""Price of a kWh where none is given (--energy-price): about that of industry in the USA (recalled from the EIA's tables)."""
MIN_BUY_DOLLARS = 100.0  # dollars of renting below which nobody asks whether to buy
MIN_USUAL_DAYS = 1.0  # days from which on a training is long enough that a team restarts, evaluates and tunes it


class Span(NamedTuple):
    """A figure of a whole training with its 90% interval, which is that of a step: failures are at their mean."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Span":
        return Span(*(factor * value for value in self))


def span(c: Choice, value: float | None) -> Span | None:
    """Return a figure that grows with the seconds of a step, with its interval; None of None."""
    return None if value is None else Span(value, value * c.low / c.step, value * c.high / c.step)


def days(c: Choice) -> Span | None:
    return span(c, c.total_days)


def dollars(c: Choice) -> Span | None:
    return span(c, c.total_dollars)


def mwh(c: Choice) -> Span | None:
    return span(c, c.mwh)


def intervals(c: Choice) -> dict[str, float]:
    """Return the ends of the intervals of days, dollars and MWh under their names in tables; nothing without tokens to train on."""
    found = {"total_days": days(c), "total_dollars": dollars(c), "mwh": mwh(c)}
    return {f"{name}_{end}": getattr(value, end) for name, value in found.items() if value for end in ("low", "high")}


def sentences(ask: TrainAsk, q: Question, best: Choice) -> tuple[str, ...]:
    """Return tokens a day, what a usual team takes, and renting against buying; nothing without tokens to train on."""
    total = days(best)
    if not q.work.tokens or total is None or best.days is None:
        return ()
    daily = units.show(q.work.tokens / total.value, "count", digits=3)
    spent = dollars(best)
    cost = f" and ${_shown(spent.low)} to ${_shown(spent.high)}" if spent else ""
    sure = (
        f"90% of such runs take {units.figure(total.low)} to {units.figure(total.high)} days{cost}; "
        if total.value >= MIN_USUAL_DAYS
        else ""
    )
    return (f"{sure}{daily} tokens a day.", *_usual(best, total), *_owned(ask, q, best))


def _shown(value: float) -> str:
    return units.show(value, "count", digits=3)


def _usual(best: Choice, total: Span) -> tuple[str, ...]:
    """Return the days and dollars of a usual team: those of steps alone, times the factor of published trainings."""
    if best.days is None or best.days < MIN_USUAL_DAYS:
        return ()
    runs, (median, least, most) = published_runs(), usual_factor()
    longer = max(total.value, best.days * median)
    cost = f" and ${_shown(best.dollars * longer / best.days)}" if best.dollars else ""
    return (
        f"A usual team: about {units.figure(longer)} days{cost}, {median:.1f} times the steps alone "
        f"({least:.1f} to {most:.1f} in {len(runs)} published trainings, recalled).",
    )


def _owned(ask: TrainAsk, q: Question, best: Choice) -> tuple[str, ...]:
    """Return the price of buying the devices, and the share of their years in use from which on that is cheaper than renting."""
    price, rent = purchase(q.chip.prices), q.cluster.rent
    if price is None or not rent or (best.total_dollars or 0.0) < MIN_BUY_DOLLARS or len(q.cluster.chips) > 1:
        return ()
    each = units.parse(price.price, "dollars")
    kilowatts = ((q.chip.tdp or 0.0) + (SERVER_WATTS_PER_DEVICE if q.chip.in_servers else 0.0)) / 1000 * ask.pue
    running = kilowatts * (ask.energy_price or DOLLARS_PER_KWH)
    hourly, written_off = 3600 * rent / q.cluster.devices, each / (OWNED_YEARS * HOURS_PER_YEAR)
    use = written_off / (hourly - running) if hourly > running else 2.0
    verdict = f"cheaper than renting if in use over {use:.0%} of {OWNED_YEARS} years" if use < 1 else "dearer than renting"
    return (f"To buy {best.devices:,} at ${each:,.0f} ({price.day}): {verdict}, power included.",)
