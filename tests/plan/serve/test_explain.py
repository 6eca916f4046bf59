"""The reasons of a serving plan: each sentence agrees with the numbers."""

import re
from dataclasses import replace

import pytest

from meshwise.cost.serve.passes.speed import Batch
from meshwise.plan.serve.choice import interval
from meshwise.plan.serve.explain import compute_bound, default_option, layer_split_lesson, reasons, tokens
from meshwise.plan.serve.measured import judge as measured
from meshwise.plan.serve.search import search
from support.serve_questions import found, question, split


def text_of(*arguments: str, **more: object) -> str:
    return "\n".join(reasons(question(*arguments, **more), found(*arguments, **more), False))


def test_a_fifth_card_adds_memory_and_a_hop_and_no_speed() -> None:
    """physics.md: a fifth GPU buys memory, not decode speed; 64 heads want 1, 2, 4 or 8."""
    text = text_of()
    line = next(line for line in text.splitlines() if line.startswith("Layer split reads"))
    match = re.search(
        r"a fifth card adds 15\.4 GiB of memory and ([\d.]+) ms of hops, not speed: ([\d.]+) tokens/s on 4, ([\d.]+) on 5", line
    )
    assert match
    assert float(match[1]) < 1
    assert float(match[3]) == pytest.approx(float(match[2]), rel=0.02)
    assert "tensor parallelism needs 1, 2, 4 or 8 cards." in line


def test_fit_context_and_format_are_explained() -> None:
    text = text_of(fix=("split=layer",))
    assert re.search(
        r"It fits: 39\.6 GiB of weights \(4\.82 bits each\) and 5\.0 GiB of f16 KV cache on \d cards", text
    )  # physics.md
    assert re.search(
        r"Longest context that fits in this layout: \d+k in f16, \d+k in q8_0, \d+k in q4_0 \(trained for 128k\)", text
    )
    assert "Most precise common format that fits in this layout: " in text


def test_a_model_that_does_not_fit_is_explained_with_the_card_that_would_help() -> None:
    text = text_of(cluster="2xrtx4060ti-16gb")
    assert "It does not fit on the cards" in text
    three = text_of("llama-3.3-70b:q3_k_m", "2xrtx4060ti-16gb")
    assert "With a third card everything fits: " in three


def test_the_other_engine_answers_tensor_or_layer() -> None:
    text = text_of()
    words = re.search(
        r"vllm with awq would be [\d.]+% (faster|slower) over whole requests: ([\d.]+) instead of [\d.]+ tokens/s in all, ([\d.]+) instead "
        r"of [\d.]+ per request after its prompt; tp4, all-reduces take \d+%",
        text,
    )
    assert words
    # what is compared is what layouts are ranked by: prompts count
    best = found().options[0].throughput
    assert (words[1] == "faster") == (float(words[2]) > best)
    assert float(words[2]) < float(words[3])


def test_at_a_rate_the_other_engine_is_compared_by_the_time_of_a_request() -> None:
    text = text_of("llama-3-8b:bf16", "8xh100-sxm", rate=4.0, context=4096)
    assert re.search(r"would be [\d.]+% slower over whole requests: [\d.]+ m?s each, [\d.]+ tokens/s instead of ", text)


def test_an_engine_that_was_named_is_not_compared() -> None:
    named = reasons(question(engine="llama.cpp"), found(engine="llama.cpp"), True)
    assert not any("vllm" in line for line in named)


def test_copies_are_compared_with_one_instance() -> None:
    text = text_of("llama-3-8b:bf16", "8xh100-sxm", users=64, context=4096)
    assert re.search(r"gives [\d,]+ tokens/s, prompts included, .* [\d,]+: (cards that share|each replica reads)", text)


def test_other_links_and_networks_are_evaluated() -> None:
    assert "Link between cards" in text_of()
    text = text_of(cluster="2x(2xrtx4060ti-16gb)@1Gbps")
    rates = [float(rate) for rate in re.findall(r"(?:GbE|RDMA) ([\d.]+\d)", text)]
    assert len(rates) == 4
    assert rates == sorted(rates)


