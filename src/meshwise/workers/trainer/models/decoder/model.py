"""The decoder: embedding, layers and head as a Description says. Parameter names are Llama's; `weights` converts them from and to HF's."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable

import torch
from torch import Tensor, nn

from meshwise.workers.trainer.contract.models.description import Description, Layer, Rotary
from meshwise.workers.trainer.contract.models.registry import Config, description_of
from meshwise.workers.trainer.contract.stages import Span
from meshwise.workers.trainer.models.base import Tied, initial_spreads
from meshwise.workers.trainer.models.decoder.attention import Attention, rule_of
from meshwise.workers.trainer.models.decoder.experts import MixedFeedForward
from meshwise.workers.trainer.models.decoder.feed_forward import FeedForward
from meshwise.workers.trainer.models.decoder.latent import LatentAttention
from meshwise.workers.trainer.models.decoder.norms import norm_of
from meshwise.workers.trainer.models.decoder.rotary import rotation_of
from meshwise.workers.trainer.ops.attention import LocalShard, Rule, Scores, make_scores
from meshwise.workers.trainer.ops.recompute import checkpointed


class Block(nn.Module):
    def __init__(self, d: Description, layer: Layer, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.full, self.parallel, self.factor, self.kind = recompute == "full", d.parallel, d.residual_factor, layer
        self.input_layernorm = norm_of(d) if d.before else None
        self.self_attn = (LatentAttention if d.latent else Attention)(d, layer, shard, recompute)
        self.attention_out_norm = norm_of(d) if d.after else None
        self.post_attention_layernorm = norm_of(d) if d.before else None
        self.mlp = MixedFeedForward(d, shard) if layer.mixed else FeedForward(d, recomputed=self.full)
        self.mlp_out_norm = norm_of(d) if d.after else None

    def forward(self, x: Tensor, rotation: Tensor | None, scores: Scores) -> Tensor:
        if self.full:
            return checkpointed(self._run, x, rotation, scores)
        return self._run(x, rotation, scores)

    def _run(self, x: Tensor, rotation: Tensor | None, scores: Scores) -> Tensor:
        attended = x + self._attention(x, rotation, scores)
        return attended + self._feed_forward(x if self.parallel else attended)

    def _attention(self, x: Tensor, rotation: Tensor | None, scores: Scores) -> Tensor:
        y = self.self_attn(x if self.input_layernorm is None else self.input_layernorm(x), rotation, scores)
        return self._added(y if self.attention_out_norm is None else self.attention_out_norm(y))

    def _feed_forward(self, x: Tensor) -> Tensor:
        y = self.mlp(x if self.post_attention_layernorm is None else self.post_attention_layernorm(x))
        return self._added(y if self.mlp_out_norm is None else self.mlp_out_norm(y))

    def _added(self, y: Tensor) -> Tensor:
        return y if self.factor == 1 else y * self.factor


class Trunk(nn.Module):
    """The module that HF calls `model`."""

    def __init__(self, d: Description, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(d.vocab, d.hidden) if span.starts else None
        self.embed_positions = nn.Embedding(d.positions, d.hidden) if span.starts and d.positions else None
        self.embed_norm = norm_of(d) if span.starts and d.embedding_norm else None
        self.layers = nn.ModuleDict({str(i): Block(d, d.layers[i], shard, recompute) for i in span.layers})
        self.norm = norm_of(d) if span.ends else None


class DecoderModel(Tied):
    def __init__(self, config: Config, span: Span, shard: LocalShard, recompute: str) -> None:
        super().__init__()
        d = description_of(config)
        self.config, self.described, self.shard, self.tied = config, d, shard, d.tied
        self.logit_cap, self.logit_factor = d.logit_cap, d.logit_factor
        # gains that are stored minus one start at zero
        self.constants = {"router.balance": 0.0} | ({"norm.weight": 0.0} if d.norm == "rms+1" else {})
        self.spreads = initial_spreads(d)
        self.model = Trunk(d, span, shard, recompute)
        self.lm_head = nn.Linear(d.hidden, d.vocab, bias=False) if span.ends else None
        self.document_end: int | None = None
        """The token that ends a document, if tokens see only their own."""
        self._scores: dict[tuple[Rule, int, torch.device], Scores] = {}
        self.tie()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        scores = self._score_tensors
        if self.document_end is not None:
            scores = self._document_scores(x)
        if self.model.embed_tokens is not None:
            x = self._embed(x)
        else:
            length *= self.shard.tp  # between blocks, sequence parallelism splits the sequence
        rotations: dict[int, Tensor] = {}
        for block in self.model.layers.values():
            rotation = self._rotation(block.kind.rotary, rotations, length, x.device)
            x = block(x, rotation, scores(block, length, x.device))
        return self.end(x, self.model.norm, targets)

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        if self.model.embed_positions is not None:
            positions, _ = self.shard.positions(tokens.shape[1], tokens.device)
            x = x + self.model.embed_positions(positions[None])
        if self.model.embed_norm is not None:
            x = self.model.embed_norm(x)
        return x if self.described.embedding_factor == 1 else x * self.described.embedding_factor

    def _rotation(self, rotary: Rotary | None, known: dict[int, Tensor], length: int, device: torch.device) -> Tensor | None:
        """Return the table of a layer's rotary positions; layers that share them share the table of this pass."""
        if rotary is None:
            return None
        if id(rotary) not in known:
            positions, keys = self.shard.positions(length, device)
            size = rotary.dim if self.described.latent else self.described.head_dim
            known[id(rotary)] = rotation_of(rotary, size, positions, len(keys))
        return known[id(rotary)]

    def _score_tensors(self, block: Block, length: int, device: torch.device) -> Scores:
        """Return the tensors of a layer's rule, kept for the next pass: no step computes them, and no CUDA graph captures that."""
        rule = rule_of(self.described, block.kind)
        key = (rule, length, device)
        if key not in self._scores:
            self._scores[key] = make_scores(rule, self.shard, length, device, self.described.head_dim)
        return self._scores[key]

    def _document_scores(self, tokens: Tensor) -> Callable[[Block, int, torch.device], Scores]:
        """Return a function like `_score_tensors`, for this pass alone: documents differ from batch to batch."""
        ends = tokens == self.document_end
        documents, known = ends.cumsum(1) - ends.long(), dict[Rule, Scores]()

        def scores(block: Block, length: int, device: torch.device) -> Scores:
            rule = rule_of(self.described, block.kind)
            if rule not in known:
                known[rule] = make_scores(rule, self.shard, length, device, self.described.head_dim, documents)
            return known[rule]

        return scores


def build(config: Config, span: Span, shard: LocalShard, recompute: str) -> nn.Module:
    return DecoderModel(config, span, shard, recompute)
