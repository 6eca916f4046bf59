"""A Model's counts agree with one another and with published numbers."""

import sys
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.model import Model, build, families
from meshwise.models.tensors import slots
from support.command import one_line
from support.gguf_files import GATED, KV_HEADS, QKVO, SIZES, norms, weights
from support.gguf_files import model as gguf_model
from support.small_configs import SMALL, small

model_types = st.sampled_from(sorted(SMALL))
contexts = st.integers(1, 2**20)


@cache
def of(model_type: str, **options: int) -> Model:
    return build(small(model_type, **options), model_type, "")


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.9e9),  # mistral.ai/news/mixtral-of-experts: "46.7B total parameters but only uses 12.9B"
        ("deepseek-v2", 21e9),  # arXiv:2405.04434, abstract
        ("deepseek-v3", 37e9),  # arXiv:2412.19437, abstract
        ("qwen3-30b-a3b", 3.3e9),  # its model card
        ("qwen3-235b-a22b", 22e9),  # its model card
        ("llama-4-scout", 17e9),  # its model card
        ("llama-4-maverick", 17e9),  # its model card
        ("granite-4-h-small", 9e9),  # its model card
    ],
)
def test_active_parameters_are_those_that_the_publisher_rounds(name: str, active: float) -> None:
    assert find_model(name).active_params == pytest.approx(active, rel=0.025)


@pytest.mark.parametrize(("name", "active"), [("gpt-oss-120b", 5.13e9), ("gpt-oss-20b", 3.61e9)])
def test_published_active_parameters_of_gpt_oss_omit_the_embedding(name: str, active: float) -> None:
    """The card of gpt-oss (arXiv:2508.10925, table 1) counts the head and leaves out the embedding."""
    model = find_model(name)
    assert model.active_params - model.decoder.vocab * model.decoder.hidden == pytest.approx(active, rel=0.002)


@given(st.integers(1, 300), st.integers(1, 300))
def test_active_parameters_are_exact_whatever_share_of_the_experts_is_used(one: int, other: int) -> None:
    active, number = sorted((one, other))
    model = of("mixtral", num_local_experts=number, num_experts_per_tok=active)
    idle = model.parts["experts"] // number * (number - active)
    assert model.active_params == model.params - idle


@pytest.mark.parametrize("name", SMALL)
def test_parts_add_up_and_active_parameters_never_exceed_all(name: str) -> None:
    model = of(name)
    assert sum(model.parts.values()) == model.params
    assert (model.active_params < model.params) == any(op.expert for op in model.ops)
    assert model.active_params <= model.params
    assert list(model.parts.values()) == sorted(model.parts.values(), reverse=True)


@pytest.mark.parametrize("name", SMALL)
def test_every_block_of_a_layer_has_its_ops_and_every_op_its_block(name: str) -> None:
    model = of(name)
    named = {block for layer in model.layers for block in layer}
    assert len(model.layers) == model.decoder.layers
    assert model.blocks.keys() == named | {"embedding", "head"}
    assert sum(len(ops) for ops in model.blocks.values()) == len(model.ops)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    # arXiv:2505.09343, table 1: KV cache per token in bf16
    [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.680), ("llama-3.1-405b", 516.096)],
)
def test_the_kv_cache_per_token_is_the_published_one(name: str, kilobytes: float) -> None:
    assert find_model(name).kv_bytes(1) == kilobytes * 1000


@pytest.mark.parametrize(("name", "giga"), [("deepseek-v2", 155), ("deepseek-v3", 250)])
def test_training_flops_per_token_are_the_published_ones(name: str, giga: int) -> None:
    """arXiv:2505.09343, table 2: per token in sequences of 4,096, half of the attention masked."""
    assert round(find_model(name).flops(1, 4096) / 1e9) == giga


def test_gpt_3_takes_the_training_flops_of_its_paper() -> None:
    """arXiv:2005.14165, table D.1: 3.14e23 for 300 billion tokens, as six per parameter and token."""
    assert find_model("gpt3-175b").flops_6n(300e9) == pytest.approx(3.14e23, rel=0.001)


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-145.6b", "korthikanti-530b"])
def test_flops_of_a_gpt_match_megatrons_formula(name: str) -> None:
    """arXiv:2104.04473, section 5.1, without recomputation: 72 B s l h^2 (1 + s / 6h + V / 12 l h), the masked half counted."""
    model = find_model(name)
    d, seq = model.decoder, 2048
    formula = 72 * d.layers * d.hidden**2 * (1 + seq / (6 * d.hidden) + d.vocab / (12 * d.layers * d.hidden))
    assert model.flops(1, seq, causal=False) == pytest.approx(formula, rel=1e-12)


@given(model_types, contexts, st.sampled_from([0.5, 1, 2, 4]))
def test_the_kv_cache_is_at_most_that_of_all_tokens(name: str, context: int, element: float) -> None:
    model = of(name)
    one = model.kv_bytes(1, element)
    assert one <= model.kv_bytes(context, element) <= context * one
    assert model.kv_bytes(context, element) == element * model.kv_bytes(context, 1)