def test_decode_turns_compute_bound_where_products_take_longer_than_reading() -> None:
    option = found("llama-3-8b:bf16", "h200", context=2048).options[0]
    turn = compute_bound(option)
    assert option.cost
    few, many = (option.cost.parts(Batch(users, (0.0,))) for users in (turn // 4, 4 * turn))
    assert few[2] < few[0] / 2
    assert many[2] > many[0]


def test_power_is_that_of_the_cards_in_use() -> None:
    cards = len(found().options[0].layout.cards)
    assert f"At most {cards * 165} W for the cards" in text_of()


# A measured speed.


def verdict(value: float, **more: object) -> list[str]:
    return measured(question(**more), found(**more), value)


def test_a_measured_speed_is_compared_with_the_engines_default_split() -> None:
    """llama.cpp lays layers over all cards by default."""
    assert default_option(found(), 4).layout.name == "layer split, 4 cards"
    assert default_option(found("llama-3.3-70b:awq"), 4).layout.tp == 4


def test_a_speed_within_the_interval_is_normal() -> None:
    q, option = question(), split(found(), "layer", 4)
    low, high = interval(q, option)
    assert low < option.per_user < high
    for value in (low * 1.001, option.per_user, high * 0.999):
        (line,) = verdict(value)
        assert ": normal (" in line


def test_a_slow_speed_has_its_usual_reasons_with_their_numbers() -> None:
    head, *lines = verdict(3.5)  # the second figure of the rig notes
    assert "slower than predicted" in head
    for words in ("layers on the CPU: ", "a power cap"):
        assert any(words in line for line in lines)
    left = next(int(match[1]) for line in lines if (match := re.search(r"layers on the CPU: (\d+) of 80", line)))
    assert 1 < left < 40


def test_a_fast_speed_names_the_layout_that_would_give_it() -> None:
    tensor = split(found(), "tensor", 4)
    (line,) = verdict(1.1 * tensor.per_user)
    assert "faster than predicted" in line
    assert "It would be normal for tensor split" in line


def test_flat_layer_splits_are_reported_as_flat() -> None:
    """physics.md: 70B Q4_K_M on 2/4/6 RTX 3090 is flat within 5%."""
    points = [(n, split(found(cluster=f"{n}xrtx3090"), "layer", n)) for n in (2, 4, 6)]
    match = re.search(r"Layer split on 2 to 6 cards: decode is flat within (\d+)%", layer_split_lesson(points))
    assert match
    assert int(match[1]) <= 5


def test_rates_have_three_digits_and_no_exponent() -> None:
    assert [tokens(rate) for rate in (0.5, 6.789, 123.4, 1234.5, 123456.7)] == ["0.5", "6.79", "123", "1,234", "123,457"]


def test_reasons_come_for_every_kind_of_model_and_rig() -> None:
    for model, rig in (
        ("mamba2-2.7b:q4_k_m", "rtx3090"),
        ("deepseek-v3:fp8", "8xh200"),
        ("gemma-3-27b:q4_k_m", "m2-ultra"),
        ("gpt-oss-20b:mxfp4_moe", "rtx4060ti-16gb"),
        ("llama-3-8b:q4_k_m", "epyc-9654"),
        ("llama-3-70b:q4_k_m", "2xrtx3090+1xrtx3060-12gb"),
    ):
        q = replace(question(model, rig, context=4096))
        assert all(line and line.isprintable() for line in reasons(q, search(q), False))


def test_a_context_that_does_not_fit_is_told_of_a_narrower_cache_with_its_speed() -> None:
    """The speed is the one that a question with that cache gets."""
    asked = ("llama-3-70b", "2xrtx3090")
    line = next(line for line in text_of(*asked, context="32k").splitlines() if line.startswith("With --kv q8_0"))
    rate = tokens(found(*asked, context="32k", kv="q8_0").options[0].per_user)
    assert f"{rate} instead of {tokens(found(*asked, context='32k').options[0].per_user)} tokens/s" in line


def test_experts_of_one_more_layer_on_the_cpu_are_told_with_what_they_gain() -> None:
    text = text_of("gpt-oss-120b", "1xrtx3090")
    assert re.search(
        r"With one more layer of experts on the CPU \(\d+\): [\d.]+ instead of [\d.]+ tokens/s, and [\d.]+ GiB", text
    )


def test_a_model_that_llamacpp_does_not_run_is_served_by_vllm() -> None:
    assert question("opt-13b", "1xh100-sxm").engine.name == question("opt-13b", "2xrtx3090").engine.name == "vllm"
    assert "llama.cpp" not in text_of("opt-13b", "1xh100-sxm")


def test_cards_with_nvlink_are_not_blamed_for_risers() -> None:
    for on, blamed in (("2xrtx3090", True), ("2xh100-sxm", False)):
        q, options = question("qwen3-8b:bf16", on, engine="vllm"), found("qwen3-8b:bf16", on, engine="vllm")
        assert ("risers" in "\n".join(measured(q, options, 5.0, "each"))) is blamed
