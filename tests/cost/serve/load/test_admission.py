"""Limits of an engine: blocks of a paged cache by its own formula, states, windows, and slots of other engines."""

import math

import pytest

from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.load.admission import device_pool, limits
from meshwise.cost.serve.load.requests import Lengths, Limits, Load
from meshwise.cost.serve.memory.blocks import PagedLayer, Pool, pool
from meshwise.cost.serve.memory.buffers import Footprint, footprints
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches, pass_sizes
from meshwise.cost.serve.memory.placement import Placement, split_experts, split_layers, split_tensors
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, Weights, weights
from meshwise.models.model import Model

VLLM, TRT, LLAMA = find_runtime("vllm"), find_runtime("tensorrt-llm"), find_runtime("llama.cpp")


def placed(name: str, fmt: str, tp: int = 1) -> tuple[Model, Weights, Placement]:
    model = find_model(name)
    stored = weights(model, FORMATS[fmt])
    return model, stored, split_tensors(model, stored, layer_caches(model, VLLM, CacheRequest(context=16)), tp)


def admitted(name: str, fmt: str, chip: str, tp: int = 1, kv: str = "f16") -> Limits:
    model, _, placement = placed(name, fmt, tp)
    work = Serve(prompt=1024, output=1024, context=2048, kv=kv)
    return limits(model, VLLM, placement, [find_chip(chip)] * tp, work)


GIB = 2**30


def vllm_pool(name: str, fmt: str, chip: str, tp: int = 1, kv: str = "f16") -> tuple[Footprint, Pool]:
    model, _, placement = placed(name, fmt, tp)
    chips, work = [find_chip(chip)] * tp, Serve(prompt=1024, output=1024, context=2048, kv=kv)
    need = footprints(model, VLLM, placement, CacheRequest(context=2048, **pass_sizes(VLLM, chips)))[1]
    return need, device_pool(model, VLLM, placement.devices[0], VLLM.room(chips[0]) - need.weights - need.compute, work, tp)


def test_vllm_fills_what_weights_and_activations_leave_with_blocks() -> None:
    """Llama 3.1 8B in bf16 on an H100 leaves 54.85 GiB in a published log: 79.10 GiB x 0.90 = 71.19, less 14.99 of weights, 0.16 of other
    memory and 1.19 of activations. A block has 2 x 16 tokens x 8 heads x 128 x 2 bytes x 32 layers = 2 MiB."""
    need, pool = vllm_pool("llama-3.1-8b", "bf16", "h100-sxm")
    assert need.weights / GIB == pytest.approx(14.99, abs=0.05)
    assert pool.page * pool.depth == 2**21
    assert pool.blocks * 2**21 / GIB == pytest.approx(54.85, rel=0.01)
    found = admitted("llama-3.1-8b", "bf16", "h100-sxm")
    assert found.cache == pool.tokens == pool.blocks * 16
    assert (found.sequences, found.tokens) == (1024, 8192)


