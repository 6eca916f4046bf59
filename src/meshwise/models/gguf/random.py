"""Random weights in GGUF types: blocks of random bits with scales that keep the model's activations finite.

The gguf package reads every type but writes only a few. To measure speed, the bits only have to be valid.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from meshwise.errors import UserError

WEIGHT_STD = 0.02  # standard deviation of the weights: HF's initializer_range of nearly every model
POOL_BLOCKS = 4093
"""Random blocks that a tensor repeats. A prime, so that rows, which have a power of two of blocks, do not all repeat the same ones."""
CHUNK_BYTES = 1 << 24

SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Byte offsets of the 16-bit scale in a block of each type, and of the scale of its minimum (ggml-common.h)."""


@cache
def pool(kind: str, seed: int) -> bytes:
    """Return blocks of random weights of this type, with mean zero and standard deviation WEIGHT_STD, approximately."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    rng = np.random.default_rng(seed)
    if kind in ("F32", "F16", "BF16"):
        values = (rng.standard_normal(POOL_BLOCKS * 64) * WEIGHT_STD).astype(np.float32)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        return values.astype(np.float32 if kind == "F32" else np.float16).tobytes()
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    blocks = rng.integers(0, 256, (POOL_BLOCKS, size), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = 121  # an exponent of 2^-7 for values up to 12, halved: ggml's E8M0
        return blocks.tobytes()
    if kind not in SCALES:
        raise UserError(f"random weights of type {kind} cannot be made; use one of {', '.join([*SCALES, 'F16', 'BF16'])}")
    for at, value in zip(SCALES[kind], _scales(kind, blocks), strict=True):
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return blocks.tobytes()


def _scales(kind: str, blocks: Any) -> list[float]:
    """Return the scale that gives these bits WEIGHT_STD, and the minimum that cancels their mean, as the gguf package decodes them."""
    places = SCALES[kind]
    per_scale = [_values(kind, blocks, [float(i == j) for j in range(len(places))]) for i in range(len(places))]
    shift = -float(per_scale[0].mean() / per_scale[1].mean()) if len(places) > 1 else 0.0
    whole = per_scale[0] + (per_scale[1] * shift if len(places) > 1 else 0.0)
    scale = WEIGHT_STD / float(whole.std())
    return [scale, scale * shift][: len(places)]


def _values(kind: str, blocks: Any, scales: list[float]) -> Any:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    trial = blocks[:64].copy()
    for at, value in zip(SCALES[kind], scales, strict=True):
        trial[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return dequantize(trial, GGMLQuantizationType[kind])


def chunks(kind: str, size: int, seed: int) -> Iterator[bytes]:
    """Yield `size` bytes of a tensor of this type, in pieces that fit in memory."""
    source = pool(kind, seed)
    source *= max(1, min(CHUNK_BYTES, size) // len(source))
    for start in range(0, size, len(source)):
        yield source[: min(len(source), size - start)]
