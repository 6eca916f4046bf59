"""What an engine admits at once: blocks of a paged cache by its own formula, states, windows, and slots of other engines."""

import math

import pytest

from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.admission import limits
from meshwise.cost.serve.buffers import footprints
from meshwise.cost.serve.cache import CacheRequest, layer_caches
from meshwise.cost.serve.load import Lengths, Limits, Load
from meshwise.cost.serve.placement import Placement, split_experts, split_layers, split_tensors
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


def test_vllm_fills_what_weights_and_activations_leave_with_blocks() -> None:
    """num_gpu_blocks = (memory x utilization - weights - activations) / (2 x 16 tokens x KV heads x head size x 2 bytes x layers)."""
    model, _, placement = placed("llama-3.1-8b", "bf16")
    chip = find_chip("h100-sxm")
    found = admitted("llama-3.1-8b", "bf16", "h100-sxm")
    (_, need) = footprints(model, VLLM, placement, CacheRequest(context=2048))
    blocks = (0.9 * chip.memory - VLLM.context - need.weights - need.compute) // (2 * 16 * 8 * 128 * 2 * 32)
    assert found.cache // 16 == pytest.approx(blocks, abs=1)
    assert (found.sequences, found.tokens) == (1024, 8192)


def test_large_defaults_are_those_of_devices_with_70_gib() -> None:
    small = admitted("llama-3.1-8b", "fp8", "rtx4090")
    assert (small.sequences, small.tokens) == (256, 2048)


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
