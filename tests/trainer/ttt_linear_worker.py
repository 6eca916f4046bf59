"""Run by test_ttt_linear_kernels.py with TRITON_INTERPRET=1: the kernels on the CPU. Prints, as JSON, how far off each result is."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from meshwise.trainer.models import Span, build
from meshwise.trainer.models.ttt.decode import Decoding
from meshwise.trainer.models.ttt.fast_decode import FastDecoding
from ttt_kernels import NAMES, draw, fast, gradients, plain  # pyright: ignore


def off(ours: Tensor, true: Tensor) -> float:
    return float((ours.double() - true.double()).norm() / true.double().norm())


def layer(batch: int, seq: int, heads: int, size: int, dtype: torch.dtype) -> dict[str, float]:
    given = draw(batch, seq, heads, size, device="cpu")
    given[0] = given[0].to(dtype)
    true = gradients(plain, given, torch.float64, torch.float64)
    ours = gradients(fast, given, dtype, torch.float32)
    return {name: off(a, b) for name, a, b in zip(NAMES, ours, true, strict=True)}


def decoding() -> dict[str, float]:
    """Prompts with and without a tail by the kernels, then tokens one by one, against the plain decoder."""
    config: dict[str, Any] = {
        "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 1, "mini_batch_size": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    model = build(config, Span(0, 1, 1))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.randint(0, 64, (1, 36))
    found: dict[str, float] = {}
    for length in (16, 30):
        own, true = FastDecoding(model, dtype=torch.float32), Decoding(model)  # pyright: ignore
        for block in own.layers:
            block.seq_modeling_block.fast = True
        logits = own.prompt(tokens[:, :length])
        for block in own.layers:
            block.seq_modeling_block.fast = False
        found[f"prompt of {length}"] = off(logits, true.prompt(tokens[:, :length]))
        found[f"steps after {length}"] = max(off(own.step(tokens[:, i]), true.step(tokens[:, i])) for i in range(length, 36, 2))
    return found


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "float32 with a tail": lambda: layer(1, 40, 2, 16, torch.float32),
    "float32, less than a mini-batch": lambda: layer(2, 5, 1, 32, torch.float32),
    "float16": lambda: layer(1, 16, 1, 64, torch.float16),
    "decoding": decoding,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({name: case() for name, case in CASES.items()}))
