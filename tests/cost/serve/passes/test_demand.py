"""The work of a served model on a device: kernels to launch, bytes of weights and cache, and attention by the size of its heads."""

from dataclasses import replace

import pytest

from meshwise.catalogue.calibrations import ServeCalibration
from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import Runtime, find_runtime
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import split_tensors
from meshwise.cost.serve.passes.demand import Demand, demand, pairs_until
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, weights

TRANSFORMERS, VLLM = find_runtime("transformers"), find_runtime("vllm")


def asked(name: str = "llama-3-8b", runtime: Runtime = TRANSFORMERS, fmt: str = "bf16", on: str = "h200", tp: int = 1) -> Demand:
    model, work = find_model(name), Serve(prompt=512, output=32, context=544)
    stored = weights(model, FORMATS[fmt])
    placed = split_tensors(model, stored, layer_caches(model, runtime, CacheRequest(context=544)), tp)
    return demand(model, stored, placed, Rig.of(find_cluster(on), find_chip("cpu")), runtime, work)


def test_a_single_request_launches_7_of_13_kernels() -> None:
    """meshwise.workers.decoder.fused: norms and gate are inside the products of a single token, and no sum is behind them."""
    cost = PassCost(asked(), lambda _: ServeCalibration(layer=1e-5, step=0.0, sequence=0.0))
    one, two = (cost.decode(Serve(prompt=512, output=32, users=users, context=544))["launch"] for users in (1, 2))
    assert one == pytest.approx(7 / 13 * 32e-5, rel=0.01)
    assert two == pytest.approx(32e-5)


def test_the_head_is_counted_apart_from_the_layers() -> None:
    """128,256 x 4,096 in bf16."""
    (task,) = asked().stages[0]
    assert task.head == pytest.approx(2 * 128256 * 4096, rel=0.001)
    assert task.head + task.weights == pytest.approx(15.0e9, rel=0.01)


def test_flash_attention_with_small_heads_takes_longer_for_its_flops() -> None:
    """374 TFLOP/s with heads of 64 and 584 with 128, on an H200 (cost/compute.py)."""
    small, large = (asked(name).stages[0][0].pairs[0] for name in ("llama-3.2-1b", "llama-3.2-3b"))
    flops = [layers * heads * size * 4 for layers, heads, size in ((16, 32, 64), (28, 24, 128))]
    assert (small / flops[0]) / (large / flops[1]) == pytest.approx(584 / 374, rel=0.2)
    assert large == pytest.approx(flops[1])


def test_fusing_products_changes_neither_bytes_nor_flops() -> None:
    joined, apart = (asked(runtime=replace(TRANSFORMERS, joined=joined)).stages[0][0] for joined in (True, False))
    assert (joined.weights, joined.reads, joined.flops) == (apart.weights, apart.reads, apart.flops)


def test_pairs_of_a_prompt_at_depth_are_those_of_the_whole_less_those_before() -> None:
    """Depth 4, prompt 2, no window: 5 + 6 keys. Window 3: 3 + 3."""
    full = asked().attentions[0]
    windowed, chunked = replace(full, window=3), replace(full, window=3, chunked=True)
    assert pairs_until(full, 6) - pairs_until(full, 4) == 11
    assert pairs_until(windowed, 6) - pairs_until(windowed, 4) == 6
    assert pairs_until(chunked, 6) - pairs_until(chunked, 4) == 2 + 3
    for op in (full, windowed, chunked):
        assert pairs_until(op, 7) == pytest.approx(7 * op.keys(7))


def test_windowed_layers_read_their_window_and_no_more() -> None:
    """gpt-oss: every second layer has a window of 128 tokens."""
    d = asked("gpt-oss-20b", VLLM)
    assert d.windows == (0, 128)
    assert d.reached(10_000) == (10_000 + VLLM.pad / 2, 128)
    (task,) = d.stages[0]
    assert task.reads[0] == task.reads[1] == 12 * 2 * 8 * 64 * 2


def test_latents_are_computed_with_by_every_head_and_read_once() -> None:
    """DeepSeek-V3: 576 elements of latent for 128 heads, so that 256 FLOPs fall on each byte in 16 bits."""
    (task,) = asked("deepseek-v3", VLLM, "fp8", "8xh200", 8).stages[0]
    assert task.reads[0] == 61 * 576 * 2
    assert task.keyed[0] / task.reads[0] == pytest.approx(128 / 8 * 2 * 2 / 2)


