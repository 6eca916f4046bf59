"""The model of a row: named, or built from the sizes that it states."""

import json
from pathlib import Path

import pytest

from meshwise.models.find import find_model
from support.every import check_every
from support.measured_rows import built_in, read, skipped

BLANK = dict.fromkeys(("n_layers", "d_model", "n_heads", "vocab"), "")


def test_the_size_tells_a_gated_model_and_a_tied_head_apart() -> None:
    used, _ = built_in("nanotron_h100_small")
    sizes = {case.model.decoder.hidden: (case.model.decoder.tied, case.model.params / 1e9) for case in used}
    assert sizes[2048] == (True, pytest.approx(1.34, abs=0.005))  # the figures of the playbook
    assert sizes[4096] == (False, pytest.approx(8.86, abs=0.005))


def test_a_model_without_sizes_is_the_preset_of_that_name(tmp_path: Path) -> None:
    blank = dict.fromkeys(("n_layers", "d_model", "n_heads", "vocab"), "")
    (case,) = read(tmp_path, blank | {"model": "Llama-3-8B"})
    assert case.model.params == 8_030_261_248  # meta-llama/Meta-Llama-3-8B


def test_a_model_is_found_inside_a_longer_name(tmp_path: Path) -> None:
    def check(text: str, preset: str) -> None:
        (case,) = read(tmp_path, BLANK | {"model": text})
        assert case.model.params == find_model(preset).params

    check_every(
        check,
        [
            ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
            ("DeepSeek-V3", "deepseek-v3"),
            ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
            ("LLAMA3-70B", "llama-3-70b"),
            ("Llama-3.1-405B", "llama-3.1-405b"),
            ("Mixtral-8x7B", "mixtral-8x7b"),
        ],
    )


def test_a_config_file_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 64,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    (case,) = read(tmp_path, BLANK | {"model": str(path)})
    assert (case.model.decoder.layers, case.model.decoder.hidden) == (3, 256)


def test_a_named_model_with_other_sizes_is_built_from_its_sizes(tmp_path: Path) -> None:
    """A table may call 8 layers of Llama 3 8B by its name: the sizes that are stated count."""
    (case,) = read(
        tmp_path, {"model": "Llama-3-8B", "n_layers": "8", "d_model": "4096", "n_heads": "32", "n_kv_heads": "8", "d_ff": "14336"}
    )
    assert case.model.decoder.layers == 8
    (whole,) = read(tmp_path, {"model": "Llama-3-8B", "n_layers": "32", "d_model": "4096", "n_heads": "32", "vocab": "128256"})
    assert whole.model.params == find_model("llama-3-8b").params


def test_an_unknown_model_without_sizes_is_skipped_by_its_name(tmp_path: Path) -> None:
    assert skipped(tmp_path, BLANK | {"model": "Banana-7B"}) == "model 'Banana-7B' is unknown, and d_model is not stated"


def test_a_head_size_of_its_own_is_read(tmp_path: Path) -> None:
    """16 heads of 256 are twice as wide as 2048: queries have 4096 outputs."""
    (case,) = read(tmp_path, {"head_dim": "256", "d_ff": "8192"})
    assert case.model.decoder.head_dim == 256
    (query,) = [op for op in case.model.ops if op.name == "attention.q"]
    assert (query.n, query.k) == (4096, 2048)


@pytest.mark.parametrize(("gated", "products"), [("yes", 3), ("no", 2)])
def test_a_row_may_say_whether_the_feed_forward_layer_has_a_gate(tmp_path: Path, gated: str, products: int) -> None:
    (case,) = read(tmp_path, {"gated": gated, "d_ff": "8192", "n_kv_heads": "8"})
    assert sum(op.part == "ffw" and op.kind == "matmul" for op in case.model.ops) == products


def test_a_mixture_is_built_from_its_columns(tmp_path: Path) -> None:
    """24 layers of 64 experts 1024 wide, 6 a token, and 2 that all tokens use: 3 x 2048 x 1024 weights each."""
    mixture = {"n_experts": "64", "top_k": "6", "d_expert": "1024", "shared_experts": "2", "d_ff": "8192", "ep": "8"}
    (case,) = read(tmp_path, mixture)
    experts = sum(op.params * op.count for op in case.model.ops if op.expert)
    assert experts == 24 * 64 * 3 * 2048 * 1024
    shared = sum(op.params * op.count for op in case.model.ops if op.name.startswith("shared") and op.part == "ffw")
    assert shared == 24 * 2 * 3 * 2048 * 1024
    idle = case.model.params - case.model.active_params
    assert idle == pytest.approx(experts * 58 / 64, rel=1e-3)
    assert case.layout["ep"] == 8


def test_experts_are_as_wide_as_the_feed_forward_layer_where_their_width_is_not_stated(tmp_path: Path) -> None:
    (case,) = read(tmp_path, {"n_experts": "8", "top_k": "2", "d_ff": "4096"})
    assert sum(op.params * op.count for op in case.model.ops if op.expert) == 24 * 8 * 3 * 2048 * 4096
