"""Layers of pipeline stages: even, with the embedding and the head counted, or balanced by FLOPs."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwise.cost.layout import Layouts
from meshwise.cost.train.stages import layers_before, stage_layers
from meshwise.models.model import build
from support.every import check_every
from support.train_questions import question


def stages(layers: int, pp: int, framework: str) -> tuple[float, float]:
    """Layers of the fullest stage and of the last, in a model whose head is worth 4 of its layers.

    A layer of this Llama has 4 h h + 3 h f = 16 h h weights (f = 4 h); so a vocabulary of 64 h is worth 4.
    """
    width = 256
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 4 * width,
        "vocab_size": 64 * width,
    }
    q = replace(question("llama-debug", framework=framework), model=build(config, "headed", "tests"))
    middle, last = stage_layers(q, Layouts.of(pp=pp).as_floats())
    return float(middle[0]), float(last[0])


def test_layers_are_cut_into_stages() -> None:
    def check(layers: int, pp: int, framework: str, expected: tuple[int, int]) -> None:
        assert stages(layers, pp, framework) == expected

    check_every(
        check,
        [
            (16, 2, "nanotron", (10, 6)),  # balanced by FLOPs: (16 + 4) / 2 = 10, and 6 with the head's 4
            (16, 1, "nanotron", (16, 16)),
            (16, 4, "nanotron", (5, 1)),  # 20 / 4 = 5 each, the head being 4 of the last stage's
            (16, 2, "megatron", (8, 8)),
            (61, 16, "torchtitan", (4, 2)),  # 3 and the embedding, fourteen times 4, 2 and the head and a gap
            (70, 12, "megatron-deepspeed", (6, 5)),  # BLOOM: 72 = 12 x 6, of which the embedding and the head are one each
        ],
    )


@given(st.integers(1, 128), st.integers(1, 128), st.sampled_from(("nanotron", "megatron")))
def test_no_stage_has_more_layers_than_the_fullest_and_stages_hold_all_layers(layers: int, pp: int, framework: str) -> None:
    middle, last = stages(layers, pp, framework)
    assert last <= middle <= layers
    assert middle * (pp - 1) + max(last, 0) >= layers - (framework == "megatron")  # the first gives a place to the embedding


def test_layers_before_each_stage_match_blooms_stages() -> None:
    """70 layers over 12 stages, the embedding and the head counted as one each: 5, ten times 6, and 5."""
    q = question("bloom-176b", "jean-zay:48", "megatron-deepspeed")
    before = layers_before(q, Layouts.of(pp=12).as_floats(), np.arange(13.0))
    assert np.diff(before).tolist() == [5, *[6] * 10, 5]
