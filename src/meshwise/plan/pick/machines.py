"""Machines to buy or to rent for a price: each with the best model that it runs, the best models first."""

from dataclasses import dataclass, replace
from typing import Any

from meshwise import units
from meshwise.catalogue import records
from meshwise.catalogue.chips import Chip, chips
from meshwise.catalogue.prices import Price, purchase, rental
from meshwise.catalogue.releases import offers
from meshwise.errors import DoesNotFit, UserError
from meshwise.models.count import flat
from meshwise.plan.pick import ranking
from meshwise.plan.pick.answer import Picked, Starter, fitting, row
from meshwise.plan.pick.ask import PickAsk
from meshwise.plan.pick.trial import machine

COUNTS = (1, 2, 4, 8)  # devices of one machine that are tried
KINDS = ("gpu", "apple", "cpu")


@dataclass(frozen=True, kw_only=True)
class Affordable:
    """A machine within the price, and the best model that it runs."""

    on: str
    dollars: float  # to buy its devices, or to rent them for an hour
    date: str  # day of the list price
    source: str
    best: Picked


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines within a price, those with the best models first."""

    ask: PickAsk
    machines: tuple[Affordable, ...]

    @property
    def command(self) -> str:
        """The command that reproduces this answer."""
        return self.ask.command()

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per machine, with the columns of `--csv`."""
        return [flat({**records.plain(one), "best": {**records.plain(one.best), "commands": ""}}) for one in self.machines]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return {"for": self.ask.purpose, "machines": records.plain(self.machines), "command": self.command}

    def to_frame(self) -> Any:
        """Return the rows as a polars or pandas data frame."""
        return records.frame(self.rows())


def answer(ask: PickAsk, start: Starter) -> Machines:
    """Return the machines within `buy` or `rent`, the best model of each, the best model first and of equals the cheapest machine."""
    order = ranking.order(ask.purpose, offers())
    found: list[tuple[int, Affordable]] = []
    for text, price, dollars in _affordable(ask):
        one = replace(ask, on=text, buy=0.0, rent=0.0)
        try:
            trials, _ = fitting(one, machine(text), order, 1)
        except UserError:  # chips that no engine serves on in this number
            continue
        if trials:
            best = row(one, trials[0], start)
            found.append(
                (
                    order.index(trials[0].offer),
                    Affordable(on=text, dollars=dollars, date=price.date, source=price.source, best=best),
                )
            )
    if not found:
        limit = units.show(ask.rent, "dollars/s") if ask.rent else f"${ask.buy:,.0f}"
        raise DoesNotFit(
            f"no machine with a list price within {limit} runs a model for {ask.purpose} as asked (meshwise show chips)"
        )
    found.sort(key=lambda pair: (pair[0], pair[1].dollars))
    return Machines(ask=ask, machines=tuple(one for _, one in found[: ask.top]))


def _affordable(ask: PickAsk) -> list[tuple[str, Price, float]]:
    """Return the text of each machine within the price, its price, and the dollars of all its devices."""
    listed: list[tuple[str, Price, float]] = []
    for chip in chips():
        price = _price(chip, rented=bool(ask.rent)) if chip.kind in KINDS else None
        if price is None:
            continue
        each = units.parse(price.price, price.quantity)
        most = 1 if chip.kind != "gpu" or not chip.host else chip.per_node
        hourly = 3600.0 if ask.rent else 1.0
        counts = [count for count in COUNTS if count <= most and count * each <= (ask.rent or ask.buy)]
        listed += [(f"{count}x{chip.key}", price, count * each * hourly) for count in counts]
    return listed


def _price(chip: Chip, *, rented: bool) -> Price | None:
    """Return the latest list price of a chip, to rent it or to buy it."""
    return rental(chip.prices) if rented else purchase(price for price in chip.prices if price.kind != "in a server")
