"""Random inputs for TTT-MLP's kernels, and their errors against the plain form in float64."""

from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.models.ttt.kernels.mlp import ttt_mlp
from meshwise.workers.trainer.models.ttt.mlp import MLPLearner, learn
from meshwise.workers.trainer.models.ttt.model import rotation_of

NAMES = ["out", "q", "k", "v", "rate", "place", "W1", "b1", "W2", "b2", "gamma", "beta"]
LAYER: dict[str, Any] = {
    "model_type": "ttt", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 2, "mini_batch_size": 16,
}  # fmt: skip


def inputs(batch: int, batches: int, heads: int, width: int, short: int) -> list[Tensor]:
    """Random everything: at initialisation b1 = 0, gamma = 1 and beta = 0 hide most errors."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    seq, inner = batches * short, 4 * width
    return [
        *(draw(batch, seq, heads, width) for _ in range(3)), 0.2 * torch.rand(batch, seq, heads).double(),
        torch.rand(short).double() + 0.1, draw(heads, width, inner) / width**0.5, 0.3 * draw(heads, 1, inner),
        draw(heads, inner, width) / inner**0.5, 0.3 * draw(heads, 1, width), 1 + 0.3 * draw(heads, width), 0.3 * draw(heads, width),
    ]  # fmt: skip


def plain(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor, *weights: Tensor) -> Tensor:
    def split(x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(2, (-1, len(place)))

    w1, b1, w2, b2, gamma, beta = weights
    out = learn(split(q), split(k), split(v), split(rate), place, w1, b1, w2, b2, gamma.unsqueeze(1), beta.unsqueeze(1))
    return out.flatten(2, 3).transpose(1, 2)


def far(ours: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True)]


def operator(*sizes: int) -> dict[str, float]:
    given = inputs(*sizes)
    ups = torch.randn_like(given[0])
    found: list[list[Tensor]] = []
    for run, dtype in ((ttt_mlp, torch.float32), (plain, torch.float64)):
        here = [one.to(dtype).requires_grad_() for one in given]
        out = run(*here)
        found.append([out.detach(), *torch.autograd.grad(out, here, ups.to(dtype))])
    return dict(zip(NAMES, far(found[0], found[1]), strict=True))


def layer(seq: int, fused: bool = False) -> dict[str, float]:
    """A whole layer, compiled around the operator without a break, against the plain layer; `fused`: its projections are one product."""
    one = MLPLearner(LAYER)
    for parameter in one.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    if fused:
        one.fuse()
        assert one.fused
    x, rotation = torch.randn(2, seq, LAYER["hidden_size"]), rotation_of(LAYER, torch.device("cpu"))
    found: list[list[Tensor]] = []
    for fast in (True, False):
        one.fast = fast
        one.zero_grad()
        run = torch.compile(one, backend="aot_eager", fullgraph=True) if fast else one
        out = run(x, rotation)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad for p in one.parameters() if p.grad is not None)])
    names = ["out", *(name for name, _ in one.named_parameters())]
    return dict(zip(names, far(found[0], found[1]), strict=True))
