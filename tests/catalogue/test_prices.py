"""Prices: of one seller, with their day, so that chips compare; and the factor of published trainings."""

import pytest

from meshwise.catalogue import clusters
from meshwise.catalogue.chips import chips, find_chip
from meshwise.catalogue.prices import Price, common_seller, published_runs, purchase, rental, usual_factor
from meshwise.errors import UserError


def listed(*rows: tuple[str, str, str]) -> tuple[Price, ...]:
    """Prices as (price, date, provider)."""
    return tuple(Price(price=price, date=date, source="s", provider=provider) for price, date, provider in rows)


def test_a_price_to_rent_is_dollars_per_second_and_a_price_to_buy_is_none() -> None:
    assert Price(price="$3.60/h", date="2026", source="s").rent == pytest.approx(0.001)  # 3.60 / 3600
    assert Price(price="$1599", date="2026", source="s").rent is None


def test_the_latest_price_to_rent_counts_and_that_of_a_seller_where_one_is_named() -> None:
    prices = listed(("$2/h", "2024-01-01", "X"), ("$1/h", "2025-06-01", "Y"), ("$30k", "2026-01-01", ""))
    latest, of_x, bought = rental(prices), rental(prices, "x"), purchase(prices)
    assert latest
    assert latest.provider == "Y"
    assert of_x
    assert of_x.price == "$2/h"
    assert bought
    assert bought.price == "$30k"
    assert rental(prices, "Z") is None


def test_a_reserved_price_is_used_only_where_it_is_asked_for() -> None:
    reserved = Price(price="$1/h", date="2026", source="s", provider="X", kind="reserved")
    prices = (*listed(("$2/h", "2024", "X")), reserved)
    on_demand, asked = rental(prices), rental(prices, "X reserved")
    assert on_demand
    assert on_demand.price == "$2/h"
    assert asked
    assert asked.price == "$1/h"


def test_chips_are_compared_at_the_seller_who_has_most_of_them() -> None:
    """An MI300X of RunPod beside an H100 of AWS compares sellers, not chips."""
    assert common_seller([find_chip("h100-sxm").prices, find_chip("mi300x").prices]) == "RunPod"
    assert common_seller([find_chip("h100-sxm").prices, find_chip("a100-80gb-sxm").prices]) == "AWS"
    assert common_seller([listed(("$1/h", "2026", "X")), listed(("$1/h", "2026", "Y"))]) == ""


def test_every_price_to_rent_names_its_provider_and_day() -> None:
    rents = [price for chip in chips() for price in chip.prices if price.rent is not None]
    assert len(rents) > 30
    assert all(price.provider and len(price.date) == 10 for price in rents)


def test_a_cluster_says_whose_price_it_has() -> None:
    cluster = clusters.find_cluster("8xh100-sxm")
    assert cluster.priced_by.startswith("AWS p5.48xlarge on demand")
    other = clusters.adjusted(cluster, seller="runpod")
    assert other.seller == "RunPod"
    assert other.rent == pytest.approx(8 * 2.69 / 3600)
    assert other.priced_on == "2025-09-01, recalled"
    assert clusters.adjusted(cluster, price=0.001).priced_by == ""
    with pytest.raises(UserError, match="unknown provider 'azur'; did you mean 'Azure'"):
        clusters.adjusted(cluster, seller="azur")


def test_published_trainings_took_longer_than_their_steps() -> None:
    """6 x 176e9 x 366e9 FLOP at 150 TFLOP/s are 715,733 A100-hours; BLOOM's makers state 1,082,990."""
    by_name = {run.name: run.factor for run in published_runs()}
    assert by_name["BLOOM 176B"] == pytest.approx(1_082_990 / 715_733, rel=1e-3)
    median, least, most = usual_factor()
    assert 0.95 < least <= median <= most
    assert all(run.recalled for run in published_runs())
