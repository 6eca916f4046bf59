"""Serving at a load: targets by percentile, the most that meets them, the cheapest devices, experts apart, and the Pareto front."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import cheapest, front, lookup
from meshwise.plan.serve.capacity import max_rate, most_within
from meshwise.plan.serve.choice import choice, doubts
from meshwise.plan.serve.lookup import read_lengths
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import meets, search
from support.command import one_line
from support.serve_questions import found, question

SMALL = ("llama-3.1-8b:fp8", "h100-sxm")


def test_a_length_with_a_spread_is_its_mean_and_its_deviation() -> None:
    ask = ServeAsk(model="llama-3.1-8b", on="h100-sxm", prompt="2k:0.5", output="300:1")
    assert (ask.prompt, ask.prompt_spread, ask.output, ask.output_spread) == (2048, 0.5, 300, 1.0)
    assert "--prompt 2k" in ask.command()
    assert "--prompt-spread 0.5" in ask.command()
    load = lookup.question(ask).load
    assert (load.prompt.spread, load.users) == (0.5, 1)


def test_rates_and_targets_are_read_in_their_units() -> None:
    ask = ServeAsk(model="llama-3.1-8b", on="h100-sxm", rate="90/min", ttft="1s", tpot="40ms@p99", e2e="20s@mean")
    q = lookup.question(ask)
    assert (q.load.rate, q.load.users) == (1.5, 0)
    assert q.targets.ttft
    assert q.targets.tpot
    assert (q.targets.ttft.seconds, q.targets.ttft.quantile) == (1.0, "p95")
    assert (q.targets.tpot.seconds, q.targets.tpot.quantile) == (pytest.approx(0.04), "p99")


def test_lengths_of_a_file_replace_prompt_and_output(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text("".join(json.dumps({"prompt": 100 * i, "output": 10 * i}) + "\n" for i in (1, 2, 3)))
    prompt, output = read_lengths(path)
    assert (prompt.mean, output.mean) == (200, 20)
    path.write_text('{"prompt": "many"}\n')
    with pytest.raises(UserError, match=r"line 1: expected whole numbers 'prompt' and 'output'"):
        read_lengths(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rate": "many"}, "expected requests per second, such as 12/s"),
        ({"ttft": "1s@p42"}, "expected @p50, @p95, @p99 or @mean"),
        ({"users": 4, "rate": "2/s"}, "exclude each other"),
        ({"draft": 40, "accept": 0.7}, "at most 16"),
        ({"draft": 2}, "needs --accept"),
        ({"ttft": "5s", "e2e": "1s"}, "contradicts --ttft"),
        ({"tpot": "10ms", "per_user": 100}, "say the same in two ways"),
        ({"engine": "tensorrt-llm", "on": "a100-80gb-sxm"}, "does not run fp8 on A100 SXM 80GB"),
        ({"engine": "tensorrt-llm", "on": "mi300x"}, "runs on chips of NVIDIA only"),
    ],
)
def test_bad_loads_are_one_line(words: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        lookup.question(ServeAsk(**{"model": "llama-3.1-8b:fp8", "on": "h100-sxm"} | words))  # pyright: ignore[reportArgumentType]
    one_line(error.value)


def test_one_definition_of_throughput_is_ranked_priced_and_shown() -> None:
    q = question(*SMALL, users=32, prompt=1024, output=256)
    best = found(*SMALL, users=32, prompt=1024, output=256).options[0]
    shown = choice(q, best)
    assert shown.throughput == pytest.approx(shown.requests * 256)
    assert shown.input_rate == pytest.approx(shown.requests * 1024)
    assert shown.hourly is not None
    assert shown.dollars_per_million_in is not None
    assert shown.dollars_per_million_out is not None
    per_request = (shown.dollars_per_million_in * 1024 + shown.dollars_per_million_out * 256) / 1e6
    assert per_request * shown.requests * 3600 == pytest.approx(shown.hourly, rel=1e-6)
    assert shown.throughput < 32 / sum(shown.time.values())  # prompts take time from decode steps


def test_more_users_than_fit_wait_and_do_not_fail() -> None:
    """llama-3.1-8b in fp8 on one H100 runs 64 users of 512 + 128 tokens at once: the cache holds what is in flight."""
    option = found(*SMALL, users=64, prompt=512, output=128, context=8192).options[0]
    assert option.fits
    assert option.most_users > 500
    many = found("llama-3.1-70b:fp8", "h100-sxm", users=64, prompt=1024, output=1024, context=2048).options[0]
    assert 0 < many.most_users < 64
    assert many.report
    assert many.report.waiting > 64 - many.most_users - 1


def test_the_most_users_within_targets_meet_them_and_a_tenth_more_do_not() -> None:
    q = question(*SMALL, users=1, prompt=1024, output=128, tpot="12ms")
    option = search(q).options[0]
    most = int(most_within(q, option))
    for users, expected in ((most, True), (round(1.1 * most) + 2, False)):
        asked = question(*SMALL, users=users, prompt=1024, output=128, tpot="12ms")
        assert any(meets(asked, one) for one in search(asked).options) is expected


@pytest.mark.parametrize("load", [{"users": 40}, {"users": 130}, {"users": 400}, {"rate": "10/s"}, {"rate": "40/s"}])
def test_what_meets_the_targets_is_within_the_most_that_is_stated(load: dict[str, object]) -> None:
    """'meets: yes' beside 'up to 106 users' of 130 contradict each other."""
    q = question(*SMALL, prompt=1000, output=200, tpot="20ms", ttft="1s", **load)
    for option in search(q).options[:3]:
        if option.report:
            assert (most_within(q, option) >= (q.load.rate or q.work.users)) is meets(q, option)


def test_a_rate_that_nothing_serves_is_refused_with_the_most_that_can_be() -> None:
    q = question(*SMALL, rate="5000/s", prompt=1024, output=128)
    result = search(q)
    error = refuse(q, result)
    most = max(max_rate(q, option) for option in result.options)
    assert f"the most is {most:.3g}/s" in one_line(error)
    served = question(*SMALL, rate=f"{0.8 * most}/s", prompt=1024, output=128)
    assert meets(served, search(served).options[0])


def test_experts_apart_hold_more_requests_of_a_latent_model_than_tensor_parallelism() -> None:
    """Every device of a tensor-parallel group stores the whole latent; devices with requests of their own store theirs only."""
    options = {one.layout.name: one for one in found("deepseek-v3:fp8", "8xh200", users=256, prompt=1024, output=1024).options}
    apart, tensor = options["ep8, attention dp"], options["tp8"]
    assert apart.limits.cache > 2.5 * tensor.limits.cache
    assert apart.speed
    assert apart.speed.decode["reduce"] > 0
    dense = found("llama-3.1-70b:fp8", "8xh200", users=256).options
    assert not any(one.layout.apart for one in dense)


def test_a_prefix_in_the_cache_and_drafts_raise_throughput() -> None:
    words = {"users": 16, "prompt": 4096, "output": 256}
    plain, prefix, draft = (
        found(*SMALL, **words, **more).options[0].throughput for more in ({}, {"prefix": "80%"}, {"draft": 3, "accept": 0.7})
    )
    assert plain < prefix
    assert plain < draft


def test_a_chip_or_kind_of_model_without_measurements_is_said() -> None:
    q = question("qwen3-30b-a3b:fp8", "l40s", users=4)
    assert doubts(q, search(q).options[0]) == ["not calibrated for L40S"]
    q = question("qwen3-30b-a3b:q4_k_m", "l40s", engine="llama.cpp")
    assert doubts(q, search(q).options[0]) == ["not calibrated for L40S", "not calibrated for models with experts on this engine"]


def test_the_cheapest_devices_come_first_and_meet_the_targets() -> None:
    ask = ServeAsk(model="llama-3.1-8b:fp8", on="h100-sxm,l40s,l4", rate="8/s", ttft="1s", tpot="50ms", cheapest=True)
    points = cheapest.answer(ask)
    prices = [point.choice.hourly for point in points if point.choice]
    assert prices == sorted(price for price in prices if price is not None)
    assert all(point.choice.meets for point in points if point.choice)
    with pytest.raises(DoesNotFit, match="no 4,096 devices of l4 serve this load"):
        cheapest.answer(replace(ask, on="l4", rate=100_000.0))


def test_the_cheapest_devices_are_as_few_as_meet_the_targets() -> None:
    """One copy fewer misses them, and a load beyond one host takes more hosts."""
    ask = ServeAsk(model="llama-3.1-8b:fp8", on="l40s", rate="100/s", ttft="1s", tpot="50ms", cheapest=True)
    (point,) = cheapest.answer(ask)
    assert point.choice
    assert point.choice.replicas * point.choice.cards == point.values["gpus"]
    assert int(point.values["gpus"]) > 1
    fewer = int(point.values["gpus"]) - 1
    q = lookup.question(replace(ask, on=f"{fewer}xl40s" if fewer <= 8 else f"{-(-fewer // 8)}x8xl40s", cheapest=False))
    assert not any(meets(q, option) for option in search(q).options if option.layout.devices <= fewer)


def test_no_point_of_the_front_beats_another_in_both_figures() -> None:
    answer = front.answer(ServeAsk(model="llama-3.1-70b:fp8", on="8xh100-sxm", prompt=1024, output=256))
    assert len(answer.points) > 5
    each = [point.per_user for point in answer.points]
    device = [point.per_device for point in answer.points]
    assert each == sorted(each, reverse=True)
    assert device == sorted(device)
    for beaten in answer.dominated:
        assert any(p.per_user >= beaten.per_user and p.per_device >= beaten.per_device for p in answer.points)


def test_a_processor_beside_cards_is_their_host_and_gets_no_share() -> None:
    """--n-cpu-moe and -ngl leave layers to it; -ts has one entry per card."""
    q = question("qwen3-235b-a22b:q4_k_m", "4xrtx3090+epyc-9654:512GB", context=8192)
    assert [card.chip.key for card in q.cards] == ["rtx3090"] * 4
    assert q.cluster.node.host.memory == pytest.approx(512 * 2**30)
    best = search(q).options[0]
    assert best.layout.gpu_layers is not None or best.layout.expert_layers
    assert best.speed
    assert best.speed.decode["host"] > 0
    (count, node), *_ = q.cluster.nodes
    small = replace(q.cluster, nodes=((count, replace(node, host=replace(node.host, memory=16 * 2.0**30))),))
    assert not search(replace(q, cluster=small)).options  # 44 GiB of layers do not fit there
