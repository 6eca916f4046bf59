"""Placement: the layers, weights and cache of each device, against llama.cpp's own logs and dry runs."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.catalogue.engines import Runtime, find_runtime
from meshwise.cost.serve.memory.cache import CacheRequest, LayerCache, layer_caches
from meshwise.cost.serve.memory.placement import (
    ALL_EXPERTS,
    HOST_MEMORY,
    Placement,
    host_experts,
    layer_devices,
    refuses_tp,
    row_counts,
    split_layers,
    split_rows,
    split_tensors,
    stage_layers,
)
from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.formats import read
from support.every import check_every
from support.serve_tables import MIB, model, rows, stored

LLAMA_CPP, OLD = find_runtime("llama.cpp"), find_runtime("llama.cpp-2024-05")


def caches(name: str, context: int, runtime: Runtime = LLAMA_CPP) -> tuple[LayerCache, ...]:
    return layer_caches(model(name), runtime, CacheRequest(context=context))


def by_layers(name: str, quant: str, context: int, devices: int, runtime: Runtime = LLAMA_CPP) -> Placement:
    held = stored(name, quant, runtime.files_by_order)
    return split_layers(held, caches(name, context, runtime), [1.0] * devices)


def test_weights_and_cache_match_llama_cpps_dry_runs() -> None:
    """The tool rounds down to whole MiB."""

    def check(row: dict[str, str]) -> None:
        placed = by_layers(row["model"], row["quant"], int(row["n_ctx"]), int(row["n_devices"]))
        load = placed.host if row["device"] == "Host" else placed.devices[int(row["device"].removeprefix("RPC"))]
        assert (load.weights // MIB, load.cache // MIB) == (int(row["model_mib"]), int(row["context_mib"]))

    check_every(check, [(one,) for one in rows("llamacpp_fit_dryrun")])


def test_weights_and_cache_match_llama_cpps_logs() -> None:
    def check(row: dict[str, str]) -> None:
        placed = by_layers(row["model"], row["quant"], int(row["n_ctx"]), int(row["n_gpus"]), OLD)
        device = {"CPU": HOST_MEMORY, "CUDA_Host": HOST_MEMORY, "Metal": 0}.get(row["device"])
        load = placed.loads[1 + (int(row["device"].removeprefix("CUDA")) if device is None else device)]
        if row["weights_mib"]:
            assert load.weights / MIB == pytest.approx(float(row["weights_mib"]), abs=0.011)
        if row["kv_mib"]:
            assert load.cache / MIB == float(row["kv_mib"])

    check_every(check, [(one,) for one in rows("xiongjiedai_memory_buffers")])


def test_layers_are_split_at_cumulative_shares() -> None:
    """33 with the head over 4: 9, 8, 8, 8; the 80 + 1 of a 70B over 6 equal devices: 14, 13, 14, 13, 14, 13."""
    assert [layer_devices(32, [1] * 4).count(i) for i in range(4)] == [9, 8, 8, 8]
    assert [layer_devices(80, [1] * 6).count(i) for i in range(6)] == [14, 13, 14, 13, 14, 13]
    assert [layer_devices(32, [3, 1]).count(i) for i in range(2)] == [25, 8]
    assert layer_devices(4, [24e9, 0.0, 24e9]) == (0, 0, 0, 2, 2)


def test_the_first_layers_stay_on_the_host() -> None:
    assert layer_devices(4, [1], gpu_layers=3) == (HOST_MEMORY, HOST_MEMORY, 0, 0, 0)
    assert layer_devices(4, [1], gpu_layers=0) == layer_devices(4, []) == (HOST_MEMORY,) * 5
    assert layer_devices(4, [1], gpu_layers=99) == (0,) * 5


shares = st.lists(st.floats(0, 1e12), min_size=1, max_size=9).filter(lambda found: sum(found) > 1e-20)


@given(st.integers(1, 200), shares, st.integers(0, 300))
def test_every_layer_has_one_device_and_devices_are_in_order(layers: int, proportions: list[float], gpu_layers: int) -> None:
    found = layer_devices(layers, proportions, gpu_layers)
    assert len(found) == layers + 1
    assert list(found) == sorted(found)
    assert found.count(HOST_MEMORY) == max(0, layers + 1 - gpu_layers)
    assert all(device == HOST_MEMORY or proportions[device] > 0 for device in found)


def test_invalid_shares_are_refused() -> None:
    def check(proportions: list[float]) -> None:
        with pytest.raises(UserError, match="the shares of a split must be finite"):
            layer_devices(4, proportions)

    check_every(check, [([0, 0],), ([-1, 2],), ([float("inf")],), ([float("nan"), 1],), ([1e39],), ([1e-60],)])


@given(shares, st.integers(0, 40))
def test_no_byte_is_lost_in_a_split(proportions: list[float], gpu_layers: int) -> None:
    held, cache = stored("llama-3-8b", "q4_k_m"), caches("llama-3-8b", 4096)
    for placed in (
        split_layers(held, cache, proportions, gpu_layers=gpu_layers),
        split_rows(held, cache, proportions, gpu_layers=gpu_layers),
    ):
        assert sum(load.weights for load in placed.loads) == held.bytes
        assert sum(load.cache for load in placed.loads) == sum(layer.bytes for layer in cache)
        assert sum(load.read() for load in placed.loads) == pytest.approx(sum(map(read, held.by_layer)))


def test_the_embedding_stays_on_the_host_and_a_tied_head_is_copied() -> None:
    """Gemma and small Llamas: the table is on the host to be looked up, and on the last device to be multiplied with."""
    held = stored("llama-3.2-1b", "q4_k_m")
    table = held.embedding[0].bytes
    placed = split_layers(held, caches("llama-3.2-1b", 4096), [1, 1])
    assert placed.host.weights == table
    assert sum(load.weights for load in placed.loads) == held.bytes + table
    alone = split_layers(held, caches("llama-3.2-1b", 4096), [])
    assert alone.host.weights == held.bytes
    assert alone.host.read() == sum(map(read, held.by_layer))


def test_experts_can_stay_on_the_host() -> None:
    """-ot exps=CPU and --n-cpu-moe: attention and its cache stay on the device."""
    held, cache = stored("qwen3-30b-a3b", "q4_k_m"), caches("qwen3-30b-a3b", 8192)
    experts = sum(weight.bytes for weight in held.tensors if weight.slot.expert)
    everything = split_layers(held, cache, [1])
    moved = split_layers(held, cache, [1], pins=[ALL_EXPERTS])
    assert (moved.host.experts, moved.devices[0].experts) == (experts, 0)
    assert moved.devices[0].cache == everything.devices[0].cache
    assert moved.host.read() == pytest.approx(experts * 8 / 128)
    first_ten = split_layers(held, cache, [1], pins=host_experts(10))
    assert 0 < first_ten.host.experts < experts
    assert first_ten.host.experts == sum(weight.bytes for layer in held.by_layer[:10] for weight in layer if weight.slot.expert)
    assert split_layers(held, cache, [1], pins=host_experts(48)) == moved
    with pytest.raises(UserError, match="no device 1 to pin tensors to"):
        split_layers(held, cache, [1], pins=[("exps", 1)])


def test_rows_are_cut_in_tiles() -> None:
    assert row_counts(4096, [1, 1, 1]) == [1280, 1408, 1408]
    assert row_counts(4096, [1]) == [4096]
    assert sum(row_counts(1000, [3, 1, 2])) == 1000


def test_a_row_split_shares_every_matrix_and_leaves_experts_whole() -> None:
    dense = split_rows(stored("llama-3-70b", "q4_k_m"), caches("llama-3-70b", 4096), [1, 1])
    assert dense.devices[0].weights == pytest.approx(dense.devices[1].weights, rel=0.01)
    sparse = split_rows(stored("mixtral-8x7b", "q4_k_m"), caches("mixtral-8x7b", 4096), [1, 1])
    assert [load.experts for load in sparse.devices] == [
        load.experts for load in by_layers("mixtral-8x7b", "q4_k_m", 4096, 2).devices
    ]


def test_vllm_puts_the_remainder_of_layers_on_middle_stages() -> None:
    """get_pp_indices: the remainder goes to the last stage but one, and those before it."""
    assert stage_layers(32, 4) == (8, 8, 8, 8)
    assert stage_layers(33, 4) == (8, 8, 9, 8)
    assert stage_layers(61, 8) == (7, 7, 8, 8, 8, 8, 8, 7)
    with pytest.raises(UserError, match="32 layers cannot be split into 33 pipeline stages"):
        stage_layers(32, 33)


@given(st.integers(1, 200), st.integers(1, 64))
def test_stages_hold_all_layers_evenly(layers: int, pp: int) -> None:
    if pp <= layers:
        found = stage_layers(layers, pp)
        assert (sum(found), len(found)) == (layers, pp)
        assert max(found) - min(found) <= 1


def tensors(name: str, quant: str, tp: int, pp: int = 1) -> Placement:
    vllm = find_runtime("vllm")
    return split_tensors(model(name), stored(name, quant), caches(name, 4096, vllm), tp, pp)


def test_tensor_parallelism_over_two_halves_all_but_norms() -> None:
    one, two = tensors("llama-3-70b", "awq", 1).devices[0], tensors("llama-3-70b", "awq", 2).devices[0]
    assert two.weights == pytest.approx(one.weights / 2, rel=1e-4)
    assert two.cache * 2 == one.cache
    assert two.read() == pytest.approx(one.read() / 2, rel=1e-4)


def test_a_tensor_parallel_group_holds_all_weights_and_little_more() -> None:
    """And little more: norms, routers, latents' projections and padding, which every one of them has."""

    def check(name: str, tp: int) -> None:
        held = stored(name, "bf16")
        together = sum(load.weights for load in tensors(name, "bf16", tp).devices)
        copied = sum(weight.bytes for weight in held.tensors if weight.slot.shard in ("", "kv"))
        assert held.bytes <= together <= held.bytes + tp * copied + tp * 64 * 2 * 2 * model(name).decoder.hidden

    check_every(
        check,
        product(
            ["llama-3-70b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-120b"], [1, 2, 4, 8]
        ),
    )


