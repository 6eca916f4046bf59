"""The trainer's models compute what transformers' compute from the same weights, and keep its names."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.ranks.faults import TrainingError
from meshwise.workers.trainer.weights import load, save

LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i / 4 for i in range(8)],
}
BLOOM: dict[str, Any] = {"vocab_size": 257, "hidden_size": 48, "n_layer": 2}
GPT2: dict[str, Any] = {"vocab_size": 257, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}


def tiny(kind: str, **more: Any) -> Any:
    """Return transformers' config of a small model of this class."""
    sizes: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pad_token_id": 0,
    }
    return getattr(transformers, f"{kind}Config")(**(sizes | more))


DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
GROUPED = {"num_key_value_heads": 2}
CASES: dict[str, Any] = {
    "grouped queries": tiny("Llama", **GROUPED),
    "tied head": tiny("Llama", num_key_value_heads=4, tie_word_embeddings=True),
    "Llama 3 positions": tiny("Llama", num_key_value_heads=1, rope_parameters=LLAMA3),
    "YaRN": tiny("Llama", rope_parameters=YARN, max_position_embeddings=128),
    "linear positions": tiny("Llama", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
    "biases and wide heads": tiny("Llama", head_dim=32, attention_bias=True, mlp_bias=True),
    "Mistral with a window": tiny("Mistral", **GROUPED, sliding_window=24),
    "Qwen 2": tiny("Qwen2", **GROUPED),
    "Qwen 2 with windows": tiny("Qwen2", **GROUPED, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "Qwen 3": tiny("Qwen3", **GROUPED, head_dim=32),
    "Phi 3": tiny("Phi3", **GROUPED),
    "Phi 3, part of a head, window": tiny(
        "Phi3",
        **GROUPED,
        sliding_window=30,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
    ),
    "Phi 3, long positions": tiny("Phi3", rope_parameters=LONG, max_position_embeddings=128, original_max_position_embeddings=64),
    "OLMo 2": tiny("Olmo2", **GROUPED),
    "Gemma 2": tiny("Gemma2", **GROUPED, num_hidden_layers=3, head_dim=32, sliding_window=24, query_pre_attn_scalar=20),
    "Gemma 3": tiny("Gemma3Text", **GROUPED, num_hidden_layers=7, head_dim=32, sliding_window=24),
    "SmolLM 3": tiny("SmolLM3", **GROUPED, num_hidden_layers=5),
    "Granite": tiny(
        "Granite", **GROUPED, embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.15, logits_scaling=8.0
    ),
    "GLM 4": tiny("Glm4", **GROUPED, head_dim=16),
    "StarCoder 2": tiny("Starcoder2", **GROUPED, sliding_window=24),
    "GPT-NeoX": tiny("GPTNeoX"),
    "GPT-NeoX, one after the other": tiny("GPTNeoX", use_parallel_residual=False),
    "Mixtral": tiny("Mixtral", **GROUPED, num_local_experts=4),
    "Qwen 3 with experts": tiny(
        "Qwen3Moe", **GROUPED, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True
    ),
    "Qwen 3, experts in every other layer": tiny(
        "Qwen3Moe", **GROUPED, head_dim=32, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40, decoder_sparse_step=2
    ),
    "OLMoE": tiny("Olmoe", **GROUPED, num_experts=8, num_experts_per_tok=3),
    "DeepSeek V3": tiny("DeepseekV3", **DEEPSEEK),
    "DeepSeek V3, no latent queries, YaRN": tiny(
        "DeepseekV3",
        **(DEEPSEEK | {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
        rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "BLOOM": transformers.BloomConfig(**BLOOM, n_head=4),
    "GPT-2": transformers.GPT2Config(**GPT2),
    "GPT-2 of another width, untied": transformers.GPT2Config(**GPT2, n_inner=96, tie_word_embeddings=False),
    "heads that are no power of two": transformers.BloomConfig(**BLOOM, n_head=6),
}


def reference(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():  # biases of zero and norms of one would hide what they do
        nn.init.normal_(parameter, std=0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            nn.init.normal_(buffer, std=0.1)
    return model


def whole(config: dict[str, Any]) -> nn.Module:
    layers = sizes_of(config).layers
    return build(config, Span(0, layers, layers))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = CASES[name]
    theirs = reference(config)
    theirs.save_pretrained(tmp_path)
    ours = whole(config.to_dict())
    load([ours], tmp_path)
    tokens = torch.randint(0, 257, (2, 80))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_saved_weights_have_the_names_and_values_of_transformers(name: str, tmp_path: Path) -> None:
    config = CASES[name]
    theirs = reference(config)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = whole(config.to_dict())
    load([ours], tmp_path / "theirs")
    save([ours], tmp_path / "ours")
    kept, given = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "theirs"))
    assert kept.keys() == given.keys()
    for key, weight in given.items():
        assert torch.equal(kept[key], weight), key


@pytest.mark.parametrize("name", ["BLOOM", "GPT-2"])
def test_files_that_leave_out_the_name_of_the_trunk_are_read_too(name: str, tmp_path: Path) -> None:
    """As the hub's gpt2 and bloom-560m do."""
    theirs = reference(CASES[name])
    save_file(
        {key.removeprefix("transformer."): weight for key, weight in _untied(theirs).items()}, tmp_path / "model.safetensors"
    )
    ours = whole(CASES[name].to_dict())
    load([ours], tmp_path)
    tokens = torch.randint(0, 257, (1, 8))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def _untied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's tracer warns itself
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["grouped queries", "OLMo 2", "Gemma 2", "GLM 4", "GPT-NeoX", "BLOOM", "GPT-2"])
def test_a_block_compiles_as_one_graph(name: str, recompute: str) -> None:
    config = CASES[name].to_dict()
    model: Any = build(config, Span(0, sizes_of(config).layers, sizes_of(config).layers), recompute=recompute)
    plain = model(torch.zeros((1, 8), dtype=torch.long))
    torch._dynamo.reset()  # every family compiles the same functions, and torch limits how often
    for block in model.blocks():
        block.compile(backend="eager", fullgraph=True)  # fullgraph: a break is an error
    torch.testing.assert_close(model(torch.zeros((1, 8), dtype=torch.long)), plain)


def test_a_file_without_a_weight_is_refused_by_name(tmp_path: Path) -> None:
    config = CASES["BLOOM"]
    weights = _untied(reference(config))
    del weights["transformer.ln_f.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(TrainingError, match=r"transformer\.ln_f\.bias"):
        load([whole(config.to_dict())], tmp_path)
