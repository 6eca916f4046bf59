"""Counts equal those of the model that transformers builds from the same config, and those that publishers state."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from meshwise.errors import UserError
from meshwise.models.find import values_of
from meshwise.models.model import Model, build
from support.every import check_every
from support.presets import PRESETS, preset
from support.small_configs import SMALL, small

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
PUBLISHED: dict[str, int] = json.loads((Path(__file__).parent / "published_params.json").read_text())["parameters"]


def reference(values: dict[str, Any]) -> Any:
    """Return the model that transformers builds from these keys, without memory for its weights."""
    with torch.device("meta"), no_init_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
        model.tie_weights()  # which is left out with the values of weights
        return model


def parameters(values: dict[str, Any]) -> int:
    return sum(weight.numel() for weight in reference(values).parameters())


def sampled() -> list[str]:
    """Return every preset that transformers builds as a causal model; of the two long series of one shape, the first and the last."""
    series = [[name for name in PRESETS if name.startswith(prefix)] for prefix in ("vtrain-", "megatron-")]
    left_out = {name for names in series for name in names[1:-1]}
    return [name for name in PRESETS if name not in left_out and preset(name).model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]


SAMPLED = sampled()


@pytest.mark.parametrize("model_type", sorted({preset(name).model_type for name in SAMPLED}))
def test_a_preset_has_the_parameters_of_the_model_transformers_builds(model_type: str) -> None:
    def check(name: str) -> None:
        values = values_of(PRESETS[name])
        for ours in ("meshwise", "quantization_config"):  # the first is our own key; the second needs a quantizer's library
            values.pop(ours, None)
        assert preset(name).params == parameters(values)

    check_every(check, ((name,) for name in SAMPLED if preset(name).model_type == model_type))


NEW_FALCON = {"new_decoder_architecture": True, "num_kv_heads": 2}
NO_EXPERTS = {"num_local_experts": 0, "num_experts_per_tok": 0}
HALF_WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((model_type, {}) for model_type in SMALL),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"head_dim": 16}),
    ("llama", {"tie_word_embeddings": True}),
    ("mistral", {"head_dim": 16, "sliding_window": 16}),
    ("mistral", {"num_attention_heads": 16, "num_key_value_heads": None}),
    ("qwen2", HALF_WINDOWED),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2", {"hidden_size": 64, "num_attention_heads": 32, "num_key_value_heads": None}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"head_dim": None}),
    ("qwen3", {"num_attention_heads": 32, "num_key_value_heads": None}),
    ("qwen3", HALF_WINDOWED),
    ("gemma", {"attention_bias": True}),
    ("gemma", {"head_dim": None}),
    ("gemma2", {"attention_bias": True}),
    ("gemma2", {"tie_word_embeddings": False}),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    ("gemma3_text", {"sliding_window_pattern": 2}),
    ("gemma3_text", {"attention_bias": True}),
    ("phi3", {"tie_word_embeddings": True}),
    ("phi3", {"sliding_window": 16}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("smollm3", {"attention_bias": True, "mlp_bias": True}),
    ("smollm3", {"tie_word_embeddings": False}),
    ("olmo2", {"attention_bias": True}),
    ("olmo2", {"tie_word_embeddings": True}),
    ("starcoder2", {"use_bias": False}),
    ("starcoder2", {"tie_word_embeddings": False}),
    ("gpt2", {"n_inner": 40}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("gpt_neox", {"attention_bias": False}),
    ("gpt_neox", {"tie_word_embeddings": True}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"word_embed_proj_dim": 16}),
    ("opt", {"word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    ("opt", {"enable_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("falcon", {"bias": True}),
    ("falcon", {"parallel_attn": False}),
    ("falcon", {"multi_query": False}),
    ("falcon", {"ffn_hidden_size": 40}),
    ("falcon", {"num_ln_in_parallel_attn": 2}),
    ("falcon", NEW_FALCON),
    ("falcon", NEW_FALCON | {"bias": True}),
    ("falcon", NEW_FALCON | {"num_ln_in_parallel_attn": 1}),
    ("falcon", NEW_FALCON | {"parallel_attn": False}),
    ("falcon", NEW_FALCON | {"parallel_attn": False, "num_ln_in_parallel_attn": 1}),
    ("bloom", {"tie_word_embeddings": False}),
    ("mpt", {"tie_word_embeddings": False}),
    ("mixtral", {"sliding_window": 16}),
    ("mixtral", {"head_dim": 16}),
    ("qwen2_moe", {"qkv_bias": False}),
    ("qwen2_moe", {"decoder_sparse_step": 2}),
    ("qwen2_moe", {"mlp_only_layers": [1]}),
    ("qwen3_moe", {"mlp_only_layers": [0, 2]}),
    ("qwen3_moe", {"decoder_sparse_step": 3, "mlp_only_layers": [2]}),
    ("qwen3_moe", {"attention_bias": True}),
    ("qwen3_moe", {"num_attention_heads": 8, "num_key_value_heads": None}),
    ("gpt_oss", {"attention_bias": False}),
    ("gpt_oss", {"head_dim": None}),
    ("gpt_oss", {"layer_types": ["full_attention"] * 4}),
    ("llama4_text", {"interleave_moe_layer_step": 2}),
    ("llama4_text", {"moe_layers": [1]}),
    ("llama4_text", {"moe_layers": []}),
    ("llama4_text", {"no_rope_layers": [1, 0, 0, 1]}),
    ("llama4_text", {"attention_bias": True, "tie_word_embeddings": True}),
    ("deepseek_v2", {"attention_bias": True}),
    ("deepseek_v2", {"mlp_bias": True}),
    ("deepseek_v2", {"first_k_dense_replace": 3}),
    ("deepseek_v3", {"attention_bias": True}),
    ("deepseek_v3", {"first_k_dense_replace": 0}),
    ("deepseek_v3", {"n_shared_experts": 1, "tie_word_embeddings": True}),
    ("mamba2", {"use_bias": True}),
    ("mamba2", {"use_conv_bias": False}),
    ("mamba2", {"conv_kernel": 3, "tie_word_embeddings": True}),
    ("mamba2", {"expand": 4, "num_heads": 8}),
    ("bamba", {"attn_layer_indices": None}),
    ("bamba", {"attention_bias": True, "mlp_bias": True}),
    ("bamba", {"mamba_proj_bias": True}),
    ("bamba", {"mamba_conv_bias": False}),
    ("bamba", {"mamba_d_head": "auto"}),
    ("granitemoehybrid", NO_EXPERTS),
    ("granitemoehybrid", NO_EXPERTS | {"mlp_bias": True}),
    ("granitemoehybrid", {"attention_bias": True, "mamba_proj_bias": True}),
    ("granitemoehybrid", {"tie_word_embeddings": True}),
    ("granitemoehybrid", {"layer_types": None, "layers_block_type": ["mamba", "attention"] * 2}),
    ("qwen3_next", {"attention_bias": True}),
    ("qwen3_next", {"full_attention_interval": 2}),
    ("qwen3_next", {"layer_types": ["full_attention", "linear_attention"] * 2}),
    ("qwen3_next", {"mlp_only_layers": [1]}),
    ("qwen3_next", {"decoder_sparse_step": 2, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize("model_type", SMALL)
def test_an_option_changes_parameters_and_windows_as_it_does_in_transformers(model_type: str) -> None:
    def check(options: dict[str, Any]) -> None:
        values = small(model_type, **options)
        model = build(values, model_type, "")
        assert model.params == parameters(values)
        assert windows(model) == reference_windows(values)

    check_every(check, ((options,) for kind, options in OPTIONS if kind == model_type))


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_a_null_q_lora_rank_means_queries_without_a_bottleneck(model_type: str) -> None:
    values = small(model_type) | {"q_lora_rank": None}  # as in DeepSeek-V2-Lite
    assert build(values, model_type, "").params == parameters(values)


NEEDED = {("ministral", "head_dim"), ("phi3", "pad_token_id"), ("smollm3", "pad_token_id")}
"""Keys without which transformers itself fails at these small sizes."""


@pytest.mark.parametrize("model_type", SMALL)
def test_an_omitted_key_is_refused_or_has_the_default_of_transformers(model_type: str) -> None:
    def check(key: str) -> None:
        values = small(model_type, **{key: None})
        model = build_or_refuse(values)
        if model is not None:
            assert model.params == parameters(values)
            assert windows(model) == reference_windows(values)

    check_every(check, ((key,) for key in SMALL[model_type] if (model_type, key) not in NEEDED))


def build_or_refuse(values: dict[str, Any]) -> Model | None:
    with suppress(UserError):
        return build(values, "config.json", "")
    return None


def windows(model: Model) -> list[int | None]:
    """Return the window of each layer; 0 is full attention, None is no attention."""
    found = {name: op.window for name, ops in model.blocks.items() for op in ops if op.kind == "attention"}
    return [next((found[block] for block in layer if block in found), None) for layer in model.layers]


def reference_windows(values: dict[str, Any]) -> list[int | None]:
    layers = DynamicCache(config=AutoConfig.for_model(**values)).layers
    recurrent = ["Linear" in type(layer).__name__ for layer in layers]
    return [None if state else getattr(layer, "sliding_window", 0) for layer, state in zip(layers, recurrent, strict=True)]


@pytest.mark.parametrize("model_type", SMALL)
def test_the_cache_is_as_large_as_the_one_transformers_fills(model_type: str) -> None:
    """After 40 tokens, more than the windows of 32; counted in elements."""
    values = small(model_type)
    model = build(values, model_type, "")
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values)).eval()
    with torch.no_grad():
        output: Any = network(torch.zeros(1, 40, dtype=torch.long), use_cache=True)
    cache = output["cache_params" if model_type == "mamba2" else "past_key_values"]
    kept = sum(part.numel() for layer in cache.layers for part in tensors(layer))
    # Between two steps transformers keeps one token less than the window, since the next token brings itself along.
    windowed = sum(op.count * op.cache for op in model.ops if 0 < op.window < 40)
    assert model.kv_bytes(40, 1) + model.state_bytes(1) == kept + windowed


def tensors(layer: object) -> list[torch.Tensor]:
    """Return keys, values, recurrent states and convolution tails; flags and lengths are single elements."""
    found: list[torch.Tensor] = []
    for value in vars(layer).values():
        items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        found += [item for item in items if isinstance(item, torch.Tensor) and item.numel() > 1]
    return found


def test_a_preset_has_the_published_number_of_parameters() -> None:
    def check(name: str, published: int) -> None:
        assert preset(name).params == published

    check_every(check, PUBLISHED.items())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("bloom-176b", 176_247_271_424),  # the model card of bigscience/bloom
        ("llama-3-8b", 8_030_261_248),  # the safetensors total of meta-llama/Meta-Llama-3-8B
        ("llama-3-70b", 70_553_706_496),  # the safetensors total of meta-llama/Meta-Llama-3-70B
        ("llama-125m", 50_257 * 768 + 12 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768) + 768),  # embedding, blocks, last norm: 123.6M
        ("ttt-linear-125m", 124_298_064),  # the paper's 125m TTT-Linear (arXiv:2407.04620) with a vocabulary of 50,257
    ],
)
def test_parameters_match_models_checked_by_hand(name: str, published: int) -> None:
    assert preset(name).params == published


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1"])
def test_deepseek_v3_is_published_with_its_router_corrections_which_are_not_trained(name: str) -> None:
    """The published 671,026,419,200 include the correction biases of the routers: one per expert, 58 layers x 256.

    They are nudged by the balance of the load and have no gradient, and transformers keeps them as buffers.
    """
    assert preset(name).params == 671_026_419_200 - 58 * 256
