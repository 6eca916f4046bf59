"""Runs that train adapters: their losses are those of plain PyTorch, they resume exactly, and PEFT opens what they save."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader

from meshwise.workers.trainer.contract.files.expected import config_json
from meshwise.workers.trainer.contract.files.safetensors import table
from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.contract.recipe import rate_at
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.data.samples import batch_of
from meshwise.workers.trainer.finetune.adapter_files import adapter_tensors, write_adapter
from meshwise.workers.trainer.finetune.attach import attach, start_adapters
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.optimizer import BETAS
from meshwise.workers.trainer.weights import init_random, read, save
from support.nursery import Nursery
from support.tiny_runs import LLAMA, losses

STEPS = 20
FINETUNE = FinetuneMethod(method="lora", rank=4, alpha=8.0, targets=("all-linear",), merge=True)
RUN = Settings(
    name="tiny", model=LLAMA, layout=Layout(mbs=4), batch=8, seq=16, steps=STEPS, lr=1e-2, warmup=3, precision="fp32", finetune=FINETUNE,
    checkpoint_every=10,
)  # fmt: skip


class PlainLora(nn.Module):
    """LoRA as its paper writes it: y = x W^T + alpha / rank x (x A^T) B^T."""

    def __init__(self, base: nn.Linear, a: Tensor, b: Tensor, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.a, self.b = nn.Parameter(a.clone()), nn.Parameter(b.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.a.T @ self.b.T) * self.scale


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in HF's format, and an adapter beside them to start from."""
    folder = tmp_path_factory.mktemp("base")
    model: Any = build(LLAMA, Span(0, 4, 4))
    init_random([model], 3, 0.1)
    assert save([model], folder, extra={"config.json": config_json(LLAMA, "float32")}) == ""
    attach(model, FINETUNE, half=False)
    start_adapters([model], FINETUNE, 7)
    assert write_adapter(adapter_tensors([model]), folder / "adapter", LLAMA, FINETUNE, str(folder)) == ""
    return folder


@pytest.fixture(scope="module")
def run(base: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path, dict[int, float]]:
    out = tmp_path_factory.mktemp("finetuned") / "run"
    settings = replace(RUN, weights=str(base), finetune=replace(FINETUNE, adapter=str(base / "adapter")))
    return settings, out, losses(nursery, settings, out)


def plain(base: Path) -> tuple[Any, list[nn.Parameter]]:
    """Return transformers' Llama with plain LoRA beside every linear layer but the head, and the parameters that train."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").requires_grad_(False)
    stored = table(base / "adapter" / "adapter_model.safetensors")
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.Linear) and name != "lm_head":
            a, b = (read(stored[f"base_model.model.{name}.lora_{kind}.weight"]) for kind in "AB")
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, PlainLora(part, a, b, FINETUNE.scale))
    return model, [parameter for parameter in model.parameters() if parameter.requires_grad]


def test_losses_equal_plain_pytorch_over_twenty_steps(base: Path, run: tuple[Settings, Path, dict[int, float]]) -> None:
    settings, _, found = run
    model, parameters = plain(base)
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=BETAS, weight_decay=settings.weight_decay)
    expected: dict[int, float] = {}
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate_at(settings, step)
        tokens, targets = batch_of(settings, step)
        loss = nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip)
        optimizer.step()
        optimizer.zero_grad()
        expected[step] = float(loss.detach())
    assert expected[STEPS - 1] < expected[0] - 0.1
    assert max(abs(found[step] - expected[step]) for step in range(STEPS)) < 1e-5, (found, expected)


def test_a_run_resumes_exactly_from_a_checkpoint_that_holds_adapters_alone(
    run: tuple[Settings, Path, dict[int, float]], nursery: Nursery, tmp_path: Path
) -> None:
    settings, out, found = run
    shutil.copytree(out / "checkpoints" / "step-10", tmp_path / "run" / "checkpoints" / "step-10")
    kept = FileSystemReader(out / "checkpoints" / "step-10").read_metadata().state_dict_metadata
    assert {name.rpartition(".")[2] for name in kept} == {"lora_a", "lora_b"}
    again = losses(nursery, settings, tmp_path / "run", says="resuming after step 10")
    assert again == {step: found[step] for step in range(10, STEPS)}


def test_merged_weights_compute_what_peft_does_with_the_adapter(base: Path, run: tuple[Settings, Path, dict[int, float]]) -> None:
    _, out, _ = run
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    tokens, _ = batch_of(RUN, 0)
    merged: Any = transformers.AutoModelForCausalLM.from_pretrained(out / "weights")
    plain_base: Any = transformers.AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        changed = (merged(tokens).logits - plain_base(tokens).logits).abs().max()
        assert math.isfinite(changed)
        assert changed > 0.1
        peft = pytest.importorskip("peft", reason="PEFT is not installed")
        opened = peft.PeftModel.from_pretrained(plain_base, out / "adapter").eval()
        torch.testing.assert_close(opened(tokens).logits, merged(tokens).logits, rtol=1e-4, atol=2e-5)


def test_dora_has_the_gradients_of_peft(base: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    finetune = replace(FINETUNE, method="dora")
    model: Any = build(LLAMA, Span(0, 4, 4))
    attach(model, finetune, half=False)
    init_random([model], 3, 0.1)
    start_adapters([model], finetune, 7)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_b"):
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    assert write_adapter(adapter_tensors([model]), tmp_path, LLAMA, finetune, str(base)) == ""
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path, is_trainable=True)
    tokens, targets = batch_of(RUN, 0)
    ours = model(tokens, targets)
    loss = nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), targets.flatten())
    ours.backward()
    loss.backward()
    assert abs(float(ours.detach()) - float(loss.detach())) < 1e-5
    right = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        module, _, kind = name.rpartition(".")
        word = {"lora_a": "lora_A.default", "lora_b": "lora_B.default", "lora_magnitude": "lora_magnitude_vector.default"}[kind]
        expected = right[f"base_model.model.{module}.{word}.weight"]
        assert (parameter.grad - expected).norm() < 1e-4 * expected.norm(), name
