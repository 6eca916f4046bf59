"""LoRA adapters beside a served model: bytes on each device, and the time that they add to a pass."""

from functools import cache

import pytest

from meshwise.catalogue.calibrations import choose_serve
from meshwise.catalogue.chips import host_cpu
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import Placement, split_tensors, with_adapters
from meshwise.cost.serve.passes.demand import demand
from meshwise.cost.serve.passes.speed import Batch, PassCost
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, weights

MODEL, VLLM = find_model("llama-3-8b"), find_runtime("vllm")
STORED = weights(MODEL, FORMATS["bf16"])


@cache
def placed(tp: int = 1) -> Placement:
    return split_tensors(MODEL, STORED, layer_caches(MODEL, VLLM, CacheRequest(context=512)), tp)


def seconds(adapters: int, rank: int, users: int) -> float:
    placement = with_adapters(placed(), MODEL, adapters, rank) if adapters else placed()
    cluster, work = find_cluster("h100-sxm"), Serve(prompt=256, output=64, context=512)
    asked = demand(MODEL, STORED, placement, Rig.of(cluster, host_cpu(cluster)), VLLM, work)
    return PassCost(asked, lambda chip: choose_serve(chip, "vllm")).seconds(Batch(users, (users * 300.0,)))


def test_an_adapter_has_two_thin_matrices_for_every_product() -> None:
    """Rank 16 on Llama 3 8B: q and o 4,096 + 4,096, k and v 4,096 + 1,024, three of 4,096 + 14,336, each x 16 x 2 bytes x 32 layers."""
    held = with_adapters(placed(), MODEL, 4, 16).devices[0]
    assert held.adapter == 16 * 2 * 32 * (2 * 8192 + 2 * 5120 + 3 * 18432) == 83_886_080
    assert held.weights - placed().devices[0].weights == 4 * held.adapter


def test_tensor_parallelism_cuts_one_of_the_two_matrices() -> None:
    """By two devices: q, k, v, gate and up keep their input matrix whole; o and down their output matrix."""
    held = with_adapters(placed(2), MODEL, 1, 16).devices[1]
    per_layer = (4096 + 2048) + 2 * (4096 + 512) + (2048 + 4096) + 2 * (4096 + 7168) + (7168 + 4096)
    assert held.adapter == 16 * 2 * 32 * per_layer


def test_more_adapters_and_ranks_take_longer_and_few_users_read_few_of_them() -> None:
    times = [seconds(0, 0, 32), seconds(1, 16, 32), seconds(8, 16, 32), seconds(32, 64, 32)]
    assert times == sorted(times)
    assert times[1] > 1.03 * times[0]
    # one user reads one adapter, however many there are
    assert seconds(64, 16, 1) == pytest.approx(seconds(1, 16, 1), rel=1e-6)
