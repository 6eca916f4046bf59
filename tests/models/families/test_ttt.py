"""TTT-Linear and TTT-MLP: parameters of the authors' 125m model by group, and the FLOPs of the model inside it."""

from typing import Any

import pytest

from meshwise.models.find import find_model, presets, values_of
from meshwise.models.model import Model, build

D, LAYERS = 768, 12


def of(**options: Any) -> Model:
    """The 125m model with some options changed."""
    return build(values_of(presets()["ttt-linear-125m"]) | options, "ttt", "")


@pytest.mark.parametrize(
    ("names", "published"),
    # The paper's 125m TTT-Linear (arXiv:2407.04620) as its PyTorch code builds it: 124,298,064 in all.
    [
        (["embedding"], 38_597_376),
        (["ttt.q", "ttt.k", "ttt.v", "ttt.out"], 28_311_552),
        (["ffw.gate", "ffw.up", "ffw.down"], 56_623_104),
        (["ttt.state"], 589_824 + 9_216),  # W1 and b1
        (["ttt.learning_rate"], 110_592 + 144),  # weight and bias
        (["ttt.token_idx"], 192),
        (["ttt.inner_norm"], 18_432),
        (["ttt.post_norm"], 18_432),
        (["layer_norm", "final_norm"], 19_200),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_each_group_of_parameters_is_the_published_one(names: list[str], published: int) -> None:
    assert sum(op.params * op.count for op in of().ops if op.name in names) == published


def test_the_groups_add_up_to_all_parameters() -> None:
    assert of().params == 124_298_064


def inner(model: Model) -> float:
    return sum(op.flops(1) for op in model.ops if op.kind == "scan")


def test_the_inner_model_takes_4_1_million_flops_per_token() -> None:
    """12 x 12 heads, f = 64, mini-batches of 16: 144 x 2 (3 x 64 x 64 + 2 x 16 x 64), in addition to 247 million dense."""
    model = of()
    assert inner(model) == 4_128_768
    assert model.matmul_flops(1) - inner(model) == pytest.approx(247e6, rel=0.002)


def test_an_inner_mlp_takes_nine_times_as_much() -> None:
    """144 x 2 (7 x 256 x 64 + 2 x 16 x 64 + 2 x 16 x 256): 36.0 million per token."""
    assert inner(of(ttt_layer_type="mlp")) == 35_979_264


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({"use_gate": True}, LAYERS * D * D),
        ({"share_qk": True}, LAYERS * (2 * D * (4 + 1) - D * D)),  # two convolutions of 4 taps and a bias for one projection
        ({"pre_conv": True}, LAYERS * (D * (4 + 1) + D)),  # a convolution and the norm before it
        ({"ttt_layer_type": "mlp"}, LAYERS * 12 * (8 * 64 * 64 + 5 * 64 - (64 * 64 + 64))),  # W1, b1, W2, b2 for W1, b1
        ({"mini_batch_size": 32}, LAYERS * 16),  # one learnt step per position in the mini-batch
        ({"tie_word_embeddings": False}, 50257 * D),
    ],
    ids=str,
)
def test_an_option_adds_the_weights_that_the_authors_code_adds(options: dict[str, Any], added: int) -> None:
    assert of(**options).params - of().params == added


def test_a_decoder_keeps_the_inner_weights_and_the_sum_of_their_gradients() -> None:
    """In float32: 12 x 12 heads x 2 x (64 x 64 + 64) x 4 bytes."""
    assert find_model("ttt-linear-125m").state_bytes(4) == 144 * 2 * 4160 * 4
