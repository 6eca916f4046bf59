"""The cheapest chip and number of nodes that meet a deadline."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.cheapest import Cheapest, answer, rentable_chips, smooth_counts
from meshwise.plan.train import lookup
from meshwise.plan.train.choice import Choice, choice
from meshwise.plan.train.search import search
from support.command import one_line

ASK = TrainAsk(model="llama-3.2-1b", on="", batch=512, seq=4096, framework="megatron", tokens=1e12)
DAY = 86400.0


def cheapest(ask: TrainAsk, *texts: str) -> Cheapest:
    return answer(ask, texts)


def by_hand(ask: TrainAsk, cluster: str) -> Choice | None:
    q = lookup.question(replace(ask, on=cluster))
    found = search(q, top=1)
    return choice(q, found.layouts, found.cost, 0) if len(found.layouts) else None


@pytest.mark.parametrize("days", [3, 10, 30, 200])
def test_it_is_the_cheapest_of_all_counts_that_divide_well(days: int) -> None:
    """Every number of nodes up to 64 with no prime factor but 2, 3 and 5, of both chips, one by one."""
    ask = replace(ASK, within=days * DAY, at_most="64 nodes")
    found = cheapest(ask, "chip=h100-sxm,a100-80gb").best.choice
    every = [by_hand(ask, f"{n}x8x{chip}") for n in smooth_counts(64) for chip in ("h100-sxm", "a100-80gb-sxm")]
    dollars = [choice.dollars for choice in every if choice and choice.days and choice.days <= days and choice.dollars]
    assert found
    assert found.dollars == pytest.approx(min(dollars), rel=1e-12)
    assert found.days
    assert found.days <= days


def test_every_count_that_was_tried_and_is_in_time_costs_no_less() -> None:
    found = cheapest(replace(ASK, within=10 * DAY))
    assert found.best.choice
    assert found.best.choice.dollars
    tried = [point for point in found.tried if point.choice and point.choice.dollars]
    assert len(tried) > 4
    assert all(
        point.choice.dollars >= found.best.choice.dollars
        for point in tried
        if point.meets(10 * DAY) and point.choice and point.choice.dollars
    )


def test_a_shorter_deadline_is_never_cheaper() -> None:
    costs = [
        (found.choice and found.choice.dollars) or 0
        for days in (2, 5, 20, 80)
        for found in [cheapest(replace(ASK, within=days * DAY)).best]
    ]
    assert costs == sorted(costs, reverse=True)


def test_without_a_deadline_it_is_never_more_expensive() -> None:
    best = cheapest(ASK).best.choice
    hurried = cheapest(replace(ASK, within=3 * DAY)).best.choice
    assert best
    assert hurried
    assert best.dollars
    assert hurried.dollars
    assert best.dollars <= hurried.dollars


def test_the_chips_to_try_can_be_rented_and_trained_on() -> None:
    assert rentable_chips(ASK) == ["a100-40gb-sxm", "a100-80gb-sxm", "b200", "b300", "h100-sxm", "h200", "mi300x"]
    assert rentable_chips(replace(ASK, precision="fp8")) == ["b200", "b300", "h100-sxm", "h200", "mi300x"]  # an A100 has no fp8


def test_a_named_cluster_bounds_the_chips_and_nodes_to_try() -> None:
    tried = cheapest(replace(ASK, on="6x8xh100-sxm")).tried
    assert {point.values["chip"] for point in tried} == {"h100-sxm"}
    assert max(int(point.values["nodes"]) for point in tried) <= 6


def test_a_cluster_s_own_price_and_network_count() -> None:
    """The price of a machine type, and not that of its chips (AWS p5.48xlarge, since June 2025)."""
    best = cheapest(replace(ASK, on="p5.48xlarge", at_most="1 node")).best
    assert best.choice
    assert best.choice.days
    assert best.ask
    assert best.ask.on == "p5.48xlarge:1"
    assert best.choice.dollars == pytest.approx(55.04 * 24 * best.choice.days)


def test_the_counts_that_are_listed_are_those_that_are_tried() -> None:
    ask = replace(ASK, on="h100-sxm")
    for text in ("nodes=2,3,7", "devices=16,24,56"):
        assert [point.values["nodes"] for point in cheapest(ask, text).tried] == [2, 3, 7]


def test_torus_slices_can_be_asked_for() -> None:
    best = cheapest(replace(ASK, within=30 * DAY), "chip=tpu-v5e,tpu-v5p").best
    assert best.ask
    assert best.ask.on.startswith("tpu-v5")


@pytest.mark.parametrize(
    ("ask", "texts", "code", "words"),
    [
        (replace(ASK, within=60.0), [], 1, "nothing trains within 60 s: the closest is 2048x8xb300 with"),
        (ASK, ["batch=1M"], 2, "it goes with --vary chip, nodes or devices, not with --vary batch"),
        (replace(ASK, on="mi325x"), [], 1, "no rental price for mi325x in the catalogue"),
        (ASK, ["chip=mi325x,gb200"], 1, "no rental price for mi325x, gb200"),
        (replace(ASK, at_most="many"), [], 2, "--at-most 'many': expected a number of nodes or devices"),
        (replace(ASK, at_most="0 nodes"), [], 2, "--at-most '0 nodes'"),
        (replace(ASK, at_most="4 weeks"), [], 2, "--at-most '4 weeks'"),
        (replace(ASK, at_most="64", on="h100-sxm"), ["nodes=4"], 2, "give only one"),
        (replace(ASK, on="h100-sxm"), ["devices=12"], 1, "12 devices are not a whole number of nodes of 8 H100"),
        (replace(ASK, model="llama-3-405b", on="h100-sxm", at_most="2 nodes"), [], 1, "no number of nodes fits"),
        (replace(ASK, on="nowhere"), [], 2, "unknown"),
    ],
    ids=[
        "too late",
        "an axis",
        "no price",
        "no prices",
        "not a bound",
        "nothing",
        "a unit",
        "both",
        "no node",
        "too large",
        "unknown",
    ],
)
def test_a_question_without_an_answer_is_refused_in_one_line(ask: TrainAsk, texts: list[str], code: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        cheapest(ask, *texts)
    assert words in one_line(caught.value)
    assert caught.value.exit_code == code


def test_a_users_own_price_makes_a_chip_a_candidate(home: Path) -> None:
    from meshwise.catalogue.files import BUILT_IN

    text = (BUILT_IN / "chips" / "h200.toml").read_text(encoding="utf-8")
    at = text.index("[[sources]]")
    price = '[[prices]]\nprice = "$0.01/h"\ndate = "2026-12-01"\nsource = "a friend"\n\n'
    (home / "chips" / "h200.toml").write_text(text[:at] + price + text[at:], encoding="utf-8")
    assert cheapest(replace(ASK, within=30 * DAY)).best.values["chip"] == "h200"


def test_counts_that_divide_well() -> None:
    assert smooth_counts(20) == [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16, 18, 20]
    assert smooth_counts(7) == [1, 2, 3, 4, 5, 6, 7]  # the largest count is always included


def test_nothing_is_tried_that_could_not_be_in_time_at_the_peak_rate() -> None:
    found = cheapest(replace(ASK, within=2 * DAY, on="h100-sxm"))
    q = found.tried[0].question
    assert q
    fastest = q.model.flops(1e12, 4096) / (989.4e12 * 8 * 2 * DAY)
    assert min(int(point.values["nodes"]) for point in found.tried) >= fastest > 1
    with pytest.raises(DoesNotFit):
        cheapest(replace(ASK, within=2 * DAY, on="h100-sxm", at_most="1 node"))
