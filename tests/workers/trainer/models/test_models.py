"""The trainer's models compute what transformers' compute from the same weights, and keep its names."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.registry import sizes_of
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
LLAMA: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
BLOOM: dict[str, Any] = {"vocab_size": 257, "hidden_size": 48, "n_layer": 2}
GPT2: dict[str, Any] = {"vocab_size": 257, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 96}
CASES: dict[str, Any] = {
    "grouped queries": transformers.LlamaConfig(**LLAMA, num_key_value_heads=2),
    "tied head": transformers.LlamaConfig(**LLAMA, num_key_value_heads=4, tie_word_embeddings=True),
    "Llama 3 positions": transformers.LlamaConfig(**LLAMA, num_key_value_heads=1, rope_parameters=LLAMA3),
    "biases and wide heads": transformers.LlamaConfig(**LLAMA, head_dim=32, attention_bias=True, mlp_bias=True),
    "BLOOM": transformers.BloomConfig(**BLOOM, n_head=4),
    "GPT-2": transformers.GPT2Config(**GPT2),
    "GPT-2 of another width, untied": transformers.GPT2Config(**GPT2, n_inner=96, tie_word_embeddings=False),
    "heads that are no power of two": transformers.BloomConfig(**BLOOM, n_head=6),
}


def reference(config: Any) -> nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():  # biases of zero and norms of one would hide what they do
        nn.init.normal_(parameter, std=0.1)
    return model


def whole(config: dict[str, Any]) -> nn.Module:
    layers = sizes_of(config).layers
    return build(config, Span(0, layers, layers))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = CASES[name]
    theirs = reference(config)
    save_file(_untied(theirs), tmp_path / "model.safetensors")
    ours = whole(config.to_dict())
    load([ours], tmp_path)
    tokens = torch.randint(0, 257, (2, 80))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_saved_weights_have_the_names_and_values_of_transformers(name: str, tmp_path: Path) -> None:
    config = CASES[name]
    theirs = reference(config)
    (tmp_path / "theirs").mkdir()
    save_file(_untied(theirs), tmp_path / "theirs" / "model.safetensors")
    ours = whole(config.to_dict())
    load([ours], tmp_path / "theirs")
    save([ours], tmp_path / "ours")
    kept, given = load_file(tmp_path / "ours" / "model.safetensors"), _untied(theirs)
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
@pytest.mark.parametrize("name", ["grouped queries", "BLOOM", "GPT-2"])
def test_a_block_compiles_as_one_graph(name: str, recompute: str) -> None:
    model: Any = build(CASES[name].to_dict(), Span(0, 2, 2), recompute=recompute)
    plain = model(torch.zeros((1, 8), dtype=torch.long))
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
