"""Axes of a serving question, and how each value changes the question."""

import pytest

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.axes import SERVE_AXES, with_cards
from meshwise.plan.vary import parse, variants
from support.command import one_line

ASK = ServeAsk(model="llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context=16384)


def asked(text: str, ask: ServeAsk = ASK) -> list[ServeAsk | None]:
    return [variant.ask for variant in variants(ask, parse([text], SERVE_AXES, ask), SERVE_AXES)]


def test_a_range_of_cards_goes_by_ones_because_a_fifth_card_is_the_question() -> None:
    clusters = [one.on for one in asked("gpus=1..8") if one]
    assert clusters == [f"1x{n}xrtx4060ti-16gb" for n in range(1, 9)]


def test_users_and_contexts_double() -> None:
    assert [one.users for one in asked("users=1..8") if one] == [1, 2, 4, 8]
    assert [one.context for one in asked("context=4k..32k") if one] == [4096, 8192, 16384, 32768]


def test_each_axis_changes_its_own_part() -> None:
    assert [one.model for one in asked("quant=q6_k,q8_0") if one] == ["llama-3.3-70b:q6_k", "llama-3.3-70b:q8_0"]
    assert [one.kv for one in asked("kv=f16,q8_0") if one] == ["f16", "q8_0"]
    assert [one.link for one in asked("link=2GB/s,16GB/s") if one] == [2e9, 16e9]
    assert [one.prompt for one in asked("prompt=1k") if one] == [1024]
    assert [one.engine for one in asked("engine=vllm") if one] == ["vllm"]
    assert [one.on for one in asked("chip=rtx3090") if one] == ["1x4xrtx3090"]


def test_only_several_hosts_have_a_network() -> None:
    assert asked("network=1Gbps") == [None]
    rig = ServeAsk(model="llama-3-8b:q4_k_m", on="2x(2xrtx3090)@1Gbps")
    assert [one.on for one in asked("network=10Gbps", rig) if one] == ["2x(2xrtx3090)@1.25GB/s"]


def test_a_rig_of_the_catalogue_keeps_its_link() -> None:
    """A desktop board gives two RTX 4090 eight lanes each (clusters/rig-2x4090.toml), and the card alone has sixteen."""
    more = with_cards(ServeAsk(model="llama-3-8b:q4_k_m", on="rig-2x4090"), 3)
    assert (more.on, more.link) == ("1x3xrtx4090", 16e9)
    assert with_cards(ASK, 5).link == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cards=0", "'0' is not a number"),
        ("quant=q9", "unknown quantization 'q9'"),
        ("link=fast", "'fast' is not a bandwidth"),
        ("nodes=2", "there is no axis 'nodes'"),
        ("kv=f16..q8_0", "kv has no ranges"),
        ("engine=tgi", "unknown engine 'tgi'"),
    ],
)
def test_bad_values_are_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        asked(text)
    assert words in one_line(refusal.value)


def test_the_number_of_cards_cannot_vary_where_their_kinds_differ() -> None:
    with pytest.raises(UserError, match="mixes devices"):
        asked("gpus=2,3", ServeAsk(model="llama-3-8b:q4_k_m", on="2xrtx3090+1xrtx3060-12gb"))
