"""The work of a served model on a device: kernels to launch, bytes of the head, and attention by the size of its heads."""

from dataclasses import replace

import pytest

from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import find_runtime
from meshwise.cost.serve.cache import CacheRequest, layer_caches
from meshwise.cost.serve.demand import Rig, Task, demand
from meshwise.cost.serve.placement import split_tensors
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import weights

TRANSFORMERS = find_runtime("transformers")


def task(name: str = "llama-3-8b", *, users: int = 1, prompt: int = 512) -> Task:
    model, work = find_model(name), Serve(prompt=prompt, output=32, users=users, context=prompt + 32)
    stored, held = weights(model), CacheRequest(context=work.context, sequences=users)
    placed = split_tensors(model, stored, layer_caches(model, TRANSFORMERS, held), 1)
    return demand(model, stored, placed, Rig.of(find_cluster("h200"), find_chip("cpu")), TRANSFORMERS, work).stages[0][0]


def test_a_single_request_launches_7_of_13_kernels() -> None:
    """meshwise.workers.decoder.fused: norms and gate are inside the products of a single token, and no sum is behind them."""
    assert task(users=1).starts == pytest.approx(7 / 13 * 32, rel=0.01)
    assert [task(users=users).starts for users in (2, 64)] == [32, 32]
    assert [task(users=users).single for users in (1, 2)] == [True, False]


def test_a_prompt_reads_the_head_once() -> None:
    """128,256 x 4,096 in bf16."""
    asked = task(prompt=2048)
    assert asked.head == pytest.approx(2 * 128256 * 4096, rel=0.001)
    assert asked.head + asked.batch_weights == pytest.approx(asked.weights)


def test_flash_attention_with_small_heads_takes_longer_for_its_flops() -> None:
    """374 TFLOP/s with heads of 64 and 584 with 128, on an H200 (cost/compute.py)."""
    small, large = (task(name, prompt=4096) for name in ("llama-3.2-1b", "llama-3.2-3b"))
    flops = [layers * heads * size * 4 * 4097 / 2 * 4096 for layers, heads, size in ((16, 32, 64), (28, 24, 128))]
    assert (small.attention / flops[0]) / (large.attention / flops[1]) == pytest.approx(584 / 374, rel=0.2)
    assert large.attention == pytest.approx(flops[1])


def test_fusing_products_changes_neither_bytes_nor_flops() -> None:
    apart = replace(TRANSFORMERS, joined=False, alone=1.0)
    model, work = find_model("llama-3-8b"), Serve(prompt=512, output=32, users=1, context=544)
    placed = split_tensors(model, weights(model), layer_caches(model, apart, CacheRequest(context=544)), 1)
    asked = demand(model, weights(model), placed, Rig.of(find_cluster("h200"), find_chip("cpu")), apart, work).stages[0][0]
    assert (asked.weights, asked.cache, asked.flops) == (task().weights, task().cache, task().flops)
