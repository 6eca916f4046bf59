"""Memory on the cards, the speed of each layout, and the ranking."""

from dataclasses import replace
from itertools import pairwise

import pytest

from meshwise.plan.serve.search import SPARE_BYTES, fits_with, largest_context, meets, with_memory, worth
from support.serve_questions import found, question, split
from support.serve_tables import GIB


@pytest.mark.parametrize(("cards", "largest"), [(4, 12.0), (5, 9.9), (6, 8.3)])
def test_70b_q4_k_m_at_16k_on_the_fullest_of_4_5_and_6_cards(cards: int, largest: float) -> None:
    """physics.md: 12.0, 9.9 and 8.3 GiB, and it fits 4 x 16 GB. Driver context not counted."""
    option = split(found(cluster=f"{cards}xrtx4060ti-16gb"), "layer", cards)
    needs = [need.weights + need.cache + need.compute for need in option.footprints[1:]]
    assert max(needs) / GIB == pytest.approx(largest, abs=0.06)
    assert option.fits


def test_it_does_not_fit_on_two_cards_and_the_answer_is_layers_on_the_cpu() -> None:
    answer = found(cluster="2xrtx4060ti-16gb")
    best = answer.options[0]
    assert best.layout.gpu_layers is not None
    assert 0 < best.layout.gpu_layers < 80
    assert not split(answer, "layer", 2).fits
    more = with_memory(question(cluster="2xrtx4060ti-16gb"), replace(best.layout, gpu_layers=best.layout.gpu_layers + 1))
    assert best.spare >= SPARE_BYTES > more.spare


@pytest.mark.parametrize("chip", ["rtx4060ti-16gb", "rtx3090"])
def test_layer_split_reads_no_faster_on_more_cards(chip: str) -> None:
    """physics.md: 70B Q4_K_M on 2/4/6 RTX 3090 takes 60.4/58.6/58.5 ms a token: flat within 5%, and so it must be here."""
    rates = [split(found(cluster=f"{n}x{chip}"), "layer", n).per_user for n in (4, 5, 6)]
    assert max(rates) / min(rates) < 1.05
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("chip", "bound"), [("rtx4060ti-16gb", 6.8), ("rtx5060ti-16gb", 10.5)])
def test_no_layer_split_beats_what_the_memory_can_deliver(chip: str, bound: float) -> None:
    """physics.md: 42.5 GB read per token bound cards of 288 GB/s at 6.8 tokens/s and of 448 GB/s at 10.5."""
    option = split(found(cluster=f"4x{chip}", prompt=1, output=1), "layer", 4)
    assert 0.5 * bound < option.per_user < bound


def test_options_are_ranked_and_ties_go_to_fewer_cards() -> None:
    layered = {"context": 4096, "fix": ("split=layer",)}
    q, answer = question("llama-3-8b:q4_k_m", "4xrtx3090", **layered), found("llama-3-8b:q4_k_m", "4xrtx3090", **layered)
    assert len(answer.options[0].layout.cards) == 1
    rates = [worth(q, one) for one in answer.options[1:]]
    assert rates == sorted(rates, reverse=True)


def test_a_tie_does_not_go_to_a_layout_that_leaves_a_card_nearly_full() -> None:
    answer = found(cluster="4xrtx4060ti-16gb", fix=("split=layer",))
    three = [one for one in answer.options if len(one.layout.cards) == 3]
    assert three
    assert three[0].spare < SPARE_BYTES
    assert len(answer.options[0].layout.cards) == 4


def test_unequal_cards_are_best_with_the_fast_ones_full() -> None:
    """Reading is a sum over cards: each layer that moves to the 936 GB/s card from the 360 GB/s one saves time."""
    answer = found(cluster="2xrtx3090+1xrtx3060-12gb", fix=("split=layer", "cards=3"))
    full = next(one for one in answer.options if one.layout.shared)
    assert full.per_user > split(answer, "layer", 3).per_user
    assert full.placement.devices[2].bytes < full.placement.devices[0].bytes


def test_a_mixture_keeps_as_few_experts_on_the_cpu_as_possible() -> None:
    q = question("qwen3-235b-a22b:q4_k_m", "2xrtx3090", context=8192)
    answer = found("qwen3-235b-a22b:q4_k_m", "2xrtx3090", context=8192)
    best = next(one for one in answer.options if one.layout.expert_layers)
    assert best.fits
    assert best.per_user > next(one for one in answer.options if one.layout.gpu_layers is not None).per_user
    assert best.placement.host.experts > 0
    fewer = replace(best.layout, expert_layers=best.layout.expert_layers - 1)
    assert best.spare >= SPARE_BYTES > with_memory(q, fewer).spare


def test_the_faster_split_of_a_mixture_is_first_and_leaves_memory_free() -> None:
    """Experts on the CPU, not whole layers: the attention of every token stays on the card."""
    best = found("gpt-oss-120b", "1xrtx3090", context=8192).options[0]
    assert best.layout.expert_layers
    assert best.spare >= SPARE_BYTES


