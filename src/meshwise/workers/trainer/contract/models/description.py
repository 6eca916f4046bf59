"""The description of a decoder: everything in which the families of dense transformers and mixtures of experts differ. No torch.

A family maps the keys of its config.json onto this description; one model builds them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EMBEDDING = "model.embed_tokens.weight"  # the model's own name of the token embedding, which a tied head shares
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
"""HF's names of activation functions, and ours."""
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor", "max_position_embeddings"),
}
"""Ways to stretch rotary positions beyond the length a model was trained with, by HF's names, and the keys that each needs."""


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions (arXiv:2104.09864)."""

    dim: int  # features of a head that rotate: its first ones in HF's order
    theta: float = 10000.0
    interleaved: bool = False  # whether HF's files pair neighbouring features, instead of the first half with the second
    scaling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """HF's rope_parameters: rope_type and the numbers of that type."""

    @property
    def kind(self) -> str:
        return str(self.scaling.get("rope_type") or self.scaling.get("type") or "default")


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A feed-forward of many experts, of which a router chooses a few for each token (arXiv:1701.06538)."""

    count: int
    chosen: int  # experts of a token
    width: int  # width of an expert
    shared: int = 0  # width of the experts that every token passes; 0: there are none
    sigmoid: bool = False  # whether scores are sigmoids of the router's logits, instead of their softmax
    normed: bool = True  # whether the weights of a token's experts are divided by their sum
    factor: float = 1.0  # factor of the routed experts' output
    groups: int = 1
    kept_groups: int = 1  # groups of experts, and those that a token chooses from: the ones with the best two experts
    biased: bool = False
    """Whether a bias per expert, moved against its load after each step, takes part in the choice alone (arXiv:2408.15664)."""
    aux: float = 0.0  # coefficient of the loss that grows with the imbalance of a sequence (arXiv:2101.03961, arXiv:2412.19437)


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Queries, keys and values out of low-rank latents: multi-head latent attention (arXiv:2405.04434)."""

    query_rank: int  # rank of the queries' latent; 0: queries come from the activations
    rank: int  # rank of the latent of keys and values
    still: int  # features of a head that do not rotate
    rotated: int  # features of a head that rotate; all heads share those of the keys
    value: int  # features of a head's values


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Per-layer settings: positions, window, dense or experts."""

    rotary: Rotary | None = None
    window: int = 0  # tokens that a query sees, itself included; 0: all before it
    mixed: bool = False  # whether the feed-forward is one of experts


@dataclass(frozen=True, kw_only=True)
class Description:
    """A decoder. Sizes are those of the whole model, whatever part of it a rank holds."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    positions: int = 0  # learned positions, the longest sequence the model accepts; 0 if positions are computed
    alibi: bool = False  # whether scores fall with the distance, by a slope per head (arXiv:2108.12409)
    norm: str = "rms"  # rms, rms+1 (the stored gain is added to one) or layer (with a bias)
    eps: float = 1e-6
    norms: str = "before"  # whether a norm comes before attention and feed-forward, after them (before the sum), or both
    embedding_norm: bool = False
    qk_norm: str = ""  # head: queries and keys are normed per head; all: over all heads together
    parallel: bool = False  # whether the feed-forward reads the input of the layer, instead of the sum with attention's output
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    gated: bool = True
    activation: str = "silu"
    scale: float = 0.0  # factor of the scores; 0: the inverse square root of head_dim
    score_cap: float = 0.0  # scores become cap x tanh(score / cap); 0: they stay as they are
    logit_cap: float = 0.0
    embedding_factor: float = 1.0
    residual_factor: float = 1.0  # factor of the outputs of attention and feed-forward before they are added
    logit_factor: float = 1.0
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def score_factor(self) -> float:
        return self.scale or self.head_dim**-0.5

    @property
    def before(self) -> bool:
        return self.norms in ("before", "both")

    @property
    def after(self) -> bool:
        return self.norms in ("after", "both")

    @property
    def longest_window(self) -> int:
        return max((layer.window for layer in self.layers), default=0)
