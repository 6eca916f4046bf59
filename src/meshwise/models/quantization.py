"""Quantization: the weight format that a checkpoint is published in, read from `quantization_config` of its config.json."""

from collections.abc import Mapping
from typing import Any, cast

KEYS = ("quantization_config", "compression_config")
_BY_ALGORITHM = {
    "nvfp4": "nvfp4", "w4a16_nvfp4": "nvfp4", "fp8": "fp8", "fp8_pb_wo": "fp8", "fp8_block_scales": "fp8", "mxfp4": "mxfp4",
}  # fmt: skip
"""NVIDIA ModelOpt's `quant_algo`, in lower case."""

FILE_TYPES = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_0": "Q5_0", "Q5_1": "Q5_1",
    "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K", "Q8_0": "Q8_0", "IQ1_S": "IQ1_S", "IQ1_M": "IQ1_M",
    "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S", "IQ3_XXS": "IQ3_XXS", "IQ3_XS": "IQ3_S",
    "IQ3_S": "IQ3_S", "IQ3_M": "IQ3_S", "IQ4_NL": "IQ4_NL", "IQ4_XS": "IQ4_XS", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0",
    "MXFP4_MOE": "MXFP4",
}  # fmt: skip
"""File types, and the type of most of their tensors."""


def stored_format(values: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the weight format of a checkpoint ('' for one that is not quantised), and notes. The language model of a config
    with towers may have the table itself, so text_config is searched too."""
    tables = [values.get(key) for key in KEYS]
    inner = values.get("text_config")
    if isinstance(inner, Mapping):
        tables += [cast(Mapping[str, Any], inner).get(key) for key in KEYS]
    table = next((cast(Mapping[str, Any], table) for table in tables if isinstance(table, Mapping) and table), None)
    if table is None:
        return "", ()
    name = _format(table)
    if name:
        return name, ()
    method = table.get("quant_method") or table.get("quant_algo") or "none"
    return "", (f"its quantization_config ({method!s:.40}) is none of the formats that are planned; weights are taken as 16-bit",)


def _format(table: Mapping[str, Any]) -> str:
    """Return the format of one quantization_config; '' where it is none of ours."""
    method = str(table.get("quant_method", "")).lower().replace("_", "-")
    bits = table.get("bits", table.get("w_bit", 4))
    if method in ("fp8", "fbgemm-fp8", "deepspeed-fp8"):
        return "fp8"
    if method in ("mxfp4", "nvfp4"):
        return method
    if method in ("awq", "gptq", "gptq-marlin", "auto-round", "autoround", "intel/auto-round"):
        return {4: "awq" if method == "awq" else "gptq", 8: "int8"}.get(bits, "")
    if method in ("compressed-tensors", "sparseml"):
        return _compressed(table)
    if method == "modelopt" or "quant_algo" in table or "quantization" in table:
        nested = table.get("quantization")
        inner = cast(Mapping[str, Any], nested) if isinstance(nested, Mapping) else table
        return _BY_ALGORITHM.get(str(inner.get("quant_algo", "")).lower(), "")
    return ""


def _compressed(table: Mapping[str, Any]) -> str:
    """Return the format of the first group of a compressed-tensors table: its weights' bits, type and group size."""
    groups = table.get("config_groups")
    first: Any = next(iter(cast(Mapping[str, Any], groups).values()), None) if isinstance(groups, Mapping) else None
    weights: Any = cast(Mapping[str, Any], first).get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return ""
    spec = cast(Mapping[str, Any], weights)
    bits, kind, group = spec.get("num_bits"), spec.get("type"), spec.get("group_size")
    if kind == "float":
        return {8: "fp8", 4: "mxfp4" if group == 32 else "nvfp4"}.get(bits, "") if isinstance(bits, int) else ""
    if bits == 4:
        return "int4-g32" if group == 32 else "awq"
    return "int8" if bits == 8 else ""
