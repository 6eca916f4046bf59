"""Speed of served models: physics that must always hold, and published figures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.catalogue.chips import Link, find_chip, host_cpu
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.parts import SERVE_PARTS
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import ALL_EXPERTS, Pin, Placement, split_layers, split_rows, split_tensors
from meshwise.cost.serve.passes.speed import Speed, peak_flops, read_rate, speed
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from support.every import check_every
from support.serve_tables import model, stored

LLAMA_CPP, MAY_2024, VLLM = find_runtime("llama.cpp"), find_runtime("llama.cpp-2024-05"), find_runtime("vllm")
CPU = find_chip("cpu")
CARDS = ("rtx3090", "rtx4090", "rtx4060ti-16gb", "h100-pcie", "rx7900xtx")


def rig(text: str) -> Rig:
    cluster = find_cluster(text)
    return Rig.of(cluster, host_cpu(cluster))


def by_layers(
    on: Rig,
    *,
    name: str = "Llama 3 8B",
    quant: str = "Q4_K_M",
    prompt: int = 512,
    output: int = 256,
    users: int = 1,
    gpu_layers: int | None = None,
    pins: tuple[Pin, ...] = (),
    rows: bool = False,
    calibration: ServeCalibration | None = None,
) -> Speed:
    work = Serve(prompt=prompt, output=output, users=users, context=max(prompt + output, 512))
    caches = layer_caches(model(name), MAY_2024, CacheRequest(context=work.context, sequences=users))
    shares = [1.0] * len(on.chips)
    placed: Placement = (
        split_rows(stored(name, quant), caches, shares)
        if rows
        else split_layers(stored(name, quant), caches, shares, gpu_layers=gpu_layers, pins=pins)
    )
    return speed(
        model(name), stored(name, quant), placed, on, MAY_2024, work, lambda chip: calibration or choose_serve(chip, MAY_2024.key)
    )


def tensor(
    on: Rig,
    tp: int,
    pp: int = 1,
    *,
    name: str = "Llama 3 70B",
    users: int = 1,
    prompt: int = 512,
    calibration: ServeCalibration | None = None,
) -> Speed:
    work = Serve(prompt=prompt, output=256, users=users, context=prompt + 256)
    caches = layer_caches(model(name), VLLM, CacheRequest(context=work.context, sequences=users))
    placed = split_tensors(model(name), stored(name, "bf16"), caches, tp, pp)
    return speed(
        model(name), stored(name, "bf16"), placed, on, VLLM, work, lambda chip: calibration or choose_serve(chip, VLLM.key)
    )


def test_rates_follow_from_the_seconds_of_all_parts() -> None:
    found = by_layers(rig("2xrtx3090"), users=4)
    assert tuple(found.decode) == tuple(found.prefill) == SERVE_PARTS
    assert found.step == pytest.approx(sum(found.decode.values()))
    assert found.decode_tokens_per_second == pytest.approx(4 * found.per_user)
    assert found.prefill_tokens_per_second == pytest.approx(512 / found.prefill_seconds)
    assert found.ttft == found.prefill_seconds  # the pass that ends the prompt chooses the first token


def test_decode_matches_llama_bench() -> None:
    """XiongjieDai/GPU-Benchmarks-on-LLM-Inference, 2024-05-12, tg512."""

    def check(on: str, name: str, quant: str, seen: float) -> None:
        found = by_layers(rig(on), name=name, quant=quant, prompt=0, output=512)
        assert found.decode_tokens_per_second == pytest.approx(seen, rel=0.05)

    check_every(
        check,
        [
            ("rtx3090", "Llama 3 8B", "Q4_K_M", 115.42),
            ("rtx4090", "Llama 3 8B", "F16", 54.84),
            ("2xrtx4090", "Llama 3 70B", "Q4_K_M", 19.22),
            ("6xrtx3090", "Llama 3 70B", "F16", 5.85),
            ("a100-80gb-pcie", "Llama 3 70B", "Q4_K_M", 22.31),
            ("m2-ultra", "Llama 3 70B", "F16", 4.76),
        ],
    )


def test_long_prompts_are_faster_on_more_cards() -> None:
    """pp4096 of the 8B in Q4_K_M on RTX 3090 with power caps of 230 to 370 W, in the same tables."""

    def check(cards: int, seen: float) -> None:
        found = by_layers(rig(f"{cards}xrtx3090"), prompt=4096, output=0)
        assert found.prefill_tokens_per_second == pytest.approx(seen, rel=0.3)

    check_every(check, [(1, 3169.91), (2, 4013.34), (4, 5826.91), (6, 7690.65)])


def test_a_prompt_of_one_micro_batch_gains_nothing_from_more_cards() -> None:
    one, four = by_layers(rig("1xrtx3090"), output=0), by_layers(rig("4xrtx3090"), output=0)
    assert four.prefill_seconds >= one.prefill_seconds


def test_a_70b_on_2_4_or_6_cards_decodes_equally_fast() -> None:
    """60.4, 58.6 and 58.5 ms per token in the same tables: bandwidths do not add."""
    steps = [by_layers(rig(f"{n}xrtx3090"), name="Llama 3 70B", prompt=0, output=512).step for n in (2, 4, 6)]
    assert max(steps) / min(steps) < 1.05
    assert steps == sorted(steps)  # each card adds its hop


def test_an_h200_serves_8b_to_many_concurrent_requests() -> None:
    """Measured on one H200: Llama-3-8B shapes in bf16, a CUDA graph, a short context, no program around it."""
    device = replace(choose_serve(find_chip("h200"), "vllm"), step=1e-4, sequence=0.0)

    def check(users: int, seen: float) -> None:
        found = tensor(rig("h200"), 1, name="Llama 3 8B", users=users, prompt=1, calibration=device)
        assert found.decode_tokens_per_second == pytest.approx(seen, rel=0.12)

    check_every(check, [(1, 227), (8, 1744), (32, 6736), (64, 13013)])


@pytest.mark.parametrize(("cards", "seen"), [(2, 53.25), (3, 46.14), (6, 27.71)])
def test_a_row_split_waits_at_every_product(cards: int, seen: float) -> None:
    """The notebooks of December 2023: Llama 2 7B in Q4_0 on RTX 3090 (one card: 120.6)."""
    found = by_layers(rig(f"{cards}xrtx3090"), name="Llama 2 7B", quant="Q4_0", prompt=494, output=18, rows=True)
    assert found.decode_tokens_per_second == pytest.approx(seen, rel=0.3)
    assert found.decode["reduce"] > found.decode["weights"]


@settings(max_examples=60)
@given(card=st.sampled_from(CARDS), faster=st.floats(1.0, 4.0), users=st.integers(1, 64))
def test_more_bandwidth_or_flops_are_never_slower(card: str, faster: float, users: int) -> None:
    chip = find_chip(card)
    base = by_layers(Rig(chips=(chip,), hosts=(0,), cpu=CPU), users=users, calibration=ServeCalibration())
    wide = replace(chip, bandwidth=chip.bandwidth * faster)
    strong = replace(chip, flops={kind: value * faster for kind, value in chip.flops.items()})
    for other in (wide, strong):
        found = by_layers(Rig(chips=(other,), hosts=(0,), cpu=CPU), users=users, calibration=ServeCalibration())
        assert found.step <= base.step * (1 + 1e-9)
        assert found.prefill_seconds <= base.prefill_seconds * (1 + 1e-9)


@settings(max_examples=60)
@given(card=st.sampled_from(CARDS), cards=st.integers(1, 7), quant=st.sampled_from(("Q4_K_M", "Q8_0", "F16")))
def test_one_more_card_in_a_layer_split_never_decodes_faster(card: str, cards: int, quant: str) -> None:
    fewer, more = (by_layers(rig(f"{n}x{card}"), quant=quant, output=64) for n in (cards, cards + 1))
    assert fewer.step <= more.step <= fewer.step + 1.3e-3  # the hop of the slowest rig measured


@settings(max_examples=60)
@given(card=st.sampled_from(CARDS), context=st.integers(1, 60), users=st.integers(1, 64))
def test_longer_contexts_and_more_users_take_longer_but_users_share_the_weights(card: str, context: int, users: int) -> None:
    on = rig(card)
    short, long = (by_layers(on, prompt=256 * n, users=users) for n in (context, context + 1))
    assert short.step <= long.step
    assert short.prefill_seconds < long.prefill_seconds
    more = by_layers(on, prompt=256 * context, users=users + 1)
    assert more.step >= short.step
    assert more.per_user <= short.per_user
    assert more.decode_tokens_per_second > short.decode_tokens_per_second * (1 - 1e-9)


@settings(max_examples=60)
@given(tp=st.sampled_from((1, 2, 4)), users=st.integers(1, 128))
def test_tensor_parallelism_over_nvlink_gains_less_than_its_devices(tp: int, users: int) -> None:
    few, many = tensor(rig(f"{tp}xh100-sxm"), tp, users=users), tensor(rig(f"{2 * tp}xh100-sxm"), 2 * tp, users=users)
    assert few.step / 2 < many.step < few.step
    assert many.decode["reduce"] > 0


def test_a_slower_link_costs_tensor_parallelism_more_than_pipelines() -> None:
    nvlink = rig("8xh100-sxm")
    pcie = replace(nvlink, link=Link(name="PCIe", bandwidth=32e9))
    assert tensor(pcie, 8).step > 1.3 * tensor(nvlink, 8).step
    assert tensor(pcie, 1, 8).step < 1.05 * tensor(nvlink, 1, 8).step


def test_tensor_parallelism_across_ethernet_loses_to_a_pipeline() -> None:
    hosts = rig("2x4xh100-sxm@10Gbps")
    assert tensor(hosts, 8).step > 2 * tensor(hosts, 4, 2).step


def test_a_network_between_hosts_adds_a_round_trip_and_a_slow_one_adds_more() -> None:
    one, fast, slow = (
        by_layers(rig(text), name="Llama 3 70B") for text in ("8xrtx3090", "2x4xrtx3090@100Gbps", "2x4xrtx3090@1Gbps")
    )
    assert one.decode["hops"] < fast.decode["hops"] < slow.decode["hops"]
    assert slow.decode["hops"] > 512e3 / 125e6  # the logits of one token alone: half a megabyte at 125 MB/s
    assert slow.decode["weights"] == pytest.approx(one.decode["weights"])


def test_decode_turns_compute_bound_with_many_users() -> None:
    few, many = (tensor(rig("h100-sxm"), 1, name="Llama 3 8B", users=users, prompt=16) for users in (8, 1024))
    assert few.decode["compute"] < 0.02 * few.decode["weights"]
    assert many.decode["compute"] > many.decode["weights"]


def test_layers_in_host_memory_are_read_at_its_bandwidth() -> None:
    """Half of a 70B in Q4_K_M is 20 GB: a quarter of a second at the 89.6 GB/s of a desktop, if all of it were reached."""
    all_there, half = (by_layers(rig("rtx3090"), name="Llama 3 70B", gpu_layers=n) for n in (None, 40))
    assert all_there.decode["host"] == 0
    assert 0.23 < half.decode["host"] < 0.5
    assert half.decode["weights"] < 0.55 * all_there.decode["weights"]
    assert half.prefill["host"] > 0


def test_the_cpu_of_the_cluster_computes_the_layers_on_the_host() -> None:
    generic, server = rig("rtx3090"), replace(rig("rtx3090"), cpu=find_chip("epyc-9654"))
    assert generic.cpu.key == "cpu"
    slow, fast = (by_layers(on, name="Llama 3 70B", gpu_layers=40) for on in (generic, server))
    assert fast.decode["host"] < slow.decode["host"] / 3


def test_experts_on_the_host_are_read_only_if_a_token_is_routed_to_them() -> None:
    on_device = by_layers(rig("rtx4090"), name="mixtral-8x7b")
    on_host = by_layers(rig("rtx4090"), name="mixtral-8x7b", pins=(ALL_EXPERTS,))
    assert on_host.decode["weights"] < 0.2 * on_device.decode["weights"]
    assert on_host.decode["host"] > on_device.decode["weights"]


def test_unequal_cards_read_their_own_layers() -> None:
    mixed = by_layers(rig("1xrtx3090+1xrtx3060-12gb"))
    assert (
        by_layers(rig("2xrtx3090")).decode["weights"]
        < mixed.decode["weights"]
        < by_layers(rig("2xrtx3060-12gb")).decode["weights"]
    )
    assert [chip.key for chip in rig("1xrtx3090+1xrtx3060-12gb").chips] == ["rtx3090", "rtx3060-12gb"]
    assert rig("2x2xrtx3090@10Gbps").hosts == (0, 0, 1, 1)


def test_a_chip_with_few_cores_for_its_bandwidth_does_not_reach_it() -> None:
    """Of an A100's 1,935 GB/s llama.cpp read about 1,000 in May 2024, of an RTX 4090's 1,008 nearly all."""
    s = ServeCalibration()
    assert read_rate(find_chip("a100-80gb-pcie"), s) < 0.7 * find_chip("a100-80gb-pcie").bandwidth
    assert read_rate(find_chip("rtx4090"), s) > 0.9 * find_chip("rtx4090").bandwidth


def test_the_peak_rate_is_that_of_the_type_an_engine_multiplies_in() -> None:
    """NVIDIA's whitepapers: an RTX 3090 does 142 TFLOP/s with 16-bit sums and 71 with 32-bit ones; an H100 twice as many in fp8."""
    assert peak_flops(find_chip("rtx3090"), "Q4_K_M", int8_products=True) == pytest.approx(142.3e12, rel=0.01)
    assert peak_flops(find_chip("rtx3090"), "bf16", int8_products=False) == pytest.approx(71.16e12, rel=0.01)
    assert peak_flops(find_chip("h100-sxm"), "fp8", int8_products=False) == pytest.approx(
        2 * peak_flops(find_chip("h100-sxm"), "awq", int8_products=False), rel=0.01
    )
    assert peak_flops(find_chip("a100-80gb-sxm"), "fp8", int8_products=False) == pytest.approx(312e12)


