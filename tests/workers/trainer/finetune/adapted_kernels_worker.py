"""Run with TRITON_INTERPRET=1: adapted layers whose products are joined, against the same layers one by one. Fails if one differs."""

from typing import Any

import torch
from torch import Tensor
from torch.library import opcheck

from meshwise.workers.trainer.contract.finetune.method import NF4_BLOCK, FinetuneMethod
from meshwise.workers.trainer.finetune.attach import attach, fuse_adapters, start_adapters
from meshwise.workers.trainer.models.base import Fusable, Span, build
from meshwise.workers.trainer.ops.adapted import adapted_gate, adapted_linear
from meshwise.workers.trainer.ops.nf4 import GROUP_BLOCKS, LEVELS, SCALE_STEPS, Quantized, dequantize, quantize
from meshwise.workers.trainer.ops.nf4_kernel import run_dequantize
from meshwise.workers.trainer.weights import init_random

dice = torch.Generator().manual_seed(0)
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "rms_norm_eps": 1e-5,
}  # fmt: skip


def finetuned(config: dict[str, Any], finetune: FinetuneMethod) -> Any:
    model: Any = build(config, Span(0, 2, 2))
    attach(model, finetune, half=False)
    init_random([model], 0, 0.1)
    start_adapters([model], finetune, 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.endswith(("lora_a", "magnitude")):
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1
    return model


def check_joined(config: dict[str, Any], finetune: FinetuneMethod, fused_parts: int) -> None:
    """Joined products have the loss and gradients of separate ones, and frozen weights have none."""
    plain, joined = (finetuned(config, finetune) for _ in range(2))
    fuse_adapters([joined])
    parts: list[Any] = [part for part in joined.modules() if isinstance(part, Fusable)]
    for part in parts:
        part.fuse()
    assert sum(part.fused and part.frozen for part in parts) == fused_parts
    tokens = torch.randint(100, (2, 12), generator=dice)  # the interpreter runs the programs of all tokens one by one
    losses = [model(tokens, tokens.roll(1)) for model in (plain, joined)]
    torch.testing.assert_close(losses[1], losses[0])
    for loss in losses:
        loss.backward()
    trained = 0
    for (name, one), (_, other) in zip(plain.named_parameters(), joined.named_parameters(), strict=True):
        if not one.requires_grad:
            assert other.grad is None, name
            continue
        trained += 1
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert (one.grad - other.grad).norm() <= 1e-5 * one.grad.norm(), (finetune, name, one.grad.norm())
    assert trained


def check_operations() -> None:
    """The shapes and gradients that each operation registers for torch.compile are right, with 16-bit weights, nf4 and no adapter."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice).requires_grad_()

    weight = drawn(24, 64).detach()
    for base in ([weight], list(quantize(weight))):
        opcheck(adapted_linear, (drawn(2, 5, 64), base, drawn(16, 64), drawn(24, 16)))
        opcheck(adapted_linear, (drawn(2, 5, 64), base, drawn(0, 64), drawn(24, 0)))
        for keep in (False, True):
            opcheck(adapted_gate, (drawn(2, 5, 128), base, drawn(16, 64), drawn(24, 16), "silu", keep))


def check_nf4() -> None:
    """The kernel writes what plain PyTorch computes, also where the last program is not full."""
    for rows, columns in ((3, 64), (40, 128), (33, 320)):
        weight = torch.randn(rows, columns, generator=dice)
        stored = quantize(weight)
        out = torch.empty(rows * columns)
        run_dequantize(stored, out, LEVELS, NF4_BLOCK, GROUP_BLOCKS, SCALE_STEPS)
        expected = dequantize(list(Quantized(*stored)), columns, torch.float32)
        torch.testing.assert_close(out.view(rows, columns), expected, rtol=1e-6, atol=1e-7)


ALL = ("all-linear",)
for method in ("lora", "dora", "qlora"):
    check_joined(LLAMA, FinetuneMethod(method=method, rank=4, alpha=8.0, targets=ALL), 4)
check_joined(LLAMA, FinetuneMethod(method="lora", rank=16, alpha=16.0, targets=("q_proj", "v_proj")), 4)
check_joined(LLAMA, FinetuneMethod(method="dora", rank=3, alpha=6.0, targets=("k_proj", "up_proj")), 4)
check_joined(LLAMA | {"model_type": "phi3"}, FinetuneMethod(method="dora", rank=4, alpha=8.0, targets=ALL), 4)
check_joined(LLAMA | {"model_type": "qwen2"}, FinetuneMethod(method="qlora", rank=4, alpha=8.0, targets=("mlp",)), 4)
check_joined(LLAMA | {"model_type": "gemma2", "head_dim": 16}, FinetuneMethod(method="lora", rank=4, alpha=8.0, targets=ALL), 4)
check_joined(LLAMA, FinetuneMethod(method="lora", rank=20, alpha=20.0, targets=("mlp",)), 4)
check_joined(LLAMA | {"intermediate_size": 144}, FinetuneMethod(method="lora", rank=64, alpha=64.0, targets=("up_proj",)), 4)
check_joined(
    LLAMA | {"hidden_size": 128, "intermediate_size": 160},
    FinetuneMethod(method="lora", rank=80, alpha=80.0, targets=("mlp",)),
    4,
)
check_joined(LLAMA, FinetuneMethod(method="freeze", frozen_layers=1), 2)
check_operations()
check_nf4()
