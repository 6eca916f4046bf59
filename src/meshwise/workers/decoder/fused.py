"""Llama-like decoders with fused weights and few kernels, measured because HF's own layers are bound by CPU launch overhead."""

# pyright: basic
# torch and transformers describe their modules too loosely for strict types.
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from meshwise.workers.decoder import kernels

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # model_types whose layers are a norm, attention, a norm and a gated feed-forward
Tile = tuple[int, int, int]


@dataclass
class Layer:
    """Weights of one layer; projections of the same input are fused."""

    first_gain: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    head_gains: tuple[torch.Tensor, torch.Tensor] | None
    second_gain: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass
class FusedDecoder:
    """The weights and sizes of a fused decoder."""

    embedding: torch.Tensor
    layers: list[Layer]
    gain: torch.Tensor
    head: torch.Tensor
    angles: torch.Tensor  # cosines and sines of half a head, by position
    eps: float
    heads: int
    key_heads: int
    width: int  # features of a head
    tiles: dict[str, Tile] = field(default_factory=dict)
    """Tile of each product, if a single token is decoded by our kernels; empty: all products are the library's."""


def supports(config: Any) -> bool:
    """Return whether the fused decoder supports a config: no sliding windows, biases only as Qwen2 has them, and heads of a known size."""
    windows = getattr(config, "use_sliding_window", None) or (config.model_type == "mistral" and config.sliding_window)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    plain = config.hidden_act == "silu" and head & (head - 1) == 0 and head >= 16
    biased = getattr(config, "mlp_bias", False) or getattr(config, "attention_bias", False)
    return config.model_type in KINDS and not windows and plain and not biased


def convert(model: Any, positions: int) -> FusedDecoder:
    """Take the weights of an HF model layer by layer, so that they never exist twice. The model is unusable afterwards."""
    config, body = model.config, model.model
    layers = [_layer(block) for block in body.layers]
    rotary = body.rotary_emb
    turns = torch.arange(positions, device=rotary.inv_freq.device, dtype=torch.float32)[:, None] * rotary.inv_freq.float()
    angles = torch.cat([turns.cos(), turns.sin()], 1) * float(getattr(rotary, "attention_scaling", 1.0))
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return FusedDecoder(
        embedding=body.embed_tokens.weight.detach(), layers=layers, gain=body.norm.weight.detach(),
        head=model.lm_head.weight.detach(), angles=angles.contiguous(), eps=config.rms_norm_eps,
        heads=config.num_attention_heads, key_heads=config.num_key_value_heads, width=width,
    )  # fmt: skip


def _layer(block: Any) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases = [projection.bias.detach() for projection in projections if projection.bias is not None]
    normed = getattr(attention, "q_norm", None) is not None
    return Layer(
        first_gain=block.input_layernorm.weight.detach(), qkv=_take(projections),
        qkv_bias=torch.cat(biases) if biases else None, out=attention.o_proj.weight.detach(),
        head_gains=(attention.q_norm.weight.detach(), attention.k_norm.weight.detach()) if normed else None,
        second_gain=block.post_attention_layernorm.weight.detach(), gate_up=_take([mlp.gate_proj, mlp.up_proj]),
        down=mlp.down_proj.weight.detach(),
    )  # fmt: skip


def _take(projections: list[Any]) -> torch.Tensor:
    """Concatenate the weights of several projections, and free the originals."""
    fused = torch.cat([projection.weight.detach() for projection in projections])
    for projection in projections:
        projection.weight = None
    return fused


Cache = list[tuple[torch.Tensor, torch.Tensor]]


def decode(m: FusedDecoder, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, splits: int) -> torch.Tensor:
    """Return the logits of the next token of each sequence, given its last token and that token's position."""
    x = F.embedding(tokens, m.embedding)
    for layer, (keys, values) in zip(m.layers, cache, strict=True):
        if m.tiles and len(tokens) == 1:
            _decode_single(m, layer, x, positions, keys, values, splits)
            continue
        qkv = F.linear(kernels.norm(x, layer.first_gain, m.eps), layer.qkv, layer.qkv_bias)
        queries = kernels.rotate(qkv, m.angles, positions, keys, values, m.heads, layer.head_gains, m.eps)
        mixed = kernels.attend(queries, keys, values, positions, splits).flatten(1)
        x.addmm_(mixed, layer.out.t())
        both = F.linear(kernels.norm(x, layer.second_gain, m.eps), layer.gate_up)
        x.addmm_(kernels.swiglu(both), layer.down.t())
    if m.tiles and len(tokens) == 1:
        return kernels.matvec(m.head, x, gain=m.gain, eps=m.eps, tile=m.tiles["head"])
    return F.linear(kernels.norm(x, m.gain, m.eps), m.head)


