"""FLOPs equal those that torch counts while the same model runs."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import causal_mask_function, chunked_causal_mask_function, sliding_window_causal_mask_function

from meshwise.models.model import Model, build
from meshwise.models.op import Op
from support.every import check_every
from support.small_configs import SMALL, small

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH, SEQ = 2, 16  # shorter than the windows of the small configs, because eager attention also computes masked keys
LINEAR_CHUNK = 64  # tokens per chunk of Qwen3-Next's reference code, which pads shorter sequences

Counts = dict[str, int]

COUNTED = [
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "starcoder2",
    "gpt2",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
    "mpt",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
]


def counted(values: dict[str, Any], *, seq: int = SEQ) -> tuple[Counts, Counts]:
    """Return FLOPs by operator as torch counts them over a whole batch: of the forward pass, and of both passes.

    The experts run one by one (`eager`), because the counter does not count grouped products. Everything else is counted: the
    embedding's weights need gradients, so the backward pass also covers the inputs of the first layer.
    """
    config = AutoConfig.for_model(**values)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").float()
    with FlopCounterMode(display=False) as counter:
        logits = network(torch.zeros(BATCH, seq, dtype=torch.long), use_cache=False).logits
        forward = by_operator(counter)
        logits.sum().backward()
    return forward, by_operator(counter)


def by_operator(counter: FlopCounterMode) -> Counts:
    return {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}


def assert_same_flops(values: dict[str, Any]) -> None:
    model = build(values, values["model_type"], "")
    for training, counts in zip((False, True), counted(values), strict=True):
        ours = model.flops(BATCH * SEQ, SEQ, causal=False, training=training)
        assert ours == pytest.approx(sum(counts.values()), rel=1e-12)


@pytest.mark.parametrize("model_type", COUNTED)
def test_flops_equal_those_torch_counts_forward_and_with_the_backward_pass(model_type: str) -> None:
    assert_same_flops(small(model_type))


def test_llama_4_costs_what_torch_counts_when_a_token_uses_every_expert() -> None:
    """The code in transformers multiplies every token by every expert, and those not chosen by a weight of 0."""
    assert_same_flops(small("llama4_text", num_local_experts=3, num_experts_per_tok=3, interleave_moe_layer_step=2))


@pytest.mark.parametrize("model_type", ["mamba2", "bamba", "qwen3_next"])
def test_the_projections_of_a_recurrent_model_cost_what_torch_counts(model_type: str) -> None:
    """`mm` is every projection, router and expert. The scans are left out: their reference code is mostly elementwise."""
    values = small(model_type)
    model = build(values, model_type, "")
    projections = sum(op.flops(LINEAR_CHUNK) for op in model.ops if op.kind == "matmul")
    operators, _ = counted(values, seq=LINEAR_CHUNK)
    assert BATCH * LINEAR_CHUNK * projections == pytest.approx(operators["aten.mm"], rel=1e-12)


def test_the_delta_rule_costs_what_torch_counts_and_two_triangular_solves() -> None:
    """With L the triangle of a chunk, L\\V and L\\K are solves, which the counter skips; we count them as products."""
    values = small("qwen3_next", layer_types=["linear_attention"] * 4)
    model = build(values, "qwen3_next", "")
    scans = sum(op.flops(LINEAR_CHUNK) for op in model.ops if op.kind == "scan")
    key, value, heads, layers = 8, 12, 4, 4
    solves = 2 * LINEAR_CHUNK * (key + value) * heads * layers
    operators, _ = counted(values, seq=LINEAR_CHUNK)
    assert BATCH * LINEAR_CHUNK * (scans - solves) == operators["aten.bmm"]


MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "all": (causal_mask_function, {"window": 0}),
    "window": (sliding_window_causal_mask_function(5), {"window": 5}),
    "chunk": (chunked_causal_mask_function(5, torch.zeros(1, dtype=torch.long)), {"window": 5, "chunked": True}),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_token_attends_to_the_keys_that_the_mask_of_transformers_leaves(kind: str) -> None:
    mask, options = MASKS[kind]
    attention = Op(name="scores", part="attention", kind="attention", n=1, k=1, **options)

    def check(seq: int) -> None:
        positions = torch.arange(seq)
        pairs = mask(0, 0, positions[:, None], positions[None, :]).expand(seq, seq).sum().item()
        assert attention.keys(seq) * seq == pytest.approx(pairs, rel=1e-12)

    check_every(check, ((seq,) for seq in range(1, 24)))


model_types = st.sampled_from(sorted(SMALL))
lengths = st.integers(1, 2**20)


@cache
def of(model_type: str) -> Model:
    return build(small(model_type), model_type, "")


@given(model_types, st.integers(1, 10**13), lengths, st.booleans(), st.booleans())
def test_twice_the_tokens_cost_twice_the_flops(name: str, tokens: int, seq: int, causal: bool, training: bool) -> None:
    model = of(name)
    once = model.flops(tokens, seq, causal=causal, training=training)
    assert model.flops(2 * tokens, seq, causal=causal, training=training) == pytest.approx(2 * once, rel=1e-12)


@given(model_types, lengths)
def test_a_causal_mask_never_costs_more(name: str, seq: int) -> None:
    model = of(name)
    assert model.flops(1, seq, causal=True) <= model.flops(1, seq, causal=False)


@given(model_types, lengths, lengths, st.booleans())
def test_a_longer_sequence_never_costs_less(name: str, one: int, other: int, causal: bool) -> None:
    model, (short, long) = of(name), sorted((one, other))
    assert model.flops(long, long, causal=causal) >= model.flops(short, short, causal=causal) * (1 - 1e-12)


@given(st.sampled_from(sorted(SMALL.keys() - {"llama4_text"})), lengths, lengths)
def test_a_token_of_a_longer_sequence_never_costs_less_unless_attention_is_chunked(name: str, one: int, other: int) -> None:
    """Llama 4 is left out: the first tokens of a second chunk look at fewer keys than the average of the first."""
    model, (short, long) = of(name), sorted((one, other))
    assert model.flops(1, long) >= model.flops(1, short) * (1 - 1e-12)


@given(model_types, lengths)
def test_training_is_three_forward_passes_and_parts_add_up(name: str, seq: int) -> None:
    model = of(name)
    forward = model.flops(1, seq, training=False)
    assert forward == pytest.approx(model.matmul_flops(1) + model.attention_flops(1, seq), rel=1e-12)
    assert model.flops(1, seq) == pytest.approx(3 * forward, rel=1e-12)
