"""GGUF files: the model that a header describes, the bytes that it stores, and the errors for broken files."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import example, given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.gguf.header import readable
from support.command import one_line
from support.every import check_every
from support.gguf_files import EXPERTS, HEADS, HIDDEN, LLAMA, LLAMA_LAYER, SIZES, SMALL_FILES, finish, model


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        find_model(str(path))
    return one_line(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    return LLAMA.write(folder / "whole.gguf").read_bytes()


def test_the_parameters_a_header_describes_are_the_elements_its_tensors_hold(tmp_path: Path) -> None:
    def check(name: str) -> None:
        file = SMALL_FILES[name]
        found = find_model(str(file.write(tmp_path / "m.gguf")))
        assert found.params == file.elements
        assert found.notes == ()
        assert found.stored_bytes == 4 * file.elements

    check_every(check, ((name,) for name in SMALL_FILES))


def test_every_architecture_that_is_read_is_tested() -> None:
    assert {file.architecture for file in SMALL_FILES.values()} <= readable().keys()  # test_architectures.py has the others


def test_tensors_are_those_that_the_gguf_package_reads(tmp_path: Path) -> None:
    def check(name: str) -> None:
        path = SMALL_FILES[name].write(tmp_path / "m.gguf")
        theirs = [(t.name, t.tensor_type.name, t.n_elements, t.n_bytes) for t in GGUFReader(path).tensors]
        assert [(t.name, t.type, t.elements, t.bytes) for t in find_model(str(path)).tensors] == theirs

    check_every(check, ((name,) for name in SMALL_FILES))


def test_experts_in_a_llama_file_make_it_a_mixtral(tmp_path: Path) -> None:
    found = find_model(str(SMALL_FILES["mixtral"].write(tmp_path / "m.gguf")))
    assert (found.model_type, dict(found.extra)["experts"]) == ("mixtral", EXPERTS)
    assert found.active_params < found.params


def test_a_window_in_the_metadata_bounds_the_cache(tmp_path: Path) -> None:
    """Gemma 2: the first of two layers looks back 16 tokens."""
    found = find_model(str(SMALL_FILES["gemma2"].write(tmp_path / "m.gguf")))
    assert [name for layer in found.layers for name in layer] == ["attention.window16", "ffw", "attention", "ffw"]


def test_deepseek_without_low_rank_queries_is_read(tmp_path: Path) -> None:
    """As DeepSeek-V2-Lite is converted: no q_lora_rank, one attn_q, and lengths under the names of before 2025."""
    file = SMALL_FILES["deepseek2"]
    queries = {f"blk.{i}.attn_q.weight": (HEADS * 10, HIDDEN) for i in range(2)}
    dropped = [f"blk.{i}.attn_q_{part}.weight" for i in range(2) for part in ("a", "a_norm", "b")]
    old = {"attention.key_length": 10, "attention.value_length": 10}
    kept = {key: value for key, value in file.fields.items() if not key.endswith(("_mla", "q_lora_rank"))}
    lite = replace(file.without(*dropped).with_tensors(queries), fields=kept | old)
    found = find_model(str(lite.write(tmp_path / "m.gguf")))
    assert (found.params, found.notes) == (lite.elements, ())


@pytest.mark.parametrize("table", ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])
def test_rotary_tables_are_not_parameters(table: str, tmp_path: Path) -> None:
    found = find_model(str(LLAMA.with_tensors({table: (4,)}).write(tmp_path / "m.gguf")))
    assert (found.params, found.notes, found.stored_bytes) == (LLAMA.elements, (), 4 * LLAMA.elements)


def test_tensors_beyond_those_that_the_metadata_describes_are_noted(tmp_path: Path) -> None:
    found = find_model(str(LLAMA.with_tensors({"extra.weight": (7,)}).write(tmp_path / "m.gguf")))
    words = f"the file stores {LLAMA.elements + 7:,} elements, its metadata describes {LLAMA.elements:,} parameters"
    assert found.notes == (words,)


@pytest.mark.parametrize(
    ("kind", "bytes_per_256"),
    # ggml-common.h: blocks of 256 in 144 (Q4_K) and 210 bytes (Q6_K), of 32 in 34 bytes (Q8_0), of 2 bytes each (BF16)
    [("Q4_K", 144), ("Q6_K", 210), ("Q8_0", 8 * 34), ("BF16", 512)],
)
def test_stored_bytes_of_quantised_weights_are_exact(kind: str, bytes_per_256: int, tmp_path: Path) -> None:
    wide = model("llama", SIZES, LLAMA_LAYER).with_tensors({"blk.0.ffn_gate.weight": (48, 256)})
    file = replace(wide, types={"blk.0.ffn_gate.weight": GGMLQuantizationType[kind]})
    found = find_model(str(file.write(tmp_path / "m.gguf")))
    others = 4 * (file.elements - 48 * 256)
    assert found.stored_bytes == others + 48 * bytes_per_256


@pytest.mark.parametrize("named", [1, 2])
def test_parts_are_one_model_whichever_is_named(named: int, tmp_path: Path) -> None:
    paths = [LLAMA.write(tmp_path / f"m-{i + 1:05d}-of-00002.gguf", i, 2) for i in range(2)]
    found = find_model(str(paths[named - 1]))
    assert (found.params, found.notes, found.stored_bytes) == (LLAMA.elements, (), 4 * LLAMA.elements)


def test_the_first_part_may_hold_metadata_alone(tmp_path: Path) -> None:
    """As llama-gguf-split --no-tensor-first-split writes it."""
    first = LLAMA.write(tmp_path / "m-00001-of-00002.gguf", 0, 2, names=[])
    LLAMA.write(tmp_path / "m-00002-of-00002.gguf", 1, 2, names=list(LLAMA.tensors))
    assert find_model(str(first)).params == LLAMA.elements


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = LLAMA.write(tmp_path / "m-00001-of-00002.gguf", 0, 2)
    assert "m-00002-of-00002.gguf': no such file" in refusal(first)


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    renamed = LLAMA.write(tmp_path / "mine.gguf", 0, 2)
    assert "not named like name-00001-of-00002.gguf" in refusal(renamed)


def test_an_architecture_that_no_family_reads_is_refused(tmp_path: Path) -> None:
    for name, hint in (("lama", "did you mean 'llama' or 'llama4'?"), ("clip", "supported: afmoe, ")):
        path = replace(LLAMA, architecture=name).with_tensors({"huge.weight": (400, 400)}).write(tmp_path / "m.gguf")
        assert f"m.gguf: unsupported GGUF architecture '{name}'; {hint}" in refusal(path)


def test_an_architecture_that_is_not_text_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "")
    writer.add_array("general.architecture", ["llama"])
    assert "GGUF architecture ['llama']" in refusal(finish(writer, tmp_path / "m.gguf"))


def test_a_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    assert "no token_embd.weight" in refusal(LLAMA.without("token_embd.weight").write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", ["embedding_length", "block_count", "attention.head_count", "feed_forward_length"])
def test_missing_metadata_is_named_as_in_hf(key: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in LLAMA.fields.items() if name != key}
    assert "is missing" in refusal(replace(LLAMA, fields=fields).write(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"GG", "does not begin with 'GGUF'"),
        (b"PK\x03\x04 a zip file", "does not begin with 'GGUF'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1; expected 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "ends before its header does"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "ends before its header does"),
    ],
)
def test_anything_but_a_gguf_file_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("name", ["nowhere.gguf", "a" * 5000 + ".gguf", "a\0b.gguf"])
def test_a_file_that_is_not_there_is_refused(name: str) -> None:
    told = refusal(Path(name))
    assert "no such file" in told or "control characters" in told


def test_a_folder_is_refused_as_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    assert "no such file" in refusal(tmp_path / "m.gguf")


@given(st.data())
def test_a_truncated_file_is_refused_wherever_it_was_cut(folder: Path, whole: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 2000))
    path = folder / "cut.gguf"
    path.write_bytes(whole[:cut])
    assert "not a readable GGUF file" in refusal(path)


@given(st.integers(4, 2600), st.binary(min_size=1, max_size=8))
@example(at=24, noise=b"\xff" * 8)
def test_a_damaged_header_is_refused_or_read_without_a_crash(folder: Path, whole: bytes, at: int, noise: bytes) -> None:
    path = folder / "damaged.gguf"
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    try:
        found = find_model(str(path))
    except UserError as error:
        one_line(error)
    else:
        assert found.params >= 0


def test_an_array_longer_than_the_file_is_refused_at_once(tmp_path: Path) -> None:
    array = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**40)
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    assert "claims an array of 1099511627776 values" in refusal(path)


def test_a_file_of_the_other_byte_order_is_read_too(tmp_path: Path) -> None:
    found = find_model(str(LLAMA.write(tmp_path / "m.gguf", big=True)))
    assert (found.params, found.notes) == (LLAMA.elements, ())
