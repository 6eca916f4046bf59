"""The types that llama.cpp's quantiser chooses for each tensor, and the resulting file sizes."""

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, weights
from meshwise.models.gguf.quantiser import BLOCKS, FILE_TYPES, more_bits
from support.serve_tables import GIB

LLAMA_8B = {
    "IQ1_S": 2.0042,
    "IQ1_M": 2.1460,
    "IQ2_XXS": 2.3824,
    "IQ2_XS": 2.5882,
    "IQ2_S": 2.7403,
    "IQ2_M": 2.9294,
    "IQ3_XS": 3.4977,
    "IQ3_S": 3.6606,
    "IQ3_M": 3.7628,
    "IQ4_XS": 4.4597,
    "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697,
    "Q2_K": 3.1593,
    "Q3_K_S": 3.6429,
    "Q3_K_M": 3.9960,
    "Q3_K_L": 4.2979,
    "Q4_K_S": 4.6672,
    "Q4_K_M": 4.8944,
    "Q5_K_S": 5.5704,
    "Q5_K_M": 5.7036,
    "Q6_K": 6.5633,
    "Q8_0": 8.5008,
    "F16": 16.0005,
}
"""Bits per weight of Llama 3.1 8B, the table in llama.cpp's tools/quantize/README.md, as remembered."""

FILES = {
    ("qwen2.5-7b", "Q4_K_M"): 4.36,
    ("qwen2.5-32b", "Q4_K_M"): 18.48,
    ("qwen2.5-72b", "Q4_K_M"): 44.15,  # rows of 29568 are no multiple of 256: ffn_down falls back to Q5_0 and Q8_0
    ("qwen3-8b", "Q4_K_M"): 4.68,
    ("qwen3-30b-a3b", "Q4_K_M"): 17.28,
    ("qwen3-30b-a3b", "Q8_0"): 30.25,
    ("gemma-2-9b", "Q4_K_M"): 5.36,
    ("gemma-3-4b", "Q4_K_M"): 2.31,
    ("gemma-3-12b", "Q4_K_M"): 6.79,
    ("gemma-3-27b", "Q4_K_M"): 15.40,
    ("phi-3-mini", "Q4_K_M"): 2.23,  # attn_qkv in one: Q5_K
    ("deepseek-v2-lite", "Q4_K_M"): 9.65,
    ("gpt-oss-20b", "MXFP4_MOE"): 11.27,
    ("gpt-oss-20b", "Q8_0"): 11.27,  # experts stay in MXFP4 in every file
    ("gpt-oss-20b", "F16"): 12.83,
    ("gpt-oss-120b", "MXFP4_MOE"): 59.02,
    ("llama-2-7b", "Q4_K_M"): 3.80,
    ("llama-3.1-405b", "Q4_K_M"): 226.37,
    ("llama-4-scout", "Q4_K_M"): 60.86,
    ("mistral-small-24b", "Q4_K_M"): 13.34,
    ("mistral-large-123b", "Q4_K_M"): 68.19,
    ("mixtral-8x22b", "Q4_K_M"): 79.71,
    ("phi-4", "Q4_K_M"): 8.43,
    ("gemma-2-27b", "Q4_K_M"): 15.50,
    ("qwen3-235b-a22b", "Q4_K_M"): 132.39,
    ("deepseek-r1", "Q8_0"): 664.29,
    ("granite-4-h-tiny", "Q4_K_M"): 3.94,
    ("starcoder2-15b", "Q4_K_M"): 9.18,
}
"""GiB that llama-bench prints for published files, as remembered."""


def test_blocks_are_those_of_the_gguf_package() -> None:
    assert {name: GGML_QUANT_SIZES[GGMLQuantizationType[name]] for name in BLOCKS} == BLOCKS


def test_file_types_are_those_of_the_gguf_package() -> None:
    theirs = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    assert set(FILE_TYPES) <= theirs
    assert set(FILE_TYPES.values()) <= set(BLOCKS)


@pytest.mark.parametrize("kind", LLAMA_8B)
def test_an_8b_has_the_bits_per_weight_that_llama_cpp_states(kind: str) -> None:
    assert weights(find_model("llama-3.1-8b"), FORMATS[kind]).bits_per_weight == pytest.approx(LLAMA_8B[kind], abs=6e-5)


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_other_families_have_the_sizes_of_published_files(name: str, kind: str) -> None:
    assert weights(find_model(name), FORMATS[kind]).bytes / GIB == pytest.approx(FILES[name, kind], abs=5.1e-3)


def test_an_importance_matrix_changes_the_types_of_ffn_down() -> None:
    """IQ3_XXS is 3.2548 bits with one (llama.cpp's README, as remembered); Q4_K_M does not care."""
    model = find_model("llama-3.1-8b")
    assert weights(model, FORMATS["IQ3_XXS"], imatrix=True).bits_per_weight == pytest.approx(3.2548, abs=6e-5)
    assert weights(model, FORMATS["IQ3_XXS"]).bits_per_weight > 3.3
    q4 = FORMATS["Q4_K_M"]
    assert weights(model, q4, imatrix=True) == weights(model, q4)


def types(name: str, kind: str) -> dict[str, str]:
    return {weight.name: weight.type for weight in weights(find_model(name), FORMATS[kind]).tensors}


def test_more_bits_go_to_the_first_and_last_eighth_and_every_third_layer_between() -> None:
    assert [i for i in range(32) if more_bits(i, 32)] == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    found = types("llama-3-8b", "Q4_K_M")
    for part in ("attn_v", "ffn_down"):
        assert [i for i in range(32) if found[f"blk.{i}.{part}.weight"] == "Q6_K"] == [i for i in range(32) if more_bits(i, 32)]
    assert (found["output.weight"], found["token_embd.weight"], found["blk.0.attn_norm.weight"]) == ("Q6_K", "Q4_K", "F32")


def test_value_matrices_of_a_70b_get_more_bits() -> None:
    assert types("llama-3-70b", "Q4_K_M")["blk.10.attn_v.weight"] == "Q5_K"
    assert types("llama-65b", "Q4_K_M")["blk.10.attn_v.weight"] == "Q4_K"  # 80 layers too, but a key head for every query head


def test_with_eight_experts_attention_gets_more_bits_and_the_router_stays_f32() -> None:
    found = types("mixtral-8x7b", "Q4_K_M")
    assert (found["blk.9.attn_v.weight"], found["blk.9.attn_k.weight"], found["blk.9.attn_output.weight"]) == (
        "Q8_0",
        "Q8_0",
        "Q5_K",
    )
    assert found["blk.9.ffn_gate_inp.weight"] == "F32"


def test_a_row_that_is_not_a_multiple_of_256_uses_blocks_of_32() -> None:
    """DeepSeek's key half has rows of 128; Qwen2.5 0.5B is 896 wide."""
    assert types("deepseek-v3", "Q4_K_M")["blk.5.attn_k_b.weight"] == "Q5_0"
    found = types("qwen2.5-0.5b", "Q4_K_M")
    assert (found["blk.5.attn_q.weight"], found["token_embd.weight"]) == ("Q5_0", "Q8_0")


def test_a_tied_embedding_has_the_type_of_the_head() -> None:
    assert types("gemma-3-4b", "Q4_K_M")["token_embd.weight"] == "Q6_K"
