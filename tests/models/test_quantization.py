"""The format of a checkpoint is read from its quantization_config."""

from typing import Any

import pytest

from meshwise.models.find import find_model
from meshwise.models.formats import FORMATS
from meshwise.models.model import build
from meshwise.models.quantization import stored_format
from support.small_configs import small


def compressed(bits: int, kind: str, group: int | None) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "group_size": group}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("table", "fmt"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "fp8"),
        (compressed(4, "int", 32), "int4-g32"),
        (compressed(4, "int", 128), "awq"),
        (compressed(8, "float", None), "fp8"),
        (compressed(8, "int", None), "int8"),
        (compressed(4, "float", 16), "nvfp4"),
    ],
)
def test_a_quantization_config_names_a_format(table: dict[str, Any], fmt: str) -> None:
    assert stored_format({"quantization_config": table}) == (fmt, ())
    assert stored_format({"text_config": {"quantization_config": table}}) == (fmt, ())
    assert fmt in FORMATS


@pytest.mark.parametrize("table", [None, {}, 3, "fp8", []])
def test_no_table_means_no_quantization(table: object) -> None:
    assert stored_format({"quantization_config": table}) == ("", ())


@pytest.mark.parametrize(
    "table", [{"quant_method": "quark"}, {"quant_method": "gptq", "bits": 3}, compressed(3, "int", 64), {"a": 1}]
)
def test_a_format_that_is_not_planned_is_noted(table: dict[str, Any]) -> None:
    model = build(small("llama") | {"quantization_config": table}, "", "")
    assert model.quantization == ""
    assert "weights are taken as 16-bit" in model.notes[0]


@pytest.mark.parametrize(("name", "fmt"), [("deepseek-v3", "fp8"), ("gpt-oss-20b", "mxfp4"), ("kimi-k2-thinking", "int4-g32")])
def test_a_preset_has_the_format_of_its_checkpoint(name: str, fmt: str) -> None:
    assert find_model(name).quantization == fmt
