"""Products of a served model as an engine joins them, and the waves of tiles that they fill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.serve.passes.waves import Product, products, utilization
from meshwise.models.find import find_model


def test_fused_products_have_the_widths_of_fused_layers() -> None:
    """Llama 3 8B: 32 query and 2 x 8 key heads of 128; gate and up of 14,336 each."""
    model = find_model("llama-3-8b")
    assert [product.outputs for product in products(model, 1, True)] == [6144, 4096, 28672, 4096]
    assert [product.outputs for product in products(model, 1, False)] == [4096, 1024, 1024, 4096, 14336, 14336, 4096]
    assert [product.outputs for product in products(model, 2, True)] == [3072, 4096, 14336, 4096]


def test_products_of_different_inputs_or_counts_are_not_fused() -> None:
    """DeepSeek's latent attention: down projections are not sharded, and each up projection has its own input."""
    deep = find_model("deepseek-v3")
    names = [op.name for name, ops in deep.blocks.items() if deep.times[name] for op in ops if op.kind == "matmul"]
    alone = [name for name in names if not name.endswith((".gate", ".up"))]
    gates = [name for name in names if name.endswith(".gate")]
    assert len(products(deep, 1, True)) == len(alone) + len(gates)


@given(tp=st.sampled_from((1, 2, 4, 8)), joined=st.booleans())
def test_fusing_changes_no_flops(tp: int, joined: bool) -> None:
    model = find_model("llama-3-8b")
    assert sum(p.outputs * p.weight for p in products(model, tp, joined)) == sum(
        p.outputs * p.weight for p in products(model, tp, False)
    )


def test_partly_filled_waves_lower_the_utilization() -> None:
    """512 rows by 4,096 outputs are 512 tiles of 64 x 64, five waves of 108 SMs; or 128 of 128 x 128, one wave of 132."""
    assert utilization((Product(4096, 1.0),), 512, 108, 0.0) == pytest.approx(512 / 540)
    assert utilization((Product(4096, 1.0),), 512, 132, 0.0) == pytest.approx(128 / 132)
    assert utilization((Product(4096, 1.0),), 512, 132, 0.2) == pytest.approx(128 / 132 * 0.5**0.2)  # half of the largest tile
    assert utilization((Product(4096, 1.0),), 512, 0, 0.2) == 1.0  # a chip with an unknown number of SMs


def test_all_experts_of_a_layer_fill_the_chip_together() -> None:
    """128 experts with 8 rows each: 128 x 12 tiles of 16 x 128 for 1,536 outputs, in 12 waves, half of each tile padded. With about 32
    rows, which vary, each has 2.5 tiles of 16: 3,840 tiles in 30 waves."""
    one = Product(1536, 1.0, 1 / 16, 128)
    assert utilization((one,), 128, 132, 0.0) == pytest.approx(0.5 * 1536 / (12 * 132), rel=0.02)
    assert utilization((one,), 512, 132, 0.0) == pytest.approx(32 / 40 * 3840 / (30 * 132), rel=0.02)
    assert utilization((one,), 8192, 132, 0.0) > 0.9


def test_experts_have_the_rows_of_the_tokens_routed_to_them() -> None:
    """Qwen3 30B-A3B: 128 experts, 8 per token."""
    experts = [product for product in products(find_model("qwen3-30b-a3b"), 1, True) if product.copies > 1]
    assert {(product.share, product.copies) for product in experts} == {(1 / 16, 128)}
