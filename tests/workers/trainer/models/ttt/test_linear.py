"""TTT-Linear against its definition: one gradient step per token by autograd, and the paper's parameter count."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.models.find import find_values
from meshwise.models.model import build as planned
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.registry import unsupported
from meshwise.workers.trainer.models.ttt.learner import EPS, loss_gradient
from meshwise.workers.trainer.models.ttt.linear import LinearLearner, learn

TINY: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "mini_batch_size": 4, "tie_word_embeddings": True,
}  # fmt: skip


def test_the_125m_preset_has_the_parameters_of_the_paper_s_code() -> None:
    values, _, _ = find_values("ttt-linear-125m")
    assert unsupported(values) == ""
    with torch.device("meta"):
        model = build(values, Span(0, 12, 12))
    # the paper's 125m with a vocabulary of 50257 and no gate: the count that its code prints
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_298_064


@pytest.mark.parametrize("missing", ["tie_word_embeddings", "ttt_layer_type", "mini_batch_size"])
def test_what_a_config_leaves_out_means_the_same_to_planner_and_trainer(missing: str) -> None:
    """transformers writes only the keys that are not as its classes have them."""
    named = TINY | {"mini_batch_size": 16, "max_position_embeddings": 64}
    given = {key: value for key, value in named.items() if key != missing}
    assert unsupported(given) == ""
    with torch.device("meta"):
        model = build(given, Span(0, 2, 2))
    assert sum(parameter.numel() for parameter in model.parameters()) == planned(given, "tiny", "").params
    assert planned(given, "tiny", "").params == planned(named, "tiny", "").params


def test_the_slope_is_the_gradient_that_autograd_finds() -> None:
    torch.manual_seed(0)
    z, target, gamma, beta = (torch.randn(3, 8, dtype=torch.float64) for _ in range(4))
    z.requires_grad_()
    (0.5 * (gamma * F.layer_norm(z, (8,), eps=EPS) + beta - target).square().sum()).backward()
    assert z.grad is not None
    torch.testing.assert_close(loss_gradient(z.detach(), target, gamma, beta), z.grad)


def by_token(layer: LinearLearner, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
    """The definition for one head, (mini-batches, tokens, head_dim): token i reads after the gradients of tokens up to i."""
    gamma, beta = layer.ttt_norm_weight[0], layer.ttt_norm_bias[0]
    w, b = layer.W1[0].detach(), layer.b1[0, 0].detach()
    rows: list[Tensor] = []
    for qs, ks, vs, rs in zip(q, k, v, rate, strict=True):
        grads: list[tuple[Tensor, Tensor]] = []
        for key, value in zip(ks, vs, strict=True):
            here, bias = w.clone().requires_grad_(), b.clone().requires_grad_()
            error = gamma * F.layer_norm(key @ here + bias, key.shape, eps=EPS) + beta - (value - key)
            grads.append(torch.autograd.grad(0.5 * error.square().sum(), (here, bias)))  # pyright: ignore[reportArgumentType]
        for i, query in enumerate(qs):
            moved = w - sum(place[i] * rs[j] * grads[j][0] for j in range(i + 1))
            shift = b - sum(place[i] * rs[j] * grads[j][1] for j in range(i + 1))
            rows.append(query + gamma * F.layer_norm(query @ moved + shift, query.shape, eps=EPS) + beta)
        w = w - sum(place[-1] * rs[j] * grads[j][0] for j in range(len(ks)))
        b = b - sum(place[-1] * rs[j] * grads[j][1] for j in range(len(ks)))
    return torch.stack(rows).detach().unflatten(0, (len(q), -1))


def test_mini_batches_compute_what_one_gradient_step_per_token_does() -> None:
    torch.manual_seed(0)
    layer = LinearLearner(TINY | {"num_attention_heads": 1, "hidden_size": 8})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    q, k, v = (torch.randn(1, 1, 3, 4, 8) for _ in range(3))
    rate, place = torch.rand(1, 1, 3, 4), torch.rand(4)
    with torch.no_grad():
        ours = layer.learn(q, k, v, rate, place)
    torch.testing.assert_close(ours[0, 0], by_token(layer, q[0, 0], k[0, 0], v[0, 0], rate[0, 0], place), rtol=1e-4, atol=1e-4)


def test_a_token_never_sees_what_comes_after_it() -> None:
    torch.manual_seed(0)
    model = build(TINY, Span(0, 2, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.randint(0, 256, (1, 12))
    other = tokens.clone()
    other[0, 6:] = (other[0, 6:] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_the_gradients_of_the_plain_form_are_those_of_small_differences() -> None:
    torch.manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, requires_grad=True)  # noqa: E731
    rate, place = (
        torch.rand(1, 2, 2, 3, dtype=torch.float64, requires_grad=True),
        torch.rand(3, dtype=torch.float64, requires_grad=True),
    )
    given = [*(normal(1, 2, 2, 3, 4) for _ in range(3)), rate, place, normal(2, 4, 4), *(normal(2, 1, 4) for _ in range(3))]
    assert torch.autograd.gradcheck(learn, given)


def test_a_last_mini_batch_need_not_be_full() -> None:
    torch.manual_seed(0)
    model = build(TINY, Span(0, 2, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.randint(0, 256, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, :7]), model(tokens)[:, :7])
