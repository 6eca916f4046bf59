"""Precisions of matrix products: the rate each runs at, the bytes of its operands, and the cost of casting to it.

Without numpy, so that `--help` and parsing a question start fast.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from meshwise.catalogue.chips import Chip, Dtype
from meshwise.errors import UserError, nearest, quoted

Precision = Literal["bf16", "fp16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@dataclass(frozen=True)
class Recipe:
    """How the products of the layers are computed. Attention, the router and the output head stay in 16 bits in every recipe."""

    rate: Dtype  # row of the chip's `flops`
    bytes: float  # bytes per element of an operand, its scales included
    scaling: float = 1.0
    """Rate of a product over that of the same product with one scale per tensor: the cost of applying finer scales."""
    cast: float = 0.0
    """Bytes moved per element that is cast from 16 bits: read once (twice where a scale needs a pass of its own), written once, and
    once more transposed for the weight gradient."""


RECIPES: dict[str, Recipe] = {
    "bf16": Recipe("bf16", 2.0),
    "fp16": Recipe("fp16", 2.0),
    "fp8": Recipe("fp8", 1.0, cast=4.0),
    "fp8-row": Recipe("fp8", 1.0, cast=6.0),
    "fp8-block": Recipe("fp8", 1.03, scaling=0.9, cast=4.0),
    "mxfp8": Recipe("fp8", 1.03, cast=4.1),
    "nvfp4": Recipe("fp4", 0.56, cast=5.1),
}
"""fp8: one scale per tensor, known from earlier steps or found by the kernel before. fp8-row: one per row. fp8-block: one per block of
128 (DeepSeek-V3). mxfp8: one per 32 elements (OCP MX). nvfp4: one per 16, with a random Hadamard transform before the weight gradient.
On an H200 with torch 2.11, products of Llama 8B's shapes reach 1,347 to 1,556 TFLOP/s per tensor and 1,359 to 1,541 per row, so scales
per row cost nothing in the product."""

WORDS: tuple[tuple[str, str], ...] = (
    ("nvfp4|fp4|float4", "nvfp4"),
    ("mxfp8|fp8mx|mxfloat8", "mxfp8"),
    ("(fp8|float8|f8).*(block|sub|sc$)|(block|sub).*(fp8|float8)", "fp8-block"),
    ("(fp8|float8|f8).*row|row.*(fp8|float8)", "fp8-row"),
    ("fp8|float8|f8|e4m3|e5m2", "fp8"),
    ("bf16|bfloat16|mixed|^amp", "bf16"),
    ("fp16|float16|half|^f16", "fp16"),
)
"""Patterns of the words people use, the most specific first: 'FP8-CS' (current scaling) and 'float8' are fp8, 'FP8-MX' is mxfp8."""


def parse_precision(text: str) -> str:
    """Return the precision that a word stands for; refuse one that is unknown, such as int8 or fp32."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    for pattern, name in WORDS:
        if re.search(pattern, plain):
            return name
    raise UserError(
        f"precision {quoted(text)} is unknown{nearest(text.lower(), PRECISIONS)}; expected one of {', '.join(PRECISIONS)}"
    )


def is_narrow(precision: str, chip: Chip) -> bool:
    """Return whether products run in fewer than 16 bits: the recipe asks for it, and the chip has such matrix units."""
    rate = RECIPES[precision].rate
    return rate in ("fp8", "fp4") and rate in chip.flops


# Facts about vendors' kernels, for training and serving.

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""(m, n) of the tiles that vendor libraries choose from."""
LARGEST_TILE = 256 * 128
FLASH_HEAD = 64.0  # head size at which flash attention reaches half of its limit (H200: 374 TFLOP/s at 64, 584 at 128)
