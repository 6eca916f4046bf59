"""Rows arranged by expert: every choice has one row, and what is spread, multiplied and combined equals a loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.workers.trainer.ops import experts as module
from meshwise.workers.trainer.ops.experts import arrange, combine, grouped_product, load_of, share_rows, spread


@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_every_choice_has_a_row_of_its_expert_and_other_rows_are_padding(count: int, chosen: list[int]) -> None:
    experts = torch.tensor([expert % count for expert in chosen])
    found = arrange(experts, count)
    assert found.places.unique().numel() == len(chosen)
    assert found.choices[found.places].tolist() == list(range(len(chosen)))
    assert sorted(set(found.choices.tolist()) - {len(chosen)}) == list(range(len(chosen)))
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), found.ends))
    assert bool((found.places >= starts[experts]).all())
    assert bool((found.places < found.ends[experts]).all())
    assert load_of(experts, count).tolist() == [int((experts == expert).sum()) for expert in range(count)]


@pytest.mark.parametrize("aligned", [1, 16])
@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_experts_equal_a_loop_over_tokens(aligned: int, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    tokens, chosen, count, wide = 9, 2, 4, 6
    x = torch.randn(tokens, wide, generator=dice, dtype=torch.float64).requires_grad_()
    weights = torch.randn(tokens, chosen, generator=dice, dtype=torch.float64).requires_grad_()
    matrices = torch.randn(count, 5, wide, generator=dice, dtype=torch.float64).requires_grad_()
    experts = torch.stack([torch.randperm(count, generator=dice)[:chosen] for _ in range(tokens)])
    found = arrange(experts.flatten(), count)
    rows = grouped_product(spread(x, found, chosen) * share_rows(weights, found)[:, None], matrices, found.ends)
    ours = combine(rows, found, chosen)
    theirs = torch.stack([sum(weights[t, i] * (matrices[experts[t, i]] @ x[t]) for i in range(chosen)) for t in range(tokens)])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # sums are in float32
    outer = torch.randn(ours.shape, generator=dice, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad(y, (x, weights, matrices), outer) for y in (ours, theirs)), strict=True)
    for mine, right in pairs:
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)
    assert module.ALIGNED % aligned == 0