def _decode_single(
    m: FusedDecoder, layer: Layer, x: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, splits: int
) -> None:
    """Compute one layer for a single token, with norms, gates and residual sums inside the products."""
    tiles = m.tiles
    qkv = kernels.matvec(layer.qkv, x, gain=layer.first_gain, bias=layer.qkv_bias, eps=m.eps, tile=tiles["qkv"])
    queries = kernels.rotate(qkv, m.angles, positions, keys, values, m.heads, layer.head_gains, m.eps)
    mixed = kernels.attend(queries, keys, values, positions, splits).flatten(1)
    kernels.matvec(layer.out, mixed, out=x, tile=tiles["out"])
    wide = kernels.matvec(layer.gate_up, x, gain=layer.second_gain, eps=m.eps, gated=True, tile=tiles["gate_up"])
    kernels.matvec(layer.down, wide, out=x, tile=tiles["down"])


def prefill(m: FusedDecoder, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Return the logits after prompts of b x p tokens; `positions` lists the positions of all tokens, prompt after prompt."""
    b, p = tokens.shape
    x = F.embedding(tokens.flatten(), m.embedding)
    for layer, (keys, values) in zip(m.layers, cache, strict=True):
        qkv = F.linear(kernels.norm(x, layer.first_gain, m.eps), layer.qkv, layer.qkv_bias)
        queries = kernels.rotate(qkv, m.angles, positions, keys, values, m.heads, layer.head_gains, m.eps)
        queries = queries.view(b, p, m.heads, m.width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(queries, keys[:, :, :p], values[:, :, :p], is_causal=True, enable_gqa=True)
        x.addmm_(mixed.transpose(1, 2).reshape(b * p, -1), layer.out.t())
        both = F.linear(kernels.norm(x, layer.second_gain, m.eps), layer.gate_up)
        x.addmm_(kernels.swiglu(both), layer.down.t())
    last = x.view(b, p, -1)[:, -1].contiguous()
    return F.linear(kernels.norm(last, m.gain, m.eps), m.head)


def fastest_tiles(m: FusedDecoder) -> dict[str, Tile]:
    """Find the fastest tile of every single-token product, timed over many layers so that no cache holds their weights."""
    layers = m.layers[:16]
    x = torch.randn(1, m.embedding.shape[1], device=m.head.device, dtype=m.head.dtype)
    wide = torch.randn(1, m.layers[0].down.shape[1], device=x.device, dtype=x.dtype)
    mixed = torch.randn(1, m.layers[0].out.shape[1], device=x.device, dtype=x.dtype)
    scratch = torch.zeros_like(x)
    products: dict[str, Any] = {
        "qkv": lambda layer, tile: kernels.matvec(layer.qkv, x, gain=layer.first_gain, bias=layer.qkv_bias, eps=m.eps, tile=tile),
        "out": lambda layer, tile: kernels.matvec(layer.out, mixed, out=scratch, tile=tile),
        "gate_up": lambda layer, tile: kernels.matvec(layer.gate_up, x, gain=layer.second_gain, eps=m.eps, gated=True, tile=tile),
        "down": lambda layer, tile: kernels.matvec(layer.down, wide, out=scratch, tile=tile),
        "head": lambda layer, tile: kernels.matvec(m.head, x, gain=m.gain, eps=m.eps, tile=tile),
    }
    return {name: min(kernels.TILES, key=lambda tile: _time(call, layers, tile)) for name, call in products.items()}


def _time(call: Any, layers: list[Layer], tile: Tile) -> float:
    """Return milliseconds of a CUDA graph that runs the product of each of these layers."""
    call(layers[0], tile)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            call(layer, tile)
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(3):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)