def test_reading_does_not_quite_hide_products_and_products_hide_reading() -> None:
    """A share of the products is exposed where reading takes longer; no reading is exposed where products take longer."""
    steps, prompts = zip(
        *(
            (
                by_layers(rig("rtx3090"), quant="F16", users=8, calibration=ServeCalibration(exposed=share, touch=0.0)).decode,
                by_layers(rig("rtx3090"), quant="F16", prompt=4096, calibration=ServeCalibration(exposed=share)).prefill,
            )
            for share in (0, 0.1, 0.2)
        ),
        strict=True,
    )
    assert steps[0]["compute"] == 0 < steps[1]["compute"]
    assert steps[2]["compute"] == pytest.approx(2 * steps[1]["compute"])
    assert steps[0]["weights"] == steps[2]["weights"] > 10 * steps[2]["compute"]
    # only the head, which one row multiplies, is bound by reading
    assert prompts[0] == pytest.approx(prompts[2], rel=1e-3)


def test_flash_attention_reads_shared_keys_once() -> None:
    plain, flash = (
        speed(
            model("Llama 3 8B"),
            stored("Llama 3 8B", "Q4_K_M"),
            split_layers(
                stored("Llama 3 8B", "Q4_K_M"), layer_caches(model("Llama 3 8B"), LLAMA_CPP, CacheRequest(context=8192)), [1.0]
            ),
            rig("rtx3090"),
            LLAMA_CPP,
            Serve(prompt=4096, output=4096, context=8192, flash=on),
            lambda _: ServeCalibration(),
        )
        for on in (False, True)
    )
    assert flash.decode["cache"] < plain.decode["cache"]
    assert flash.prefill["cache"] < plain.prefill["cache"]


