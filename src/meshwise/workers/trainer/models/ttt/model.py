"""TTT-Linear and TTT-MLP: Llama's structure, with attention replaced by a small model per head that learns while it reads.

arXiv:2407.04620. Parameter names are those of the paper's code, from memory.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from typing import ClassVar

import torch
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.registry import Config, description_of, sizes_of
from meshwise.workers.trainer.contract.stages import Span
from meshwise.workers.trainer.models.base import Tied, initial_spreads
from meshwise.workers.trainer.models.decoder.feed_forward import FeedForward
from meshwise.workers.trainer.models.decoder.norms import norm_of
from meshwise.workers.trainer.models.families.ttt import learner_of
from meshwise.workers.trainer.models.ttt.linear import LinearLearner
from meshwise.workers.trainer.models.ttt.mlp import MLPLearner
from meshwise.workers.trainer.ops.attention import LocalShard
from meshwise.workers.trainer.ops.recompute import checkpointed

LEARNERS = {"linear": LinearLearner, "mlp": MLPLearner}


class Block(nn.Module):
    def __init__(self, config: Config, recompute: str) -> None:
        super().__init__()
        d = description_of(config)
        self.full = recompute == "full"
        self.seq_norm = norm_of(d)
        self.seq_modeling_block = LEARNERS[learner_of(config)[0]](config)
        self.ffn_norm = norm_of(d)
        self.mlp = FeedForward(d)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        return checkpointed(self._run, x, rotation) if self.full else self._run(x, rotation)

    def _run(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.seq_modeling_block(self.seq_norm(x), rotation)
        return x + self.mlp(self.ffn_norm(x))


class Trunk(nn.Module):
    def __init__(self, config: Config, span: Span, recompute: str) -> None:
        super().__init__()
        d = description_of(config)
        self.embed_tokens = nn.Embedding(d.vocab, d.hidden) if span.starts else None
        self.layers = nn.ModuleDict({str(i): Block(config, recompute) for i in span.layers})
        self.norm = norm_of(d) if span.ends else None


class TTTDecoder(Tied):
    constants: ClassVar[dict[str, float]] = {"b1": 0.0, "b2": 0.0, "token_idx": 0.0, "ttt_norm_weight": 1.0}
    """Initial values of the weights that do not start random, by name ending."""

    def __init__(self, config: Config, span: Span, recompute: str) -> None:
        super().__init__()
        sizes = sizes_of(config)
        self.config, self.tied, self.spreads = config, sizes.tied, initial_spreads(description_of(config))
        self.model = Trunk(config, span, recompute)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if span.ends else None
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        if self.model.embed_tokens is not None:
            x = self.model.embed_tokens(x)
        rotation = rotation_of(self.config, x.device)
        for block in self.model.layers.values():
            block.seq_modeling_block.choose_kernels(x.device)
            x = block(x, rotation)
        return self.end(x, self.model.norm, targets)


def build(config: Config, span: Span, shard: LocalShard, recompute: str) -> nn.Module:
    """Build a span of layers. `shard` is always the whole: layout rules refuse tp and cp."""
    return TTTDecoder(config, span, recompute)


def rotation_of(config: Config, device: torch.device) -> Tensor:
    """Return cosines and sines (2, mini-batch, head_dim / 2) of the positions in a mini-batch."""
    sizes = sizes_of(config)
    dim = sizes.hidden // sizes.heads
    frequency = float(config.get("rope_theta", 10000.0)) ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    angle = torch.arange(learner_of(config)[1], device=device).float()[:, None] * frequency
    return torch.stack((angle.cos(), angle.sin()))
