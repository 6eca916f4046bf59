"""Tensors: the names and shapes that llama.cpp stores a model in, from its config alone."""

import re
from math import prod
from pathlib import Path

import pytest
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from meshwise.errors import UserError
from meshwise.models.find import find_model
from meshwise.models.gguf.header import readable
from meshwise.models.model import families
from meshwise.models.tensors import EMBEDDING_LAYER, Slot, architecture, file_order, slots
from support.command import one_line
from support.every import check_every
from support.gguf_files import SMALL_FILES
from support.presets import PRESETS, preset

ARCHES = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
STORED = {kind: one.name for family in families().values() for one in getattr(family, "gguf", ()) for kind in one.model_types}
"""The model types that llama.cpp runs, and its names for them."""


def test_a_config_gives_the_tensors_that_a_file_of_its_architecture_has(tmp_path: Path) -> None:
    def check(name: str) -> None:
        file = SMALL_FILES[name]
        found = [slot for slot in slots(find_model(str(file.write(tmp_path / "m.gguf"))), gguf=True) if slot.stored]
        assert {slot.name: slot.elements for slot in found} == {key: prod(shape) for key, shape in file.tensors.items()}
        weights = {key: shape for key, shape in file.tensors.items() if key.endswith(".weight") and "norm" not in key}
        columns = {key: shape[-1] for key, shape in weights.items() if len(shape) > 1}
        assert {slot.name: slot.columns for slot in found if slot.name in columns} == columns

    check_every(check, ((name,) for name in SMALL_FILES))


@pytest.mark.parametrize("gguf", [False, True], ids=["as computed", "as converted"])
def test_no_parameter_is_lost_or_counted_twice(gguf: bool) -> None:
    def check(name: str) -> None:
        model = preset(name)
        found = slots(model, gguf)
        metadata = sum(op.params * op.count for op in model.ops if gguf and op.name == "ffw.xielu")  # not a tensor of a file
        assert sum(slot.elements for slot in found if slot.stored) == model.params - metadata
        assert len({slot.name for slot in found}) == len(found)
        assert {slot.layer for slot in found} == set(range(EMBEDDING_LAYER, len(model.layers) + 1))

    check_every(check, ((name,) for name in PRESETS if not gguf or preset(name).model_type in STORED))


def test_every_name_is_one_that_llama_cpp_knows_for_the_architecture() -> None:
    def check(name: str) -> None:
        model = preset(name)
        arch: MODEL_ARCH = ARCHES[architecture(model).name]
        known = {TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[arch]}
        stored = [slot.name for slot in slots(model, gguf=True) if slot.stored]
        bare = {re.sub(r"\.(weight|bias|scale)$", "", re.sub(r"^blk\.\d+", "blk.{bid}", slot)) for slot in stored}
        assert bare <= known

    check_every(check, ((name,) for name in PRESETS if preset(name).model_type in STORED))


def test_a_model_that_llama_cpp_does_not_run_is_refused() -> None:
    def check(name: str) -> None:
        with pytest.raises(UserError) as caught:
            slots(preset(name), gguf=True)
        assert f"llama.cpp does not run {name} (model_type '{preset(name).model_type}')" in one_line(caught.value)

    check_every(check, ((name,) for name in PRESETS if preset(name).model_type not in STORED))


def test_an_architecture_stores_model_types_of_its_own_family_and_can_be_written_if_it_is_read() -> None:
    for name, family in families().items():
        for one in getattr(family, "gguf", ()):
            assert set(one.model_types) <= family.model_types, (name, one.name)
    assert set(readable()) <= set(STORED.values())


def test_one_token_reads_a_row_of_the_embedding_and_its_own_experts() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts (its config.json)."""
    found = {slot.name: slot for slot in slots(find_model("qwen3-30b-a3b"), gguf=True)}
    assert found["blk.0.ffn_up_exps.weight"].share == 8 / 128
    assert found["token_embd.weight"].share == 1 / 151936
    assert found["output.weight"].share == found["blk.0.attn_q.weight"].share == 1


def test_a_converted_file_has_layer_10_before_layer_9_where_one_part_holds_both() -> None:
    """Meta-Llama-3-8B is published in parts of 4.98, 5.00, 4.92 and 1.17 GB: layers 0 to 8, 9 to 20, 20 to 31."""
    order = file_order(slots(find_model("llama-3-8b"), gguf=True))
    layers = [slot.layer for slot in order if slot.name.endswith("attn_v.weight")]
    assert layers == [*range(9), *range(10, 21), 9, *range(21, 32)]


def test_a_small_model_is_one_part_sorted_by_the_text_of_the_number() -> None:
    parts = [Slot(f"blk.{i}.attn_v.weight", 1, 1, layer=i) for i in range(12)]
    assert [slot.layer for slot in file_order(parts)] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