def test_room_for_users_is_exact() -> None:
    q = question()
    option = split(found(), "layer", 4)
    assert option.most_users > 1
    assert fits_with(q, option, users=option.most_users)
    assert not fits_with(q, option, users=option.most_users + 1)


def test_the_longest_context_is_exact_and_longer_in_smaller_types() -> None:
    q = question()
    option = split(found(), "layer", 4)
    longest = [largest_context(q, option, kind) for kind in ("f16", "q8_0", "q4_0")]
    for kind, tokens in zip(("f16", "q8_0", "q4_0"), longest, strict=True):
        assert fits_with(q, option, context=tokens, kv=kind)
        assert not fits_with(q, option, context=tokens + 256, kv=kind)
    assert all(1.5 * less < more for less, more in pairwise(longest))


def test_targets_come_before_throughput() -> None:
    """32 users with the first token within 1 s and 15 tokens/s each, as the issue asks."""
    asked = {"users": 32, "ttft": "1s", "per_user": 15.0, "context": 8192}
    q = question("llama-3.3-70b:bf16", "8xh100-sxm", **asked)
    answer = found("llama-3.3-70b:bf16", "8xh100-sxm", **asked)
    met = [meets(q, one) for one in answer.options]
    assert met[0]
    assert met == sorted(met, reverse=True)
    inside = [worth(q, one) for one in answer.options if meets(q, one)]
    assert inside[0] >= max(inside) * 0.99


def test_copies_share_the_users() -> None:
    answer = found("llama-3-8b:bf16", "4xh100-sxm", users=30, context=4096)
    four = next(one for one in answer.options if one.layout.replicas == 4)
    assert four.speed
    assert four.speed.users == 8  # of the busiest copy
    assert four.report
    assert four.throughput == pytest.approx(4 * four.report.output_rate)
    assert four.throughput < 32 / four.speed.step  # prompts take time from decode steps


def test_experts_on_the_host_use_its_memory_and_bandwidth() -> None:
    """By hand: 83 of 94 layers keep 120 GB of experts in host memory, of which a token reads 8 of 128: 7.5 GB at 0.7 x 460.8 GB/s are
    23.3 ms, and 164 crossings of 30 us 4.9 ms."""
    option = next(
        one
        for one in found("qwen3-235b-a22b:q4_k_m", "1xrtx4090+epyc-9654:768GB", context=8192).options
        if one.layout.expert_layers
    )
    assert option.speed
    assert option.cost
    host = option.cost.d.host
    assert host.read(1) == pytest.approx(host.experts * 8 / 128)
    assert option.speed.decode["host"] == pytest.approx(host.read(1) / (0.7 * 460.8e9) + option.cost.d.crossings * 3e-5, rel=0.01)
    assert 1 / option.per_user == pytest.approx(option.speed.step, rel=0.02)  # one user: a whole request in every step
    assert len(option.layout.shares) == 1  # the CPU is no entry of -ts


def test_host_memory_that_is_too_small_is_no_answer() -> None:
    answer = found("qwen3-235b-a22b:q4_k_m", "2xrtx3090+epyc-9654:64GB", context=8192)
    assert not answer.options
    assert found("qwen3-235b-a22b:q4_k_m", "2xrtx3090+epyc-9654:256GB", context=8192).options


def test_depth_prefix_and_drafts_act_on_every_engine() -> None:
    """Deeper contexts are slower and hold more cache; found prefixes shorten prompts; accepted drafts raise the rate of each request."""
    wrong: list[str] = []
    for engine, model, rig in (
        ("llama.cpp", "llama-3-8b:q4_k_m", "rtx3090"),
        ("vllm", "llama-3-8b:bf16", "h100-sxm"),
        ("sglang", "llama-3-8b:bf16", "h100-sxm"),
        ("tensorrt-llm", "llama-3-8b:fp8", "h100-sxm"),
        ("mlx", "llama-3-8b:mlx-4bit", "m2-ultra"),
    ):
        more = {"engine": engine, "prompt": 2048, "context": 65536}
        plain, deep, cached, drafted = (
            found(model, rig, **more, **load).options[0]
            for load in ({}, {"depth": 32768}, {"prefix": 0.6}, {"draft": 3, "accept": 0.7})
        )
        wrong += [f"{engine}: depth"] if not (deep.per_user < plain.per_user and deep.ttft > plain.ttft) else []
        fixed = plain.cost.request if plain.cost else 0.0  # of every request, whatever its prompt
        wrong += [f"{engine}: prefix"] if not cached.ttft - fixed < 0.8 * (plain.ttft - fixed) else []
        wrong += [f"{engine}: draft"] if not drafted.per_user > 1.2 * plain.per_user else []
    assert not wrong
