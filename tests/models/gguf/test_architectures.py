"""Every architecture of llama.cpp that is described: a file with the tensors of a config is read back as the same model."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, GGMLQuantizationType, GGUFWriter

pytest.importorskip("transformers", reason="the source of a config for every type, and not installed")

from meshwise.models.families import stored
from meshwise.models.families.description import describe
from meshwise.models.find import find_model
from meshwise.models.gguf.header import KEYS
from meshwise.models.model import Model, build
from meshwise.models.tensors import Slot, slots
from support.every import check_every
from support.every_type import CAUSAL, small_values

ARCHES = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
DESCRIBED = {one.name: one for one in stored.every() if not one.requires}


def kind_of(name: str) -> str | None:
    """Return a type of transformers that is stored under a name."""
    return next((kind for kind in DESCRIBED[name].model_types if kind in CAUSAL), None)


BUILT = [name for name in DESCRIBED if kind_of(name) and name != "dbrx"]
"""Architectures with a type that transformers has defaults for."""


def test_at_least_sixty_architectures_of_llama_cpp_are_described() -> None:
    assert len(DESCRIBED) >= 85
    assert len([name for name in DESCRIBED if DESCRIBED[name].readable]) >= 60


def test_a_type_and_its_architecture_name_each_other() -> None:
    def check(name: str) -> None:
        for kind in DESCRIBED[name].model_types:
            assert describe(kind).words["gguf"] == name

    check_every(check, ((name,) for name in DESCRIBED))


def test_tensors_have_names_that_llama_cpp_knows_and_lose_no_parameter() -> None:
    def check(name: str) -> None:
        model = small(name)
        found = [slot for slot in slots(model, gguf=True) if slot.stored]
        known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[ARCHES[name]]}
        bare = {re.sub(r"\.(weight|bias)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", slot.name)) for slot in found}
        assert bare - known == ({"output"} if name == "bitnet" else set())
        unstored = sum(op.params * op.count for op in model.ops if op.name == "ffw.xielu")  # metadata of the file
        assert sum(slot.elements for slot in found) == model.params - unstored

    check_every(check, ((name,) for name in BUILT if name in ARCHES and name != "nemotron_h"))


def small(name: str) -> Model:
    kind = kind_of(name)
    assert kind
    return build(small_values(kind), name, "")


def metadata(name: str, model: Model, values: dict[str, Any]) -> dict[str, Any]:
    """Return what llama.cpp's converter writes for a config: sizes that its keys state, and those that follow from them."""
    d = model.decoder
    heads = {"attention.head_count": d.heads, "attention.head_count_kv": d.kv_heads, "attention.key_length": d.head_dim}
    found: dict[str, Any] = {"embedding_length": d.hidden, "block_count": d.layers, "feed_forward_length": d.ffn, **heads}
    found["attention.value_length"] = d.head_dim
    own = DESCRIBED[name].name
    for key, names in {**KEYS, **keys_of(own)}.items():
        value = next((values[other] for other in names if type(values.get(other)) is int), None)
        if value is not None:
            found.setdefault(key, value)
    if "intermediate_size_mlp" in values:  # Llama 4 has the width of its experts under the usual name
        found["expert_feed_forward_length"] = values["intermediate_size"]
    if "kv_lora_rank" in values:
        nope, rope = values["qk_nope_head_dim"], values["qk_rope_head_dim"]
        mla = {"attention.key_length_mla": nope + rope, "attention.value_length_mla": values.get("v_head_dim", 0)}
        found |= mla | {"rope.dimension_count": rope, "attention.q_lora_rank": values.get("q_lora_rank", 0)}
    inner = next((op.k for op in model.ops if op.name == "ssm.out"), 0)
    return found | ({"ssm.inner_size": inner} if inner else {})


def keys_of(name: str) -> dict[str, tuple[str, ...]]:
    from meshwise.catalogue import files

    table: dict[str, Any] = files.table_of(files.files("gguf", ".toml")[name])
    return {key: (value,) if isinstance(value, str) else tuple(value) for key, value in table.get("keys", {}).items()}


def written(path: Path, name: str, fields: dict[str, Any], found: list[Slot]) -> Path:
    """Write a header with these tensors, and as many bytes after it as they would take; the file is sparse."""
    writer = GGUFWriter(path, name)
    for key, value in fields.items():
        if value is not None:
            writer.add_uint32(f"{name}.{key}", int(value))
    for slot in found:
        whole = (slot.copies, slot.rows, slot.columns) if slot.copies > 1 else (slot.rows, slot.columns)
        shape = whole if slot.rows > 1 or slot.copies > 1 else whole[-1:]
        writer.add_tensor_info(slot.name, shape, np.dtype(np.float32), 4 * slot.elements, GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout
    length = writer.fout[0].tell() + sum(4 * slot.elements + 64 for slot in found) + 64
    writer.close()
    os.truncate(path, length)
    return path


def test_a_file_with_the_tensors_of_a_config_is_read_as_the_same_model(tmp_path: Path) -> None:
    def check(name: str) -> None:
        kind = kind_of(name)
        assert kind
        values = small_values(kind)
        model = build(values, name, "")
        found = [slot for slot in slots(model, gguf=True) if slot.stored]
        read = find_model(str(written(tmp_path / "m.gguf", name, metadata(name, model, values), found)))
        assert read.params == model.params
        assert read.stored_bytes == 4 * sum(slot.elements for slot in found)
        assert {slot.name: slot.elements for slot in slots(read, gguf=True) if slot.stored} == {s.name: s.elements for s in found}

    check_every(check, ((name,) for name in BUILT if DESCRIBED[name].readable))
