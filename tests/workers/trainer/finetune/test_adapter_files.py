"""Adapters in PEFT's format: every family's names, packing and order are those of PEFT, which computes the same logits with them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from meshwise.workers.trainer.contract.files.expected import config_json
from meshwise.workers.trainer.contract.files.safetensors import WeightsError, table
from meshwise.workers.trainer.contract.finetune import adapter_config
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.models.registry import sizes_of, tied_embedding
from meshwise.workers.trainer.finetune.adapter_files import adapter_tensors, load_adapter, write_adapter
from meshwise.workers.trainer.finetune.attach import attach, start_adapters
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.weights import init_random, save
from support.tiny_runs import DEEPSEEK, LLAMA

GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
BLOOM: dict[str, Any] = {"model_type": "bloom", "vocab_size": 256, "hidden_size": 32, "n_layer": 2, "n_head": 4}
SHORT = LLAMA | {"num_hidden_layers": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SHORT,
    "qwen2": SHORT | {"model_type": "qwen2"},
    "qwen3": SHORT | {"model_type": "qwen3", "head_dim": 16},
    "phi3": SHORT | {"model_type": "phi3", "pad_token_id": 0},
    "gemma2": SHORT | {"model_type": "gemma2", "head_dim": 16, "query_pre_attn_scalar": 20},
    "glm4": SHORT | {"model_type": "glm4", "head_dim": 8, "pad_token_id": 0},
    "starcoder2": SHORT | {"model_type": "starcoder2"},
    "gpt_neox": SHORT | {"model_type": "gpt_neox", "rotary_pct": 0.5, "num_key_value_heads": 4},
    "bloom": BLOOM,
    "gpt2": GPT2,
    "mixtral": SHORT | {"model_type": "mixtral", "num_local_experts": 4},
    "deepseek_v3": DEEPSEEK | {"num_hidden_layers": 2, "rope_interleave": True},
}


def finetuned(config: dict[str, Any], finetune: FinetuneMethod) -> Any:
    """Return a model with random weights and adapters."""
    layers = sizes_of(config).layers
    model: Any = build(config, Span(0, layers, layers))
    attach(model, finetune, half=False)
    init_random([model], 0, 0.1, tied_embedding(config))
    start_adapters([model], finetune, 0)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(len(name)))
        elif name.endswith("lora_magnitude"):
            parameter.data *= 1 + torch.rand(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    return model


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_computes_the_same_logits_with_a_saved_adapter(family: str, method: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    config = FAMILIES[family]
    finetune = FinetuneMethod(method=method, rank=4, alpha=8.0, targets=("all-linear",))
    plain = finetuned(config, FinetuneMethod(method="freeze"))
    assert save([plain], tmp_path, extra={"config.json": config_json(config, "float32")}) == ""
    ours = finetuned(config, finetune)
    tensors = adapter_tensors([ours])
    assert write_adapter(tensors, tmp_path / "adapter", config, finetune, str(tmp_path)) == ""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    if not sizes_of(config).experts:  # all-linear in PEFT names the same layers
        options = peft.LoraConfig(r=4, target_modules="all-linear", fan_in_fan_out=family == "gpt2")
        every = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), options)
        names = {name.replace(".default", "") for name, _ in every.named_parameters() if "lora_" in name}
        assert names == {name for name in tensors if "magnitude" not in name}
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = theirs(tokens).logits, ours(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert not torch.allclose(found, plain(tokens), atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_neox", "gpt2", "bloom"])
def test_a_saved_adapter_is_loaded_as_it_was_and_merges_into_weights_that_compute_the_same(family: str, tmp_path: Path) -> None:
    config, finetune = FAMILIES[family], FinetuneMethod(method="dora", rank=4, alpha=8.0, targets=("all-linear",))
    model = finetuned(config, finetune)
    assert write_adapter(adapter_tensors([model]), tmp_path / "adapter", config, finetune, "base") == ""
    again = finetuned(config, finetune)
    for parameter in again.parameters():
        if parameter.requires_grad:
            parameter.data.zero_()
    load_adapter([again], tmp_path / "adapter")
    for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert save([model], tmp_path / "merged", extra={"config.json": config_json(config, "float32")}) == ""
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager")
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(merged(tokens).logits, model(tokens), rtol=1e-4, atol=2e-5)


def test_the_expected_tensors_of_an_adapter_are_those_that_are_written(tmp_path: Path) -> None:
    for family, config in FAMILIES.items():
        finetune = FinetuneMethod(method="dora", rank=2, alpha=4.0, targets=("all-linear",))
        folder = tmp_path / family
        assert write_adapter(adapter_tensors([finetuned(config, finetune)]), folder, config, finetune, "base") == ""
        stored = {name: entry.shape for name, entry in table(folder / adapter_config.TENSORS).items()}
        assert stored == adapter_config.expected(config, finetune), family
        adapter_config.check(config, finetune, family, folder)
        read = adapter_config.read_finetune(folder)
        assert (read.method, read.rank, read.alpha) == ("dora", 2, 4.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"peft_type": "IA3"}, "expected peft_type LORA"),
        ({"r": 0}, "expected peft_type LORA with a rank"),
        ({"target_modules": []}, "target_modules must be a list"),
        ({"use_rslora": True}, "use_rslora is not supported"),
        ({"bias": "all"}, "bias is not supported"),
    ],
)
def test_an_adapter_that_the_trainer_cannot_continue_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    finetune = FinetuneMethod(method="lora", rank=2, alpha=4.0, targets=("q_proj",))
    values = json.loads(adapter_config.config_text(SHORT, finetune, "base")) | change
    (tmp_path / adapter_config.CONFIG).write_text(json.dumps(values))
    with pytest.raises(WeightsError, match=says):
        adapter_config.read_finetune(tmp_path)
