"""A serving question at many points: each has the plan of its own question."""

import re

import pytest

from meshwise.errors import DoesNotFit
from meshwise.plan.ask import ServeAsk
from meshwise.plan.axes import SERVE_AXES
from meshwise.plan.serve import lookup
from meshwise.plan.serve.choice import choice
from meshwise.plan.serve.search import search
from meshwise.plan.serve.vary import ServePoint, answer, answers
from meshwise.plan.vary import check_any_fits, parse, variants
from support.command import one_line

ASK = ServeAsk(model="llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context=16384)


def points(text: str, ask: ServeAsk = ASK) -> list[ServePoint]:
    return answers(variants(ask, parse([text], SERVE_AXES, ask), SERVE_AXES), text.startswith("gpus"))


@pytest.mark.parametrize("text", ["context=4k,16k", "kv=f16,q8_0", "users=1,2", "link=2GB/s,32GB/s"])
def test_a_point_is_the_plan_of_its_own_question(text: str) -> None:
    for point in points(text):
        assert point.ask
        q = lookup.question(point.ask)
        assert point.choice == choice(q, search(q).options[0])


def test_all_cards_are_used_where_their_number_varies() -> None:
    found = points("gpus=4..6")
    assert [point.choice.cards * point.choice.replicas for point in found if point.choice] == [4, 5, 6]
    assert [point.longest for point in found] == sorted(point.longest for point in found)


def test_flat_layer_splits_are_reported_even_where_another_split_wins() -> None:
    (line,) = answer(ASK, ["gpus=4..6"]).lessons
    assert re.match(r"Layer split on 4 to 6 cards: decode is flat within [1-5]%", line)
    assert answer(ASK, ["context=4k,8k"]).lessons == []


def test_a_smaller_cache_leaves_more_room() -> None:
    f16, q8, q4 = points("kv=f16,q8_0,q4_0")
    assert f16.longest < q8.longest < q4.longest


def test_a_faster_link_never_hurts() -> None:
    ask = ServeAsk(model="llama-3.3-70b:bf16", on="8xh100-sxm", context=8192)
    rates = [point.choice.per_user for point in points("link=2GB/s..450GB/s", ask) if point.choice]
    assert len(rates) > 5
    assert rates == sorted(rates)


def test_more_users_are_faster_together_and_slower_each() -> None:
    ask = ServeAsk(model="llama-3-8b:bf16", on="h200", context=2048)
    found = [point.choice for point in points("users=1..32", ask) if point.choice]
    assert [one.throughput for one in found] == sorted(one.throughput for one in found)
    assert [one.per_user for one in found] == sorted((one.per_user for one in found), reverse=True)


def test_an_impossible_point_is_a_row_with_the_reason() -> None:
    good, bad = points("quant=q4_k_m,awq")
    assert good.choice
    assert bad.choice or "does not" in bad.refusal
    ask = ServeAsk(model="llama-3.3-70b:bf16", on="4xrtx3090", engine="vllm", context=4096)
    lacking, fine = points("quant=bf16,awq", ask)
    assert re.fullmatch(r"does not fit: .* lacks [\d.]+ GiB on its fullest card", lacking.refusal)
    assert fine.choice


def test_a_table_in_which_nothing_works_is_one_line() -> None:
    ask = ServeAsk(model="llama-3.3-70b:bf16", on="rtx3090", engine="vllm", context=4096)
    with pytest.raises(DoesNotFit) as refusal:
        check_any_fits(points("gpus=1,2", ask))
    assert "none of 2 points fits; 1: does not fit" in one_line(refusal.value)
