"""TTT-Linear and TTT-MLP against their definition: one gradient step per token by autograd, and the parameters of paper and planner."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.models.find import find_model, find_values
from meshwise.models.model import build as planned
from meshwise.workers.trainer.contract.models.registry import sizes_of, unsupported
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.ttt import linear, mlp
from meshwise.workers.trainer.models.ttt.learner import EPS, Learner, loss_gradient
from meshwise.workers.trainer.models.ttt.mlp import gelu, gelu_derivative

TINY: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "mini_batch_size": 4, "tie_word_embeddings": True,
}  # fmt: skip


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def linear_inputs() -> list[Tensor]:
    """Two heads and mini-batches of three tokens: q, k, v, rate, place, W, b, gamma, beta."""
    rates = [uniform(1, 2, 2, 3), uniform(3)]
    return [*(normal(1, 2, 2, 3, 4) for _ in range(3)), *rates, normal(2, 4, 4), *(normal(2, 1, 4) for _ in range(3))]


def mlp_inputs() -> list[Tensor]:
    """One head and mini-batches of two tokens: q, k, v, rate, place, W1, b1, W2, b2, gamma, beta."""
    shapes = [(1, 1, 2, 2, 2)] * 3 + [(1, 1, 2, 2), (2,), (1, 2, 8), (1, 1, 8), (1, 8, 2), (1, 1, 2), (1, 1, 2), (1, 1, 2)]
    return [uniform(*shape) + 0.1 * i for i, shape in enumerate(shapes)]


@dataclass(frozen=True)
class Case:
    """One kind of learner."""

    layer: type[Learner]
    weights: tuple[str, ...]
    inner: Callable[[Tensor, list[Tensor]], Tensor]
    """The inner model before its norm."""
    learn: Callable[..., Tensor]
    inputs: Callable[[], list[Tensor]]


CASES = {
    "linear": Case(linear.LinearLearner, ("W1", "b1"), lambda x, w: x @ w[0] + w[1], linear.learn, linear_inputs),
    "mlp": Case(
        mlp.MLPLearner,
        ("W1", "b1", "W2", "b2"),
        lambda x, w: F.gelu(x @ w[0] + w[1], approximate="tanh") @ w[2] + w[3],
        mlp.learn,
        mlp_inputs,
    ),
}
each_learner = pytest.mark.parametrize("kind", CASES)


def random_model(kind: str) -> Any:
    torch.manual_seed(0)
    model = build(TINY | {"ttt_layer_type": kind}, Span(0, 2, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def parameters(values: dict[str, Any]) -> int:
    layers = sizes_of(values).layers
    with torch.device("meta"):
        model = build(values, Span(0, layers, layers))
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_125m_preset_has_the_parameters_of_the_paper_s_code() -> None:
    values, _, _ = find_values("ttt-linear-125m")
    assert unsupported(values) == ""
    # the paper's 125m with a vocabulary of 50257 and no gate: the count that its code prints
    assert parameters(values) == 124_298_064


@pytest.mark.parametrize("name", ["ttt-mlp-125m", "ttt-mlp-350m", "ttt-mlp-760m", "ttt-mlp-1.3b"])
def test_a_preset_has_the_parameters_that_the_planner_counts(name: str) -> None:
    values, _, _ = find_values(name)
    assert unsupported(values) == ""
    assert parameters(values) == find_model(name).params


@pytest.mark.parametrize("missing", ["tie_word_embeddings", "ttt_layer_type", "mini_batch_size"])
def test_a_missing_key_means_the_same_to_planner_and_trainer(missing: str) -> None:
    """transformers writes only the keys that differ from its defaults."""
    named = TINY | {"mini_batch_size": 16, "max_position_embeddings": 64}
    given = {key: value for key, value in named.items() if key != missing}
    assert unsupported(given) == ""
    assert parameters(given) == planned(given, "tiny", "").params
    assert planned(given, "tiny", "").params == planned(named, "tiny", "").params


def test_the_loss_gradient_is_the_one_that_autograd_finds() -> None:
    torch.manual_seed(0)
    z, target, gamma, beta = (normal(3, 8) for _ in range(4))
    z.requires_grad_()
    (0.5 * (gamma * F.layer_norm(z, (8,), eps=EPS) + beta - target).square().sum()).backward()
    assert z.grad is not None
    torch.testing.assert_close(loss_gradient(z.detach(), target, gamma, beta), z.grad)


def test_gelu_s_derivative_is_the_gradient_that_autograd_finds() -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    gelu(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(gelu_derivative(x.detach()), x.grad)


def by_token(case: Case, layer: Learner, q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor) -> Tensor:
    """The definition for one head, (mini-batches, tokens, head_dim).

    Gradients are taken at the weights of the mini-batch's start; token i reads after the gradients of tokens up to i.
    """
    gamma, beta = layer.ttt_norm_weight[0].detach(), layer.ttt_norm_bias[0].detach()
    weights = [getattr(layer, name)[0].detach() for name in case.weights]
    weights = [weight[0] if len(weight) == 1 else weight for weight in weights]  # biases have a row of their own

    def run(x: Tensor, w: list[Tensor]) -> Tensor:
        z = case.inner(x, w)
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


@each_learner
def test_mini_batches_compute_what_one_gradient_step_per_token_does(kind: str) -> None:
    torch.manual_seed(0)
    case = CASES[kind]
    layer = case.layer(TINY | {"num_attention_heads": 1, "hidden_size": 8})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    q, k, v = (torch.randn(1, 1, 3, 4, 8) for _ in range(3))
    rate, place = torch.rand(1, 1, 3, 4), torch.rand(4)
    with torch.no_grad():
        ours = layer.learn(q, k, v, rate, place)
    expected = by_token(case, layer, q[0, 0], k[0, 0], v[0, 0], rate[0, 0], place)
    torch.testing.assert_close(ours[0, 0], expected, rtol=1e-4, atol=1e-4)


@each_learner
def test_the_gradients_of_the_plain_form_are_those_of_finite_differences(kind: str) -> None:
    torch.manual_seed(0)
    case = CASES[kind]
    assert torch.autograd.gradcheck(case.learn, [x.requires_grad_() for x in case.inputs()])


@each_learner
def test_a_token_never_sees_what_comes_after_it(kind: str) -> None:
    model = random_model(kind)
    tokens = torch.randint(0, 256, (1, 12))
    other = tokens.clone()
    other[0, 6:] = (other[0, 6:] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@each_learner
def test_a_last_mini_batch_need_not_be_full(kind: str) -> None:
    model = random_model(kind)
    tokens = torch.randint(0, 256, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens[:, :7]), model(tokens)[:, :7])
