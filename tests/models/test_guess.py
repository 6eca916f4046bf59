"""The last resort: types that nobody has described are counted from their tensors and planned as the nearest described type."""

import json
import struct
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.safetensors import elements_of
from support.command import one_line
from support.gguf_files import LLAMA, SMALL_FILES
from support.small_configs import small

SHAPES = {
    "model.embed_tokens.weight": [96, 48],
    "lm_head.weight": [96, 48],
    "model.norm.weight": [48],
    **{
        f"model.layers.{i}.{name}.weight": shape
        for i in range(4)
        for name, shape in {
            "self_attn.q_proj": [48, 48],
            "self_attn.k_proj": [24, 48],
            "self_attn.v_proj": [24, 48],
            "self_attn.o_proj": [48, 48],
            "mlp.gate_proj": [56, 48],
            "mlp.up_proj": [56, 48],
            "mlp.down_proj": [48, 56],
            "input_layernorm": [48],
            "post_attention_layernorm": [48],
            "surprise": [11],
        }.items()
    },
}
"""A Llama of the sizes of small('llama'), with a vector of 11 more in every layer."""


def safetensors(path: Path, shapes: dict[str, list[int]]) -> Path:
    """Write a safetensors file with these tensors, in zeros of 32 bits."""
    at, table = 0, {}
    for name, shape in shapes.items():
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * prod(shape)]}
        at += 4 * prod(shape)
    header = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(at))
    return path


def folder(path: Path, shapes: dict[str, list[int]] = SHAPES, kind: str = "nobody_knows") -> Path:
    (path / "config.json").write_text(json.dumps(small("llama") | {"model_type": kind}))
    safetensors(path / "model.safetensors", shapes)
    return path


def test_an_unknown_type_with_weights_is_counted_from_them_and_planned_as_the_nearest(tmp_path: Path) -> None:
    model = find_model(str(folder(tmp_path)))
    total = sum(map(prod, SHAPES.values()))
    assert model.params == total
    (note,) = model.notes
    assert note.startswith(f"model_type 'nobody_knows' is not described: its {total:,} parameters are counted from its tensors")
    assert f"which has {total - 4 * 11:,} of them" in note
    assert model.kv_bytes(1) == find_model(str(llama(tmp_path))).kv_bytes(1)


def llama(tmp_path: Path) -> Path:
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(small("llama")))
    return path


def test_a_described_type_is_counted_from_its_config_whatever_the_weights(tmp_path: Path) -> None:
    model = find_model(str(folder(tmp_path, kind="llama")))
    assert (model.params, model.notes) == (sum(map(prod, SHAPES.values())) - 4 * 11, ())


def test_an_unknown_type_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small("llama") | {"model_type": "nobody_knows"}))
    with pytest.raises(UserError, match="no family reads model_type 'nobody_knows'"):
        find_model(str(tmp_path))


def test_weights_that_no_type_comes_near_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no family reads model_type 'nobody_knows'"):
        find_model(str(folder(tmp_path, SHAPES | {"huge": [1000, 1000]})))


def test_parts_are_found_through_the_index(tmp_path: Path) -> None:
    names = list(SHAPES)
    for part, keys in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        safetensors(tmp_path / part, {key: SHAPES[key] for key in keys})
    weights = {name: "a.safetensors" if i % 2 == 0 else "b.safetensors" for i, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert elements_of(tmp_path) == {name: prod(shape) for name, shape in SHAPES.items()}
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"names 'b\.safetensors', which is not in"):
        elements_of(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", struct.pack("<Q", 2**60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 7) + b'{"a":1}']
)
def test_a_damaged_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"m\.safetensors: not a readable safetensors file") as caught:
        elements_of(tmp_path)
    one_line(caught.value)


def test_a_gguf_file_of_an_unknown_architecture_is_counted_from_its_tensors(tmp_path: Path) -> None:
    file = replace(LLAMA, architecture="nobody-knows")
    model = find_model(str(file.write(tmp_path / "m.gguf")))
    assert (model.params, model.stored_bytes) == (file.elements, 4 * file.elements)
    assert "is not described: its" in model.notes[0]


def test_a_gguf_file_that_nothing_comes_near_is_refused(tmp_path: Path) -> None:
    file = replace(SMALL_FILES["mamba2"], architecture="nobody-knows").with_tensors({"huge.weight": (400, 400)})
    with pytest.raises(UserError, match="unsupported GGUF architecture 'nobody-knows'"):
        find_model(str(file.write(tmp_path / "m.gguf")))
