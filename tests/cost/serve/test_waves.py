"""Products of a served model as an engine joins them, and the waves of tiles that they fill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.serve.waves import products, utilization
from meshwise.models.find import find_model


def test_fused_products_have_the_widths_of_fused_layers() -> None:
    """Llama 3 8B: 32 query and 2 x 8 key heads of 128; gate and up of 14,336 each."""
    model = find_model("llama-3-8b")
    assert [n for n, _ in products(model, 1, True)] == [6144, 4096, 28672, 4096]
    assert [n for n, _ in products(model, 1, False)] == [4096, 1024, 1024, 4096, 14336, 14336, 4096]
    assert [n for n, _ in products(model, 2, True)] == [3072, 4096, 14336, 4096]


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
    assert sum(n * weight for n, weight in products(model, tp, joined)) == sum(
        n * weight for n, weight in products(model, tp, False)
    )


def test_partly_filled_waves_lower_the_utilization() -> None:
    """512 rows by 4,096 outputs are 512 tiles of 64 x 64, five waves of 108 SMs; or 128 of 128 x 128, one wave of 132."""
    assert utilization(((4096, 1.0),), 512, 108, 0.0) == pytest.approx(512 / 540)
    assert utilization(((4096, 1.0),), 512, 132, 0.0) == pytest.approx(128 / 132)
    assert utilization(((4096, 1.0),), 512, 132, 0.2) == pytest.approx(128 / 132 * 0.5**0.2)  # half of the largest tile
    assert utilization(((4096, 1.0),), 512, 0, 0.2) == 1.0  # a chip with an unknown number of SMs