def test_kv_heads_are_copied_where_there_are_fewer_than_devices() -> None:
    """Llama 3 70B has 8 key heads: 16 devices hold one each, twice."""
    eight, sixteen = tensors("llama-3-70b", "bf16", 8).devices, tensors("llama-3-70b", "bf16", 16).devices
    assert sixteen[0].cache == eight[0].cache
    assert sum(load.weights for load in sixteen) > sum(load.weights for load in eight)


def test_a_latent_is_kept_whole_by_every_device() -> None:
    assert tensors("deepseek-v3", "fp8", 8).devices[0].cache == tensors("deepseek-v3", "fp8", 1).devices[0].cache


def test_the_first_and_last_pipeline_stage_hold_the_embedding_and_the_head() -> None:
    placed = tensors("llama-3-8b", "bf16", 2, 2)
    assert [load.layers for load in placed.devices] == [tuple(range(16))] * 2 + [tuple(range(16, 32))] * 2
    assert [load.head for load in placed.devices] == [False, False, True, True]
    whole = stored("llama-3-8b", "bf16").bytes
    assert sum(load.weights for load in placed.devices) == pytest.approx(whole, rel=1e-3)


def test_a_tied_head_is_copied_to_the_last_stage_only() -> None:
    held = stored("llama-3.2-1b", "bf16")
    table = held.embedding[0].bytes
    assert tensors("llama-3.2-1b", "bf16", 1).devices[0].weights == held.bytes
    assert sum(load.weights for load in tensors("llama-3.2-1b", "bf16", 1, 2).devices) == held.bytes + table


def test_tensor_parallel_sizes_that_vllm_cannot_run_are_refused_with_a_reason() -> None:
    def check(name: str, tp: int, words: str) -> None:
        found = refuses_tp(find_model(name), tp)
        assert words in found
        assert bool(words) == bool(found)

    check_every(
        check,
        [
            ("llama-3-70b", 3, "64 heads cannot be split over 3 devices; choose 1, 2, 4, 8, 16"),
            ("llama-3-70b", 5, "64 heads cannot be split over 5 devices"),
            ("phi-4", 5, "a vocabulary of 100,352, padding included, cannot be split over 5 devices"),
            ("llama-3-70b", 0, "no model can be split over 0 devices"),
            ("llama-3-70b", 4, ""),
            ("llama-3-70b", 16, ""),
        ],
    )


def test_an_impossible_tensor_split_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="llama-3-70b: 64 heads cannot be split over 6 devices"):
        tensors("llama-3-70b", "bf16", 6)