def test_vllm_leaves_little_cache_beside_70b_in_fp8_on_one_h100() -> None:
    """Worked: 80 GiB x 0.989 x 0.9 = 71.21 GiB, less 0.15 (other memory), 67.69 (68.45 billion weights of one byte, embedding and head of
    two) and 1.69 (8,192 tokens x (3 x 28,672 + 3 x 8,192) x 2 bytes): 1.68 GiB, 344 blocks of 16 tokens x 320 KiB in 16 bits, and
    twice as many in 8."""
    need, pool = vllm_pool("llama-3.1-70b", "fp8", "h100-sxm")
    assert need.weights / GIB == pytest.approx(67.69, abs=0.02)
    assert need.compute == 8192 * (3 * 28672 + 3 * 8192) * 2
    left = 80 * GIB * 0.989 * 0.9 - 150 * 2**20 - need.weights - need.compute
    assert pool.blocks == int(left // (16 * 320 * 1024)) == pytest.approx(344, abs=2)
    assert vllm_pool("llama-3.1-70b", "fp8", "h100-sxm", kv="fp8")[1].blocks == pytest.approx(2 * pool.blocks, abs=1)


def test_layers_with_windows_and_without_share_one_pool() -> None:
    """gpt-oss-20b: two groups of 12 layers. Gemma 3 27B: 10 layers with full attention, and 52 with windows in six groups of 10."""
    _, oss = vllm_pool("gpt-oss-20b", "mxfp4", "h100-sxm")
    assert (oss.depth, oss.full, oss.windows, oss.page) == (12, 1, (128,), 2**15)
    assert oss.tokens == oss.blocks // 2 * 16
    _, gemma = vllm_pool("gemma-3-27b", "bf16", "h100-sxm")
    assert (gemma.depth, gemma.full, len(gemma.windows), set(gemma.windows)) == (10, 1, 6, {1024})
    assert gemma.needed(4096) == 256 + 6 * 65
    assert gemma.needed(16) == 1 + 6 * 2
    assert gemma.concurrency(4096) == gemma.blocks / (256 + 6 * 65)


def test_recurrent_layers_make_blocks_as_large_as_their_states() -> None:
    layers = [PagedLayer(1024.0)] * 3 + [PagedLayer(0.0, 0, 100_000.0)] * 9
    found = pool(layers, 2.0**30, 16)
    assert (found.size, found.depth, found.states) == (112, 3, 3)
    assert found.page == 112 * 1024
    assert found.needed(200) == 2 + 3
    assert found.blocks == 2**30 // (3 * 112 * 1024)


def test_large_defaults_are_those_of_devices_with_70_gib() -> None:
    for chip in ("rtx4090", "a100-80gb-sxm"):  # vLLM keeps its smaller defaults on the A100
        small = admitted("llama-3.1-8b", "bf16", chip)
        assert (small.sequences, small.tokens) == (256, 2048), chip


def test_a_cache_of_half_the_bytes_holds_twice_the_tokens() -> None:
    half, whole = (admitted("llama-3.1-70b", "fp8", "h100-sxm", 4, kv) for kv in ("fp8", "f16"))
    assert half.cache == pytest.approx(2 * whole.cache, rel=0.01)


def test_tensorrt_llm_runs_as_many_70b_requests_on_one_h100_as_its_throughput_shows() -> None:
    """745 and 358 tokens/s (128 + 2,048 and 2,048 + 2,048 tokens) at 24 ms for reading 72 GB: about 18 and 9 requests, by
    tensorrt_llm_hopper."""
    model, _, placement = placed("llama-3.1-70b", "fp8")
    work = Serve(prompt=128, output=2048, context=4096, kv="fp8")
    found = limits(model, TRT, placement, [find_chip("h100-sxm")], work)
    short, long = (Load(prompt=Lengths(prompt), output=Lengths(2048), users=1) for prompt in (128, 2048))
    assert found.running(short) == pytest.approx(18, rel=0.35)
    assert found.running(long) == pytest.approx(9, rel=0.45)


def test_windows_and_states_are_a_fixed_part_of_a_request() -> None:
    gemma, mamba = admitted("gemma-3-27b", "bf16", "h100-sxm"), admitted("mamba2-2.7b", "bf16", "h100-sxm")
    assert gemma.fixed > 1000
    assert math.isinf(mamba.cache)
    assert mamba.sequences > 1


def test_an_engine_without_pages_has_slots_of_the_whole_context() -> None:
    model = find_model("llama-3-8b")
    stored = weights(model, FORMATS["Q4_K_M"])
    work = Serve(prompt=512, output=128, users=4, context=8192)
    placement = split_layers(stored, layer_caches(model, LLAMA, CacheRequest(context=8192)), [1.0])
    found = limits(model, LLAMA, placement, [find_chip("rtx3090")], work)
    assert math.isinf(found.cache)
    assert 10 < found.sequences < 20  # 1 GiB each beside 4.6 GiB of weights on 24 GiB


def test_experts_apart_divide_the_cache_and_keep_other_weights_whole() -> None:
    model = find_model("qwen3-30b-a3b")
    stored = weights(model, FORMATS["bf16"])
    caches = layer_caches(model, VLLM, CacheRequest(context=4096, sequences=8))
    apart, tensor = split_experts(model, stored, caches, 4), split_tensors(model, stored, caches, 4)
    assert apart.devices[0].experts == pytest.approx(tensor.devices[0].experts, rel=0.01)
    assert apart.devices[0].once > 3 * tensor.devices[0].once
    assert apart.devices[0].cache == pytest.approx(sum(cache.bytes for cache in caches) / 4)
