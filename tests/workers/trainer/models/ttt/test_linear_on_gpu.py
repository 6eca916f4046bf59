"""The TTT-Linear kernels on a GPU against the float64 loop; skipped without a GPU."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.ttt.dispatch import use_kernels

sys.path.append(str(Path(__file__).parents[5] / "benchmarks" / "kernels"))

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SHAPES = [(1, 4096, 2), (64, 48, 2), (3, 1, 2), (2, 100, 12), (4, 333, 12), (2, 512, 12)]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("batch", "seq", "heads"), SHAPES)
def test_outputs_and_all_gradients(batch: int, seq: int, heads: int, dtype: torch.dtype, limit: float) -> None:
    from ttt_kernels import DRAWS, errors  # pyright: ignore

    assert all(off < limit for off in errors(batch, seq, heads, dtype, draws=DRAWS[dtype]).values())


@pytest.mark.parametrize(("dtype", "head", "tokens"), [(torch.float64, 64, 16), (torch.float32, 48, 16), (torch.float32, 64, 8)])
def test_the_reason_for_not_using_the_kernels_is_logged_once(
    dtype: torch.dtype, head: int, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    use_kernels.cache_clear()
    device = torch.device("cuda", 0)
    assert [use_kernels(device, dtype, head, tokens) for _ in range(3)] == [False] * 3
    assert caplog.text.count("TTT layers run in plain PyTorch") == 1


def test_a_model_with_kernels_is_the_model_without_them() -> None:
    config: dict[str, Any] = {
        "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 2, "mini_batch_size": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = build(config, Span(0, 2, 2))
        tokens = torch.randint(0, 256, (2, 70))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    fast = model(tokens)
    assert all(block.seq_modeling_block.fast for block in model.model.layers.values())
    for block in model.model.layers.values():
        block.seq_modeling_block.limits = None
    torch.testing.assert_close(fast, model(tokens), rtol=1e-4, atol=1e-4)
