"""Weight formats: their names, their true bits per weight, and the bytes that a token reads."""

import re
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS, as_gguf, find_format, format_names, read, split_model_name, weights
from support.command import one_line
from support.every import check_every
from support.gguf_files import SMALL_FILES, Gguf
from support.serve_tables import GIB, model, rows, stored


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        split_model_name(text)
    return one_line(caught.value)


@pytest.mark.parametrize("text", ["llama-3.3-70b:q4_k_m", "llama-3.3-70b:Q4_K_M", "llama-3.3-70b:q4-k-m", "llama-3.3-70b:Q4KM"])
def test_a_quantization_after_a_colon_is_read_in_any_case(text: str) -> None:
    assert split_model_name(text) == ("llama-3.3-70b", FORMATS["Q4_K_M"])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("awq", "awq"),
        ("int4", "awq"),
        ("fp8", "fp8"),
        ("NVFP4", "nvfp4"),
        ("q5_k", "Q5_K_M"),
        ("bf16", "bf16"),
        ("gguf-bf16", "BF16"),
    ],
)
def test_common_spellings_of_formats_are_known(name: str, own: str) -> None:
    assert split_model_name(f"org/model:{name}") == ("org/model", FORMATS[own])


@pytest.mark.parametrize("text", ["llama-3.3-70b", "org/model", "C:\\models\\x.gguf", "./a:b/x.gguf"])
def test_text_without_a_quantization_is_only_a_model(text: str) -> None:
    assert split_model_name(text) == (text, None)


@pytest.mark.parametrize(
    ("tag", "model_name", "own"),
    [
        ("llama3.3:70b", "llama-3.3-70b", ""),  # without a format: the engine's usual one
        ("qwen2.5:7b-instruct-q4_K_M", "qwen2.5-7b", "Q4_K_M"),
        ("llama2:13b-chat-fp16", "llama-2-13b", "fp16"),
        ("gemma3:27b-it-qat", "gemma-3-27b", "Q4_0"),
    ],
)
def test_an_ollama_tag_is_a_preset_and_its_format(tag: str, model_name: str, own: str) -> None:
    assert split_model_name(tag) == (model_name, FORMATS.get(own))


def test_an_ollama_tag_without_a_preset_is_explained() -> None:
    message = refusal("deepseek-r1:9b")
    assert (
        "'deepseek-r1:9b' looks like an Ollama tag, but no preset has that name and size; did you mean 'deepseek-r1'" in message
    )
    assert "write PRESET or PRESET:FORMAT, such as llama-3.3-70b:q4_k_m" in message


def test_an_unknown_quantization_is_offered_the_nearest() -> None:
    assert refusal("llama-3.3-70b:q4_k_mm") == "unknown quantization 'q4_k_mm'; did you mean 'Q4_K_M'?"
    assert "known: fp32, bf16" in refusal("llama-3.3-70b:zzzzzz")
    assert "is not MODEL:QUANTIZATION" in refusal("llama-3.3-70b:")
    assert "is not MODEL:QUANTIZATION" in refusal(":q4_0")


def test_every_name_finds_its_format() -> None:
    for name, own in format_names().items():
        assert find_format(name).name == own
    assert {find_format(name).name for name in FORMATS} >= set(FORMATS) - {"F32", "BF16"}


@given(st.text(max_size=30))
def test_any_text_after_a_colon_is_a_format_or_one_line(text: str) -> None:
    try:
        split_model_name(f"m:{text}")
    except UserError as error:
        one_line(error)


def test_llama_cpp_runs_plain_floats_as_gguf_and_names_the_nearest_type_for_the_rest() -> None:
    assert as_gguf(FORMATS["bf16"]) is FORMATS["BF16"]
    assert as_gguf(FORMATS["Q4_K_M"]) is FORMATS["Q4_K_M"]
    with pytest.raises(UserError, match=r"llama.cpp does not run awq; it runs GGUF types, and Q4_K_M is the nearest"):
        as_gguf(FORMATS["awq"])
    assert "vllm" not in FORMATS["Q4_K_M"].engines
    assert "llama.cpp" not in FORMATS["awq"].engines


@pytest.mark.parametrize(("name", "gib", "bits"), [("llama-3-8b", 4.5755, 4.894), ("llama-3-70b", 39.5929, 4.820)])
def test_q4_k_m_weighs_what_llama_cpp_prints(name: str, gib: float, bits: float) -> None:
    """llamacpp_fit_dryrun, column weights_gib; bits from the sizes that llama.cpp's logs print."""
    found = stored(name, "q4_k_m")
    assert found.bytes / GIB == pytest.approx(gib, abs=5e-5)
    assert found.bits_per_weight == pytest.approx(bits, abs=5e-4)
    assert sum(found.parts.values()) == found.bytes


TABLES = ("xiongjiedai_llama3_bench", "xiongjiedai_notebook_runs", "llamacpp_fit_dryrun")
SIZES = sorted({(row["model"], row["quant"], row["bits_per_weight"]) for table in TABLES[:2] for row in rows(table)})


def test_bits_per_weight_match_every_published_row() -> None:
    def check(name: str, quant: str, bits: str) -> None:
        assert stored(name, quant).bits_per_weight == pytest.approx(float(bits), abs=5.1e-3)

    check_every(check, SIZES)


