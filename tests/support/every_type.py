"""Every model type of the installed transformers: small configs, and the parameters of the models that transformers builds from them."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

CAUSAL = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
IMAGE_TEXT = tuple(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers", "layers")
FEW = 6

_QWEN4: dict[str, Any] = {
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 64,
    "indexer_compress_ratio": 8,
    "ple_layer_ids": [2, 3],
    "ngram_vocab_size_base": 1000,
    "eos_token_id": 1,
}
NEEDED: dict[str, dict[str, Any]] = {
    "qwen4_exp_text": _QWEN4,
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]], "num_layers": FEW},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 16, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"] * 2, "num_hidden_layers": FEW},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "zamba": {"num_hidden_layers": 12},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 3, "num_hidden_layers": FEW},
}
"""Keys without which transformers cannot build a type from its own defaults, or from so few layers."""

_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
NEEDED_WITHIN: dict[str, dict[str, Any]] = {
    "cohere_compass": {"rope_parameters": {"full_attention": _ROTARY, "sliding_attention": _ROTARY}},
    "deepseek_ocr2": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense", *["sparse"] * (FEW - 1)]},
    "diffusion_gemma": {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 704},
    "gemma3n": {"num_kv_shared_layers": 0},
    "hunyuan_vl": {"head_dim": 128},
    "mllama": {"cross_attention_layers": [1, 3]},
    "qwen4_exp": _QWEN4,
}
"""The same for the language model within a type."""
NEEDED_BESIDE: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 8196}},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "4/8"},
    "emu3": {"vocabulary_map": {"<image>": 8196, "<|extra_200|>": 8197}},
}
"""The same for what stands beside it."""

_TOWERS = re.compile(
    r"vision_(?!moe)|visual|audio|image|projector|connector|resampler|qformer|query_tokens|language_projection|abstractor|patch_embed|"
    r"perceiver|vqmodel|vq|vit|aligner|generation|mm_|embed_tokens_extend|adapter(?!_)|embed_vision|embed_audio|newline|sound|speech|"
    r"tower|merger|view_sep",
    re.IGNORECASE,
)
"""Names of parameters outside the language model."""


def small_values(model_type: str) -> dict[str, Any]:
    """Return the defaults of a type's config class as keys of a config.json, with few layers and without lists of one entry per layer."""
    kind = type(AutoConfig.for_model(model_type, **NEEDED.get(model_type, {})))
    values: dict[str, Any] = {"model_type": model_type}
    for field in dataclasses.fields(kind):
        if isinstance(field.default, int | float | str) and field.name not in _GENERAL:
            values[field.name] = min(field.default, FEW) if field.name in LAYERS else field.default
    return values | NEEDED.get(model_type, {})


_GENERAL = frozenset(
    {"dtype", "output_hidden_states", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "_name_or_path"}
)


def small_nested(model_type: str) -> dict[str, Any]:
    """Return the default config of a type with a language model within, with few layers of that one."""
    config = AutoConfig.for_model(model_type)
    values: dict[str, Any] = _without_nulls(config.to_dict()) | {"model_type": model_type}
    inner: dict[str, Any] = values.get("text_config") or values
    for key in LAYERS:
        if type(inner.get(key)) is int:
            inner[key] = min(inner[key], FEW)
    for key in [key for key, value in inner.items() if isinstance(value, list) and key not in ("moe_intermediate_size",)]:
        del inner[key]
    inner.pop("per_layer_config", None)
    inner |= NEEDED_WITHIN.get(model_type, {})
    return values | NEEDED_BESIDE.get(model_type, {})


def _without_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _without_nulls(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None}


def reference(values: Mapping[str, Any], *, image_text: bool = False) -> Any:
    """Return the model that transformers builds, without memory for its weights."""
    auto = AutoModelForImageTextToText if image_text else AutoModelForCausalLM
    with torch.device("meta"), no_init_weights():
        model = auto.from_config(AutoConfig.for_model(**values))
        model.tie_weights()  # which is left out with the values of weights
        return model


def cached_elements(model: Any, tokens: int) -> int | None:
    """Return the elements that a model keeps after `tokens` tokens, from the shapes of its cache; None where it keeps no such cache.

    Nothing is computed: the forward pass of a model without memory only propagates shapes.
    """
    with torch.no_grad(), torch.device("meta"):
        output = model.to(torch.bfloat16).eval()(torch.zeros(1, tokens, dtype=torch.long), use_cache=True)
    cache = output.get("past_key_values") or output.get("cache_params")
    layers = getattr(cache, "layers", None)
    return None if layers is None else sum(part.numel() for layer in layers for part in _tensors(layer))


def _tensors(layer: object) -> list[torch.Tensor]:
    """Return keys, values, recurrent states and convolution tails; flags and lengths are single elements."""
    found: list[torch.Tensor] = []
    for value in vars(layer).values():
        items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        found += [item for item in items if isinstance(item, torch.Tensor) and item.numel() > 1]
    return found


def parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


ENCODERS = {"pix2struct": "encoder.", "pp_formulanet": "model.encoder."}
"""Where the encoder of pictures has no name of its own."""


def language_parameters(model: Any) -> int:
    """Return the parameters outside towers and the layers that connect them."""
    tower = ENCODERS.get(model.config.model_type)
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if not _TOWERS.search(name) and not (tower and name.startswith(tower))
    )


def by_layer(model: Any) -> list[int]:
    """Return the parameters of each layer of the decoder."""
    found: Counter[int] = Counter()
    for name, weight in model.named_parameters():
        match = re.search(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.", name)
        if match:
            found[int(match[1])] += weight.numel()
    return [found[i] for i in range(max(found, default=-1) + 1)]
