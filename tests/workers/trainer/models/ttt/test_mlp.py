"""TTT-MLP against its definition: one gradient step per token by autograd, and the planner's parameter count."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.models.find import find_model, find_values
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.registry import sizes_of, unsupported
from meshwise.workers.trainer.models.ttt.learner import EPS
from meshwise.workers.trainer.models.ttt.mlp import MLPLearner, gelu, gelu_derivative, learn

TINY: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "mlp", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "mini_batch_size": 4, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["ttt-mlp-125m", "ttt-mlp-350m", "ttt-mlp-760m", "ttt-mlp-1.3b"])
def test_a_preset_has_the_parameters_that_the_planner_counts(name: str) -> None:
    values, _, _ = find_values(name)
    assert unsupported(values) == ""
    layers = sizes_of(values).layers
    with torch.device("meta"):
        model = build(values, Span(0, layers, layers))
    assert sum(parameter.numel() for parameter in model.parameters()) == find_model(name).params


def test_gelu_s_slope_is_the_gradient_that_autograd_finds() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    gelu(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(gelu_derivative(x.detach()), x.grad)


def by_token(
    weights: list[Tensor], gamma: Tensor, beta: Tensor, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor
) -> Tensor:
    """The definition for one head, (mini-batches, tokens, head_dim).

    Gradients are taken at the weights of the mini-batch's start; token i reads after those of tokens up to i.
    """

    def run(x: Tensor, w: list[Tensor]) -> Tensor:
        z = F.gelu(x @ w[0] + w[1], approximate="tanh") @ w[2] + w[3]
        return gamma * F.layer_norm(z, z.shape, eps=EPS) + beta

    rows: list[Tensor] = []
    for qs, ks, vs, rs in zip(q, k, v, rate, strict=True):
        grads: list[tuple[Tensor, ...]] = []
        for key, value in zip(ks, vs, strict=True):
            here = [weight.clone().requires_grad_() for weight in weights]
            grads.append(torch.autograd.grad(0.5 * (run(key, here) - (value - key)).square().sum(), here))

        steps = [[rs[j] * grad for grad in grads[j]] for j in range(len(ks))]
        moved = [
            [w - place[i] * torch.stack([step[n] for step in steps[: i + 1]]).sum(0) for n, w in enumerate(weights)]
            for i in range(len(ks))
        ]
        rows += [query + run(query, after) for query, after in zip(qs, moved, strict=True)]
        weights = moved[-1]
    return torch.stack(rows).unflatten(0, (len(q), -1))


def test_mini_batches_compute_what_one_gradient_step_per_token_does() -> None:
    torch.manual_seed(0)
    layer = MLPLearner(TINY | {"num_attention_heads": 1, "hidden_size": 8})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    q, k, v = (torch.randn(1, 1, 3, 4, 8) for _ in range(3))
    rate, place = torch.rand(1, 1, 3, 4), torch.rand(4)
    weights = [layer.W1[0].detach(), layer.b1[0, 0].detach(), layer.W2[0].detach(), layer.b2[0, 0].detach()]
    with torch.no_grad():
        ours = layer.learn(q, k, v, rate, place)
        gamma, beta = layer.ttt_norm_weight[0], layer.ttt_norm_bias[0]
    expected = by_token(weights, gamma, beta, q[0, 0], k[0, 0], v[0, 0], rate[0, 0], place)
    torch.testing.assert_close(ours[0, 0], expected, rtol=1e-4, atol=1e-4)


def test_the_gradients_of_the_plain_form_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    shapes = [(1, 1, 2, 2, 2)] * 3 + [(1, 1, 2, 2), (2,), (1, 2, 8), (1, 1, 8), (1, 8, 2), (1, 1, 2), (1, 1, 2), (1, 1, 2)]
    inputs = [torch.rand(shape, dtype=torch.float64) + 0.1 * i for i, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(learn, [x.requires_grad_() for x in inputs])


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
