"""Shapes that do not fit together are refused, with the numbers that clash."""

from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.models.find import presets, values_of
from meshwise.models.model import build


@pytest.mark.parametrize(
    ("preset", "options", "words"),
    [
        ("llama-3-8b", {"num_attention_heads": 33, "num_key_value_heads": 11}, "4096 is not a multiple of 33"),
        ("llama-3-8b", {"num_key_value_heads": 5}, "32 is not a multiple of 5"),
        ("llama-3-8b", {"num_hidden_layers": 0}, "'num_hidden_layers' is 0; expected a whole number from 1"),
        ("llama-3-8b", {"hidden_size": 4096.5}, "'hidden_size' is 4096.5; expected a whole number"),
        ("llama-3-8b", {"attention_bias": 1}, "'attention_bias' is 1; expected true or false"),
        ("gpt2", {"n_head": 7}, "768 is not a multiple of 7"),
        ("gemma-2-9b", {"layer_types": ["sliding_attention"]}, "expected 42 entries"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "'num_experts_per_tok' is 9; expected a whole number from 1 to 8"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "expected a list of layers, each below 48"),
        ("deepseek-v3", {"num_experts_per_tok": 257}, "expected a whole number from 1 to 256"),
        ("mamba2-130m", {"num_heads": 23}, "23 heads of 64 do not make up the inner width 1536"),
        ("mamba2-130m", {"n_groups": 5}, "24 is not a multiple of 5"),
        ("bamba-9b", {"mamba_n_heads": 7}, "do not make up the inner width"),
        ("qwen3-next-80b-a3b", {"linear_num_key_heads": 5}, "32 is not a multiple of 5"),
        ("ttt-linear-125m", {"num_attention_heads": 7}, "768 is not a multiple of 7"),
        ("ttt-linear-125m", {"ttt_layer_type": "cubic"}, "'ttt_layer_type' is 'cubic'; expected one of linear, mlp"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_its_numbers(preset: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=r"^config\.json: ") as caught:
        build(values_of(presets()[preset]) | options, "config.json", "")
    assert words in str(caught.value)
