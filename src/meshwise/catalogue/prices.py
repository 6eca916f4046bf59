"""Prices: what a device costs to rent or to buy, of whom and when; and how much longer than their steps published trainings took."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from meshwise import units
from meshwise.catalogue import files, records
from meshwise.errors import unknown

Kind = Literal["on demand", "reserved", "spot", "in a server"]


@dataclass(frozen=True, kw_only=True)
class Price:
    """A public list price: '$1599' to buy, '$4.20/h' to rent."""

    price: str
    date: str
    source: str
    provider: str = ""
    """Who rents it out."""
    kind: Kind = "on demand"
    """How it is rented; 'in a server': the price of buying it is a share of a whole server's."""
    recalled: bool = False
    """Written from memory, not copied from the source."""

    def __post_init__(self) -> None:
        units.parse(self.price, self.quantity)

    @property
    def quantity(self) -> str:
        """The quantity of `units.QUANTITIES` that the price is given in."""
        return "dollars/s" if "/" in self.price else "dollars"

    @property
    def rent(self) -> float | None:
        """Dollars per second; None for a purchase price."""
        return units.parse(self.price, "dollars/s") if self.quantity == "dollars/s" else None

    @property
    def seller(self) -> str:
        """The provider, and the kind where it is not on demand: 'AWS', 'AWS reserved'."""
        return self.provider if self.kind == "on demand" else f"{self.provider} {self.kind}"

    @property
    def day(self) -> str:
        return f"{self.date}{', recalled' if self.recalled else ''}"

    def __str__(self) -> str:
        """Return whose price it is, without where it was read, and its day."""
        return f"{self.source.partition(' (')[0]}, {self.day}"


def rental(prices: Iterable[Price], seller: str = "") -> Price | None:
    """Return the latest rental price of a seller ('' any, on demand), or None. A price of nobody is a user's own, and holds with all."""
    rents = [price for price in prices if price.rent is not None]
    of_seller = [p for p in rents if (p.seller.lower() in ("", seller.lower()) if seller else p.kind == "on demand")]
    return max(of_seller, key=lambda price: price.date, default=None)


def purchase(prices: Iterable[Price]) -> Price | None:
    """Return the latest price of buying it, or None."""
    return max((price for price in prices if price.rent is None), key=lambda price: price.date, default=None)


def check_seller(name: str, prices: Iterable[Price]) -> str:
    """Return the seller as the catalogue writes it. UserError for one that has no price in it."""
    known = {price.seller.lower(): price.seller for price in prices if price.rent is not None and price.provider}
    if name.strip().lower() not in known:
        raise unknown("provider", name, sorted(known.values()))
    return known[name.strip().lower()]


def common_seller(listed: Sequence[Sequence[Price]]) -> str:
    """Return the seller on demand who has a price of most of these chips, of equals one whose prices are not recalled; '' where no two
    chips have a seller in common."""
    sellers = sorted(
        {p.seller for prices in listed for p in prices if p.rent is not None and p.kind == "on demand" and p.provider}
    )

    def covered(seller: str) -> tuple[int, int]:
        found = [price for prices in listed if (price := rental(prices, seller))]
        return len(found), -sum(price.recalled for price in found)

    best = max(sellers, key=covered, default="")
    return best if best and covered(best)[0] > 1 else ""


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A training whose makers published device-hours, and the rate that its steps reached."""

    name: str
    params: units.Count  # parameters that each token passes through
    tokens: units.Count
    rate: units.FlopsPerSecond  # FLOP/s per device in a step
    device_hours: units.Count
    source: str
    recalled: bool = False

    @property
    def factor(self) -> float:
        """Published device-hours over those of its steps alone: 6 x parameters x tokens at the rate."""
        return self.device_hours * 3600 * self.rate / (6 * self.params * self.tokens)


@files.cached
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the published trainings, the one with the smallest factor first."""
    path = files.files("money", ".toml")["published_runs"]
    rows = cast(list[dict[str, Any]], files.table_of(path)["runs"])
    return tuple(sorted((records.read(PublishedRun, row, path.name) for row in rows), key=lambda run: run.factor))


def usual_factor() -> tuple[float, float, float]:
    """Return how many times as long as its steps a published training took: the median, the least and the most."""
    factors = [run.factor for run in published_runs()]
    return statistics.median(factors), factors[0], factors[-1]