def test_file_sizes_match_every_published_row() -> None:
    stated = {(row["model"], row["quant"], row["weights_gib"]) for row in rows("llamacpp_fit_dryrun")}
    for row in rows("xiongjiedai_notebook_runs"):
        printed = re.search(r"weights ([\d.]+) GiB", row["note"])
        assert printed
        stated.add((row["model"], row["quant"], printed[1]))
    assert len(stated) == 17
    for name, quant, gib in stated:
        digits = len(gib.partition(".")[2])
        assert stored(name, quant).bytes / GIB == pytest.approx(float(gib), abs=0.51 * 10**-digits)


def test_parameters_match_every_published_row() -> None:
    for name, billions in {(row["model"], row["params_b"]) for table in TABLES[:2] for row in rows(table)}:
        assert stored(name, "F16").elements / 1e9 == pytest.approx(float(billions), abs=5.1e-3)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp8", 8 + 32 / 4096),
        ("awq", 4 + 20 / 128),  # a 16-bit scale and a 4-bit zero point for 128
        ("gptq", 4 + 20 / 128 + 32 / 14336),
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
        ("bf16", 16),
        ("fp32", 32),
    ],
)
def test_scales_are_counted(name: str, bits: float) -> None:
    """ffn_gate of an 8B has 14336 rows of 4096."""
    (gate,) = (weight for weight in stored("llama-3-8b", name).tensors if weight.name == "blk.3.ffn_gate.weight")
    assert gate.bytes * 8 / gate.slot.elements == pytest.approx(bits, rel=1e-9)


def test_embedding_head_router_and_norms_stay_in_16_bits() -> None:
    """AWQ of an 8B is 5.73 GB: hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 shows 5.74, as remembered."""
    found = {weight.name: weight for weight in stored("llama-3-8b", "awq").tensors}
    for name in ("token_embd.weight", "output.weight", "blk.0.attn_norm.weight", "output_norm.weight"):
        assert found[name].bytes == 2 * found[name].slot.elements
    assert stored("llama-3-8b", "awq").bytes / 1e9 == pytest.approx(5.73, abs=0.01)
    router = next(weight for weight in stored("mixtral-8x7b", "awq").tensors if "ffn_gate_inp" in weight.name)
    assert router.bytes == 2 * router.slot.elements


def test_mxfp4_only_quantises_the_experts_of_a_mixture() -> None:
    """openai/gpt-oss-120b is 65.25 GB on the hub, as remembered."""
    assert stored("gpt-oss-120b", "mxfp4").bytes / 1e9 == pytest.approx(65.25, abs=0.01)


def test_a_token_reads_all_but_the_embedding_of_a_dense_model() -> None:
    """281.81 MiB of the 8B file stays on the host (xiongjiedai_memory_buffers)."""
    found = stored("llama-3-8b", "q4_k_m")
    assert sum(map(read, found.by_layer)) == pytest.approx(found.bytes - 281.8125 * 2**20)
    assert sum(map(read, found.by_layer)) == sum(found.layer_bytes)


def test_a_tied_head_is_stored_once_and_read_whole() -> None:
    found = stored("llama-3.2-1b", "q8_0")
    table = next(weight for weight in found.embedding if weight.name == "token_embd.weight")
    assert read(found.by_layer[-1]) > table.bytes
    assert found.bytes == sum(found.layer_bytes)  # layers and a copy of the table as the head: as much as layers and the table


def test_a_step_of_many_tokens_reads_all_experts_and_nothing_twice() -> None:
    layer = stored("qwen3-30b-a3b", "q4_k_m").by_layer[5]
    one, two, many = read(layer), read(layer, 2), read(layer, 10_000)
    whole = sum(weight.bytes for weight in layer)
    experts = sum(weight.bytes for weight in layer if weight.slot.expert)
    assert one == pytest.approx(whole - experts * (1 - 8 / 128))
    assert one < two < 2 * one
    assert many == pytest.approx(whole)


def test_a_gguf_file_has_the_bytes_of_its_tensors(tmp_path: Path) -> None:
    small = SMALL_FILES["llama"]
    file = Gguf(small.architecture, small.fields, small.tensors, {"blk.0.attn_q.weight": GGMLQuantizationType.Q8_0})
    found = find_model(str(file.write(tmp_path / "m.gguf")))
    held = weights(found)
    assert held.bytes == found.stored_bytes
    assert {weight.name: weight.type for weight in held.tensors}["blk.0.attn_q.weight"] == "Q8_0"
    assert sum(held.layer_bytes) + sum(weight.bytes for weight in held.embedding) == held.bytes
    with pytest.raises(UserError, match="quantised already; leave out ':Q4_0'"):
        weights(found, FORMATS["Q4_0"])


def test_every_tensor_of_a_file_is_counted(tmp_path: Path) -> None:
    def check(name: str) -> None:
        found = find_model(str(SMALL_FILES[name].write(tmp_path / "m.gguf")))
        held = weights(found)
        assert held.bytes == found.stored_bytes
        assert held.elements == SMALL_FILES[name].elements
        assert read(held.by_layer[-1]) >= 4 * found.decoder.vocab * found.decoder.hidden  # a tied head is read too

    check_every(check, ((name,) for name in SMALL_FILES))


def test_a_config_without_a_format_is_taken_in_bf16() -> None:
    assert weights(model("llama-3-8b")).bytes == 2 * model("llama-3-8b").params


def test_a_family_that_llama_cpp_does_not_run_has_other_formats() -> None:
    found = find_model("opt-1.3b")
    assert weights(found, FORMATS["fp16"]).bytes == 2 * found.params
    with pytest.raises(UserError, match=r"llama.cpp does not run opt-1.3b"):
        weights(found, FORMATS["Q4_K_M"])