def test_experts_and_latents_launch_more_kernels_than_a_dense_layer() -> None:
    dense, experts, latent = (asked(name, VLLM).stages[0][0] for name in ("qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"))
    assert (dense.kernels, dense.mixtures) == (36, 0)
    assert (experts.kernels, experts.mixtures) == (48, 48)
    assert latent.kernels == pytest.approx(27 * 21 / 13 + 26 * 3 / 13)  # all but the first layer have a shared expert too
    assert latent.mixtures == 26
    rounded = asked("qwen3-8b", VLLM, fmt="fp8").stages[0][0]
    assert rounded.kernels == pytest.approx(36 * 17 / 13)  # one more for each of four products


def test_a_pass_reads_the_experts_that_its_tokens_are_routed_to() -> None:
    """Qwen3 30B-A3B: 8 of 128 experts per token, so 32 tokens reach 1 - (120/128)^32 = 87% of them."""
    (task,) = asked("qwen3-30b-a3b", VLLM).stages[0]
    share = (task.read(32) - task.weights) / task.experts
    assert share == pytest.approx(0.873, abs=0.001)
    assert (task.read(1) - task.weights) / task.experts == pytest.approx(1 / 16)


def test_an_all_reduce_that_normalises_and_rounds_saves_kernels_where_there_is_one() -> None:
    """Two of the 13 kernels of a dense layer, and two of its four roundings in fp8."""
    fused = replace(VLLM, fused_reduce=True)
    for tp, fmt, saved in ((1, "bf16", 0), (2, "bf16", 2), (2, "fp8", 4)):
        one, other = (asked(runtime=runtime, fmt=fmt, on=f"{tp}xh200", tp=tp).stages[0][0].kernels for runtime in (VLLM, fused))
        assert one - other == pytest.approx(32 * saved / 13)


def test_tokens_that_meet_the_same_expert_are_counted_by_even_routing() -> None:
    """Qwen3 30B-A3B, 8 of 128 experts: 8 tokens choose 64 times and reach 51.6 experts, so 1.5 of 8 find theirs read."""
    (task,) = asked("qwen3-30b-a3b").stages[0]
    assert task.sharing(1) == pytest.approx(0)
    assert task.sharing(8) == pytest.approx(8 - 128 * (1 - (1 - 8 / 128) ** 8) / 8)
    assert asked().stages[0][0].sharing(8) == 0


def test_a_graph_of_vllm_computes_and_routes_padding_too() -> None:
    """Sizes that vLLM 0.26 captures: 1, 2, 4, 8, 16, 24, ...; eager steps and passes above 512 tokens have none."""
    graphed = asked(runtime=VLLM)
    assert [graphed.padded(tokens) for tokens in (1, 2, 3, 5, 8, 9, 512, 600)] == [1, 2, 4, 8, 8, 16, 512, 600]
    assert graphed.padded(4.5) == pytest.approx(6)
    assert replace(graphed, eager=True).padded(5) == asked().padded(5) == 5


def test_a_short_prompt_beside_decodes_stays_in_a_graph() -> None:
    cost = PassCost(asked(runtime=VLLM), lambda _: ServeCalibration(prompt_launch=1.0))
    inside, outside = (cost.seconds(cost.prompt_batch(tokens)) for tokens in (512, 513))
    assert inside < 1 < outside


def test_one_token_reads_a_quantised_cache_for_every_query_head_on_cuda() -> None:
    """Llama 3 8B has 4 query heads for each key; 34 of 64 bytes in q8_0."""
    runtime, model = find_runtime("llama.cpp"), find_model("llama-3-8b")
    stored = weights(model, FORMATS["Q4_K_M"])

    def reads(kv: str, on: str) -> float:
        placed = split_tensors(model, stored, layer_caches(model, runtime, CacheRequest(context=544, key=kv, value=kv)), 1)
        work = Serve(prompt=512, output=32, context=544, kv=kv)
        return demand(model, stored, placed, Rig.of(find_cluster(on), find_chip("cpu")), runtime, work).stages[0][0].reads[0]

    assert reads("q8_0", "rtx3060-12gb") == pytest.approx(4 * 34 / 64 * reads("f16", "rtx3060-12gb"))
    assert reads("q8_0", "m3-ultra") == pytest.approx(34 / 64 * reads("f16", "m3-ultra"))