@given(contexts, st.integers(1, 4096))
def test_a_window_on_every_layer_bounds_the_kv_cache(context: int, window: int) -> None:
    model = of("mistral", sliding_window=window)
    assert model.kv_bytes(context) == model.kv_bytes(min(context, window))


@given(contexts)
def test_only_the_layers_that_see_everything_grow_beyond_the_window(context: int) -> None:
    """Gemma 2: every other one of 4 layers; 2 x 3 heads x 8 x 2 bytes = 96 bytes per token and layer."""
    grown = of("gemma2").kv_bytes(32 + context) - of("gemma2").kv_bytes(32)
    assert grown == 2 * 96 * context


@pytest.mark.parametrize("name", ["mamba2-2.7b", "ttt-linear-125m", "ttt-mlp-1.3b"])
def test_a_recurrent_model_keeps_a_state_and_no_keys(name: str) -> None:
    model = find_model(name)
    assert model.kv_bytes(100_000) == 0
    assert model.state_bytes() > 0


def test_a_config_stores_no_bytes() -> None:
    assert find_model("gpt2").stored_bytes == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "lama"}, "unsupported architecture: no family reads model_type 'lama'; did you mean 'llama'"),
        ({"model_type": "nothing_known"}, "no family reads model_type 'nothing_known'; "),
        ({"model_type": "zzzz", "d_model": 8}, "keys found: d_model, model_type"),
        ({"hidden_size": 8}, "no 'model_type'; keys found: hidden_size"),
        ({}, "no 'model_type'; keys found: none"),
        ({"model_type": 7}, "no 'model_type'"),
        ({"text_config": 3}, "'text_config' is 3; expected a table"),
        ({"text_config": {}}, "text_config: no 'model_type'"),
    ],
)
def test_a_model_type_that_no_family_reads_is_refused_with_the_keys_found(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        build(values, "x.json", "")
    assert words in one_line(caught.value)
    assert str(caught.value).startswith("x.json: ")


ELSEWHERE = """
from dataclasses import replace
from meshwise.models.architecture import Architecture
from meshwise.models.families.blocks import Block, assemble, attentions, mlp
from meshwise.models.families.described import decoder_of
from meshwise.models.op import vector

model_types = frozenset({'elsewhere'})
gguf = (
    Architecture(
        name='away',
        model_types=('elsewhere',),
        norms=('norm_a', 'norm_b'),
        config=lambda metadata, tensors: {'num_key_value_heads': metadata['kv'], 'signs': 'blk.0.sign.weight' in tensors},
    ),
)
tensor_names = {'elsewhere.sign': 'sign'}

def read(config):
    d = decoder_of(config, 'llama')
    ffw = mlp(d, d.ffn)
    if config.flag('signs', True):
        ffw = Block(ffw.name, (*ffw.ops, vector('elsewhere.sign', 'ffw', d.hidden)))
    return assemble(d, attentions(d), [ffw] * d.layers)
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A third party's package with a family in one file and its entry point."""
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    package = tmp_path / "elsewhere-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: elsewhere\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[meshwise.families]\nelsewhere = elsewhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("elsewhere", None)


@pytest.mark.usefixtures("elsewhere")
def test_a_third_party_adds_a_family_with_an_entry_point() -> None:
    model = build(small("llama", signs=False) | {"model_type": "elsewhere"}, "x", "")
    assert (model.family, model.params) == ("elsewhere", of("llama").params)


@pytest.mark.usefixtures("elsewhere")
def test_a_family_brings_its_gguf_architecture_and_tensor_names_in_its_own_file(tmp_path: Path) -> None:
    layer = weights(norms("norm_a", "norm_b") | QKVO | GATED | norms("sign"))
    sizes = {key: value for key, value in SIZES.items() if key != "attention.head_count_kv"}
    file = gguf_model("away", sizes | {"kv": KV_HEADS}, layer)
    model = find_model(str(file.write(tmp_path / "m.gguf")))
    assert (model.family, model.params, model.notes) == ("elsewhere", file.elements, ())
    assert {slot.name: slot.elements for slot in slots(model, gguf=True)} == {k: prod(shape) for k, shape in file.tensors.items()}


def test_no_two_families_read_the_same_model_type() -> None:
    claimed = [kind for module in families().values() for kind in module.model_types]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) > SMALL.keys() | {"ttt"}


@pytest.mark.parametrize(
    ("model_type", "options", "kind"),
    [
        ("llama", {}, "rotary"),
        ("gpt_neox", {}, "rotary"),
        ("deepseek_v3", {}, "rotary"),
        ("gpt2", {}, "learned"),
        ("opt", {}, "learned"),
        ("bloom", {}, "alibi"),
        ("mpt", {}, "alibi"),
        ("falcon", {}, "rotary"),
        ("falcon", {"alibi": True}, "alibi"),
        ("mamba2", {}, "none"),
        ("bamba", {}, "rotary"),
        ("granitemoehybrid", {"position_embedding_type": None}, "none"),
        ("granitemoehybrid", {"position_embedding_type": "rope"}, "rotary"),
    ],
)
def test_a_decoder_says_how_it_knows_the_order_of_tokens(model_type: str, options: dict[str, Any], kind: str) -> None:
    assert build(small(model_type, **options), model_type, "").decoder.position_kind == kind
