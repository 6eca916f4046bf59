"""Settings: layout rules with their numbers, and the JSON file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.workers.trainer.contract.models.registry import Sizes, sizes_of, unsupported
from meshwise.workers.trainer.contract.settings import Layout, Settings, TokenFile, broken_rules
from meshwise.workers.trainer.contract.stages import spans, stages_of_rank
from support.tiny_runs import MANY_HEADS as LLAMA
from support.tiny_runs import PLAIN


def test_settings_come_back_from_their_file(tmp_path: Path) -> None:
    for settings in (PLAIN, replace(PLAIN, data=(TokenFile("a.tokens", 64, 1000, 2),), text="a")):
        settings.write(tmp_path / "config.json")
        assert Settings.read(tmp_path / "config.json") == settings


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 4}, "tp (4) must divide the KV heads (2)"),
        ({"tp": 16}, "tp (16) must divide the heads (8)"),
        ({"cp": 3}, "tp x cp (1 x 3) x 2 must divide the sequence (16)"),
        ({"ep": 2}, "ep (2) above 1 needs a model with experts"),
        ({"dp_shard": 3}, "dp x micro-batch (3 x 1) must divide the batch (8)"),
        ({"pp": 8}, "pp x chunks (8 x 1) must be at most the layers (4)"),
        ({"pp": 2, "mbs": 8}, "pp (2) must divide the micro-batches (1)"),
        ({"vpp": 2}, "vpp (2) above 1 needs"),
        ({"pp": 2, "schedule": "interleaved"}, "schedule interleaved needs vpp above 1"),
        ({"schedule": "zbv"}, "schedule zbv needs pp above 1"),
        ({"pp": 2, "schedule": "zero-bubble", "recompute": "full"}, "needs recompute none"),
        ({"tp": 0}, "must be at least 1"),
    ],
)
def test_a_broken_rule_names_its_numbers(layout: dict[str, Any], words: str) -> None:
    assert any(words in rule for rule in broken_rules(replace(PLAIN, layout=Layout(**layout))))


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    assert broken_rules(replace(PLAIN, model=LLAMA | {"vocab_size": 100})) == [
        "the vocabulary (100) must hold the 256 bytes of the embedded text"
    ]


def test_ttt_is_not_cut_along_heads_or_the_sequence() -> None:
    ttt = LLAMA | {"model_type": "ttt", "mini_batch_size": 16}
    assert broken_rules(replace(PLAIN, model=ttt, layout=Layout(dp_shard=2, pp=2))) == []
    for layout in (Layout(tp=2), Layout(cp=2), Layout(recompute="selective")):
        assert any(
            "ttt layers process tokens in order" in rule for rule in broken_rules(replace(PLAIN, model=ttt, layout=layout))
        )
    assert broken_rules(replace(PLAIN, model=ttt, seq=24)) == []  # a last mini-batch need not be full


def test_a_layout_that_satisfies_every_rule_breaks_none() -> None:
    assert broken_rules(replace(PLAIN, layout=Layout(dp_shard=2, tp=2, pp=2, cp=2))) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "mamba2"}, "'mamba2'"),
        (
            {"model_type": "ttt", "ttt_layer_type": "cubic"},
            "ttt_layer_type 'cubic' is not supported; the trainer has linear and mlp",
        ),
        ({"model_type": "ttt", "share_qk": True}, "TTT-Linear and TTT-MLP without gate"),
        ({"hidden_size": 33, "num_attention_heads": 3}, "heads of 11"),
        ({"head_dim": 7}, "heads of 7 features: rotary positions rotate pairs"),
        ({"hidden_act": "relu2"}, "activation function 'relu2'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor of its rotary positions (yarn) is missing"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic'"),
        (
            {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
            "chooses 5 experts per token, but a layer has 4",
        ),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv"),
        ({"attention_dropout": 0.1}, "dropout"),
        ({"model_type": "gpt2", "activation_function": "relu"}, "activation function 'relu'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "scale_attn_weights false"),
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "apply_residual"),
    ],
)
def test_a_model_that_would_be_built_wrong_is_refused(keys: dict[str, Any], words: str) -> None:
    assert unsupported(LLAMA) == ""
    assert words in unsupported(LLAMA | keys)


@pytest.mark.parametrize(("layers", "stages"), [(4, 2), (7, 4), (5, 5), (30, 4)])
def test_stages_hold_every_layer_once_in_order_and_the_ends_are_no_longer_than_the_middle(layers: int, stages: int) -> None:
    found = spans(layers, stages)
    assert [i for span in found for i in span.layers] == list(range(layers))
    assert found[0].starts
    assert found[-1].ends
    lengths = [len(span.layers) for span in found]
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths[0], lengths[-1]) <= max(lengths[1:-1], default=lengths[0])


def test_a_v_begins_and_ends_on_the_first_rank() -> None:
    assert [stages_of_rank(Layout(pp=3, schedule="zbv"), rank) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]
    assert stages_of_rank(Layout(pp=2, vpp=2, schedule="interleaved"), 1) == [1, 3]


def test_bloom_s_older_keys_are_read() -> None:
    sizes = sizes_of({"model_type": "bloom", "n_embed": 64, "n_layer": 2, "num_attention_heads": 4, "vocab_size": 300})
    assert sizes == Sizes(hidden=64, layers=2, heads=4, kv_heads=4, ffn=256, vocab=300, tied=True)


def test_a_sequence_of_gpt_2_ends_where_its_learned_positions_do() -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 4, "n_head": 8, "n_positions": 31}
    assert sizes_of(gpt2) == Sizes(hidden=32, layers=4, heads=8, kv_heads=8, ffn=128, vocab=256, tied=True, positions=31)
    assert broken_rules(replace(PLAIN, model=gpt2, seq=31)) == []
    assert broken_rules(replace(PLAIN, model=gpt2, seq=32)) == ["the sequence (32) must be at most the learned positions (31)"]
    assert broken_rules(replace(PLAIN, model=gpt2, layout=Layout(tp=2))) == ["tp (2) must divide the learned positions (31)"]
