"""The loss that never holds all logits is the loss that does."""

import pytest
import torch
import torch.nn.functional as F

from meshwise.workers.trainer.ops.loss import IGNORED_TARGET, head_loss


@pytest.mark.parametrize(("tokens", "vocabulary"), [(1, 7), (300, 64), (517, 97)])
@pytest.mark.parametrize("at_once", [1, 4 * 128 * 97, 2**30])
def test_chunks_change_neither_the_loss_nor_a_gradient(tokens: int, vocabulary: int, at_once: int) -> None:
    dice = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 12, generator=dice, requires_grad=True)
    weight = torch.randn(vocabulary, 12, generator=dice, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), generator=dice)
    expected = F.cross_entropy(x @ weight.T, targets) * 3
    gradients = torch.autograd.grad(expected, (x, weight))
    found = head_loss(x, weight, targets, at_once=at_once) * 3
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    for one, other in zip(torch.autograd.grad(found, (x, weight)), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_sequence_of_a_batch_counts_like_a_list_of_tokens() -> None:
    x, weight, targets = torch.randn(2, 5, 8), torch.randn(11, 8), torch.randint(11, (2, 5))
    expected = F.cross_entropy((x @ weight.T).flatten(0, 1), targets.flatten())
    assert head_loss(x, weight, targets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_ignored_tokens_have_neither_a_loss_nor_a_gradient_and_a_frozen_head_has_none(cap: float) -> None:
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(40, 12, generator=dice, requires_grad=True)
    weight = torch.randn(97, 12, generator=dice)
    targets = torch.randint(97, (40,), generator=dice)
    targets[::3] = IGNORED_TARGET
    logits = x @ weight.T
    logits = cap * torch.tanh(logits / cap) if cap else logits
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction="sum") / 40
    found = head_loss(x, weight, targets, cap, at_once=1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    (one,), (other,) = torch.autograd.grad(found, (x,)), torch.autograd.grad(expected, (x,))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert not one[::3].any()
