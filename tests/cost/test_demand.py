"""What a served model asks of a device: products as an engine joins them, waves that they fill, and what stands beside them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.clusters import find_cluster
from meshwise.cost.demand import Rig, Task, demand, filled, products
from meshwise.kv import Held, layer_caches
from meshwise.lookup import find_model
from meshwise.placement import split_tensors
from meshwise.quant import weights
from meshwise.runtime import find_runtime
from meshwise.workload import Serve

TRANSFORMERS = find_runtime("transformers")


def task(name: str = "llama-3-8b", *, users: int = 1, prompt: int = 512) -> Task:
    model, work = find_model(name), Serve(prompt=prompt, output=32, users=users, context=prompt + 32)
    stored, held = weights(model), Held(context=work.context, sequences=users)
    placed = split_tensors(model, stored, layer_caches(model, TRANSFORMERS, held), 1)
    return demand(model, stored, placed, Rig.of(find_cluster("h200")), TRANSFORMERS, work).stages[0][0]


def test_joined_products_are_those_of_the_lean_layers() -> None:
    """Llama 3 8B: 32 query and 2 x 8 key heads of 128; gate and up of 14,336 each."""
    model = find_model("llama-3-8b")
    assert [n for n, _ in products(model, 1, True)] == [6144, 4096, 28672, 4096]
    assert [n for n, _ in products(model, 1, False)] == [4096, 1024, 1024, 4096, 14336, 14336, 4096]
    assert [n for n, _ in products(model, 2, True)] == [3072, 4096, 14336, 4096]


def test_products_of_different_inputs_or_counts_are_not_joined() -> None:
    """DeepSeek's latent attention: what goes down is no copy for every device, what goes up has inputs of its own."""
    deep = find_model("deepseek-v3")
    names = [op.name for name, ops in deep.blocks.items() if deep.times[name] for op in ops if op.kind == "matmul"]
    alone = [name for name in names if not name.endswith((".gate", ".up"))]
    gates = [name for name in names if name.endswith(".gate")]
    assert len(products(deep, 1, True)) == len(alone) + len(gates)


@given(tp=st.sampled_from((1, 2, 4, 8)), joined=st.booleans())
def test_joining_changes_no_flop(tp: int, joined: bool) -> None:
    model = find_model("llama-3-8b")
    assert sum(n * weight for n, weight in products(model, tp, joined)) == sum(
        n * weight for n, weight in products(model, tp, False)
    )


def test_waves_that_are_not_full() -> None:
    """512 rows by 4,096 outputs are 512 tiles of 64 x 64, five waves of 108 SMs; or 128 of 128 x 128, one wave of 132."""
    assert filled(((4096, 1.0),), 512, 108, 0.0) == pytest.approx(512 / 540)
    assert filled(((4096, 1.0),), 512, 132, 0.0) == pytest.approx(128 / 132)
    assert filled(((4096, 1.0),), 512, 132, 0.2) == pytest.approx(128 / 132 * 0.5**0.2)  # half of the largest tile
    assert filled(((4096, 1.0),), 512, 0, 0.2) == 1.0  # a chip whose processors nobody counts


def test_one_user_starts_7_kernels_of_13() -> None:
    """meshwise.generation.lean: norms and gate are inside the products of a single token, and no sum is behind them."""
    assert task(users=1).starts == pytest.approx(7 / 13 * 32, rel=0.01)
    assert [task(users=users).starts for users in (2, 64)] == [32, 32]
    assert [task(users=users).single for users in (1, 2)] == [True, False]


def test_a_prompt_reads_the_head_once_beside_its_layers() -> None:
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


def test_an_engine_that_joins_nothing_reads_and_multiplies_as_much() -> None:
    apart = replace(TRANSFORMERS, joined=False, alone=1.0)
    model, work = find_model("llama-3-8b"), Serve(prompt=512, output=32, users=1, context=544)
    placed = split_tensors(model, weights(model), layer_caches(model, apart, Held(context=544)), 1)
    asked = demand(model, weights(model), placed, Rig.of(find_cluster("h200")), apart, work).stages[0][0]
    assert (asked.weights, asked.cache, asked.flops) == (task().weights, task().cache, task().flops)