def today(chip: str, users: int = 1, *, quant: str = "Q4_K_M", sampled: bool = True) -> Speed:
    """Llama 3 8B by today's llama.cpp on one card."""
    work = Serve(prompt=512, output=256, users=users, context=1024, sampled=sampled)
    caches = layer_caches(model("Llama 3 8B"), LLAMA_CPP, CacheRequest(context=1024, sequences=users))
    held = stored("Llama 3 8B", quant)
    placed = split_layers(held, caches, [1.0])
    return speed(
        model("Llama 3 8B"), held, placed, rig(chip), LLAMA_CPP, work, lambda one: choose_serve(one, "llama.cpp", "cuda")
    )  # fmt: skip


def test_quantised_prompts_of_llama_cpp_follow_sms_and_clocks_not_the_peak() -> None:
    """h200_llamacpp: 8,624 tokens/s of an H200, whose peak is six times that of an RTX 4090; F16 goes through cuBLAS."""
    assert today("h200").prefill_tokens_per_second == pytest.approx(8624, rel=0.2)
    assert today("h200").prefill_tokens_per_second < 1.3 * today("rtx4090").prefill_tokens_per_second
    assert today("h200", quant="F16").prefill_tokens_per_second > 2.5 * today("rtx4090", quant="F16").prefill_tokens_per_second


@pytest.mark.parametrize(("users", "measured"), [(1, 219.7), (8, 535.2), (32, 1166.8)])
def test_llama_server_chooses_tokens_one_sequence_after_another(users: int, measured: float) -> None:
    """h200_llamacpp, llama-server: 0.6 ms of each user and step on the host, and 2 to 8 tokens multiplied vector by vector."""
    assert today("h200", users).decode_tokens_per_second == pytest.approx(measured, rel=0.12)
    assert today("h200", users, sampled=False).step < today("h200", users).step - users * 5e-4


@given(users=st.integers(1, 63))
def test_more_users_of_llama_server_never_take_a_shorter_step(users: int) -> None:
    """But for the kernels: nine tokens are a matrix, which eight are not."""
    fewer, more = today("h200", users).step, today("h200", users + 1).step
    assert more > (fewer if users != 8 else 0.6 * fewer)
