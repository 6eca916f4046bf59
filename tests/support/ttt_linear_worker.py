"""Run by test_linear_kernels.py with TRITON_INTERPRET=1: TTT-Linear's kernels on the CPU, relative errors as JSON."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "kernels"))
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.ttt.decode import Decoding
from meshwise.workers.trainer.models.ttt.fast_decode import FastDecoding
from ttt_kernels import NAMES, draw, errors, fast  # pyright: ignore


def off(ours: Tensor, true: Tensor) -> float:
    return float((ours.double() - true.double()).norm() / true.double().norm())


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


def compiled() -> dict[str, float]:
    """torch.compile takes the operation and its gradient as one graph, from their shapes alone."""
    given = [one.requires_grad_(i != 1) for i, one in enumerate(draw(1, 20, 1, 16, device="cpu"))]
    inputs = [one for one in given if one.requires_grad]
    true = torch.autograd.grad(fast(*given, 1.0).square().sum(), inputs)
    whole = torch.compile(fast, backend="aot_eager", fullgraph=True)
    ours = torch.autograd.grad(whole(*given, 1.0).square().sum(), inputs)
    return {name: off(a, b) for name, a, b in zip(NAMES[1:], ours, true, strict=True)}


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "float32 with a tail": lambda: errors(1, 40, 2, torch.float32, 16, "cpu"),
    "float32, less than a mini-batch": lambda: errors(2, 5, 1, torch.float32, 32, "cpu"),
    "float16": lambda: errors(1, 16, 1, torch.float16, 64, "cpu", draws=4),
    "decoding": decoding,
    "compiled": compiled,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    Path(sys.argv[1]).write_text(json.dumps({name: case() for name, case in CASES.items()}))
