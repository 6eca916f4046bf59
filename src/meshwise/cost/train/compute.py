"""Time of kernels on one device: matrix products, attention, and kernels that only move bytes."""

from dataclasses import dataclass, replace

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Chip
from meshwise.cost.layout import Floats
from meshwise.cost.precision import FLASH_HEAD, LARGEST_TILE, RECIPES, TILES, is_narrow
from meshwise.models.op import Op

SIDES = np.array(TILES, dtype=float).T
BACKWARD_BYTES_RATIO = 1.3
"""Bytes of an elementwise operation, backward over forward: Korthikanti et al. 2022, Table 4, 11.9 ms minus products and all-reduces."""
VECTOR_EFFICIENCY = 0.5  # share of the fp32 rate reached by a product that cannot use the matrix units
FLASH_BACKWARD_RATE_RATIO = 0.85  # rate of flash attention, backward over forward
BIASED_RATE_RATIO = 0.125
"""Rate of flash attention with a mask of biases (ALiBi), over that without: on an H200, steps of BLOOM 560M and 1.7B took 89 ms and 0.469 s
where the kernel without bias would have left 60 ms and 0.315 s."""
FLEX_RATE_RATIO = 0.39
"""Rate of attention compiled for its rule (FlexAttention) over cuDNN's: a Triton kernel's share of the peak of an H100 over FA3's
(`frameworks.FLASH_SHARES`). On an H200, 24 layers of BLOOM 560M with 8 x 2048 tokens took 33 ms (docs/reports/trainer-speed.md)."""
WIDE_HEAD, WIDE = 128, 0.43
"""Size of a head beyond which such a kernel has too few registers for large tiles, and its rate there over that of smaller heads: 26
layers of Gemma 2 2B, heads of 256, 4 x 2048 tokens, took 56 ms."""
WIDE_CAPPED_RATE_RATIO = 0.55
"""Rate of our own kernels for soft caps and such heads, where a query sees all keys before it, over cuDNN's as counted here
(workers/trainer/ops/wide_attention.py): the same 26 layers took 22.5 ms."""
FLASH_TILE_KEYS = 128
"""Keys per tile of flash attention: at the edge of the causal mask it computes whole tiles and discards half of each."""
FLASH_BACKWARD_BYTES_RATIO = 4
"""Bytes of flash attention, backward over forward: queries, keys, values, output and its gradient are read, three gradients written, and
that of the queries is summed in float32. On an H200 a step's time over sequences of 512 to 4096 tokens has 48 to 59 bytes per element of
the queries that do not grow with the sequence (Llama 125M and 1B, docs/reports/loop.md); 5 times 8 are counted here, and the tile."""
EVEN_HEADS_MULTIPLE = 32
"""Batch x heads / tp should be a multiple of this. Of 8, 16, 32 and 64, it fits the steps in the BLOOM notes and vTrain's runs best."""
MIN_KERNEL_SECONDS = 2.8e-6
"""Seconds of an almost empty kernel: on an H200, AdamW took 1.02 ms for the 110 weights of Llama 125M, one kernel each, whose bytes take
0.71 (docs/reports/ttt-kernels.md)."""
DEFAULT_FLOPS, VECTOR_SHARE, DEFAULT_SMS = 1e12, 1 / 16, 100
"""Rates of a chip whose file states none: FLOP/s of its products, FLOP/s without matrix units over those in 16 bits (A100: 19.5 of 312),
and multiprocessors. The first and the last are assumptions, near a CPU and an A100."""


@dataclass(frozen=True)
class Device:
    """The rates of a chip under a calibration, for one precision."""

    peak: float  # FLOP/s of the layers' products
    wide: float  # FLOP/s in 16 bits: attention and the head stay in 16 bits when the layers use 8
    vector: float  # FLOP/s without matrix units
    bandwidth: float  # memory bytes per second that a streaming kernel reaches
    sms: int
    element: float  # bytes per element of an activation
    calibration: Calibration
    share: float | Floats  # share of the peak reached by a product of ideal shape
    cast: float = 0.0
    """Bytes moved per element of an operand that is cast to 8 or 4 bits before a product; 0: operands stay in 16 bits."""
    narrow: float = 2.0  # bytes per element of an operand
    joins: bool = False  # whether products that read the same input are one product

    @staticmethod
    def of(chip: Chip, calibration: Calibration, precision: str) -> "Device":
        """Return the rates of a chip for products in this precision; in 16 bits where the chip has no units for it."""
        rates, recipe = chip.flops, RECIPES[precision]
        wide = rates.get("bf16") or rates.get("fp16") or unstated_half_rate(chip) or max(rates.values(), default=DEFAULT_FLOPS)
        peak, share, cast, narrow = wide, calibration.matmul, 0.0, 2.0
        if is_narrow(precision, chip):
            peak, cast, narrow = rates[recipe.rate], recipe.cast, recipe.bytes
            share *= recipe.scaling * (calibration.fp4 if recipe.rate == "fp4" else calibration.fp8)
        elif precision == "fp16":
            peak = rates.get("fp16") or wide
        vector = rates.get("fp32") or wide * VECTOR_SHARE
        return Device(
            peak=peak * chip.sustained, wide=wide * chip.sustained, vector=vector,
            bandwidth=chip.bandwidth * calibration.memory, sms=chip.sms or DEFAULT_SMS, element=2.0, calibration=calibration,
            share=share, cast=cast, narrow=narrow,
        )  # fmt: skip

    def in_16_bits(self) -> "Device":
        return replace(self, peak=self.wide, share=self.calibration.matmul, cast=0.0, narrow=2.0)


def unstated_half_rate(chip: Chip) -> float:
    """Return FLOP/s in 16 bits of a chip whose file states none: with matrix units twice its fp32 rate, as RTX 30, 40 and 50 cards have
    (their files); without, its fp32 rate; 0 where that is not stated either."""
    return chip.flops.get("fp32", 0.0) * (2 if {"fp4", "fp8"} & chip.flops.keys() else 1)


def product(d: Device, m: Floats | float, n: Floats | float, k: Floats | float, batch: Floats | float = 1.0) -> Floats:
    """Return seconds of `batch` products m x k by k x n: full waves of full tiles over the SMs, or the bytes, whichever is longer. A tile
    of the output occupies one SM for k + depth steps. Matrix units need rows of memory in multiples of 16 bytes: 13824 hidden in 128
    heads of 108 took 163 s where 96 heads of 144 took 125 (BLOOM notes, NHEADS tables)."""
    c = d.calibration
    m, n, k = np.asarray(m, float), np.asarray(n, float), np.asarray(k, float)
    tall, wide = SIDES.reshape(2, -1, *(1,) * max(1, m.ndim))
    tiles = np.ceil(m / tall) * np.ceil(n / wide) * batch
    area = np.min(np.ceil(tiles / d.sms) * (d.sms * tall * wide / (tall * wide / LARGEST_TILE) ** c.tile), axis=0)
    busy = 2 * area * (k + c.depth) / (d.peak * d.share)
    moved = batch * (d.narrow * (m * k + k * n) + d.element * m * n) / d.bandwidth
    aligned = (np.mod(n, 8) == 0) & (np.mod(k, 8) == 0)
    slow = 2 * m * n * k * batch / (d.vector * VECTOR_EFFICIENCY)
    return np.maximum(np.where(aligned, busy, slow), moved)


def linear(d: Device, rows: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0) -> tuple[Floats, Floats, Floats]:
    """Return seconds forward, and backward: of the gradient of the input (rows x k over n) and of the weight (n x k over rows). Tokens
    are padded to multiples of 8, as frameworks do for experts: the weight gradient sums over them."""
    rows = np.ceil(rows / 8) * 8
    forward, inputs, weights = product(d, np.array([rows, rows, n]), np.array([n, k, k]), np.array([k, n, rows]), batch)
    return forward, inputs, weights


def memory_bound(d: Device, size: Floats) -> Floats:
    """Return seconds of kernels that only move `size` bytes, at least one shortest kernel. Callers scale the result for unfused kernels."""
    return np.maximum(size / d.bandwidth, MIN_KERNEL_SECONDS)


def rule_rate(op: Op, seq: int, alibi: bool, capped: bool, flexible: bool, cp: Floats | float = 1.0) -> Floats | float:
    """Return the attention rate under a layer's rule over plain causal attention. `cp` devices share the queries of a sequence."""
    if not flexible:
        return BIASED_RATE_RATIO if alibi else 1.0
    narrowed, wide = alibi or 0 < op.window < seq, np.asarray(op.k) > WIDE_HEAD
    if not narrowed and not capped:
        return 1.0
    compiled = FLEX_RATE_RATIO * np.where(wide, WIDE, 1.0)
    return compiled if narrowed else np.where(wide & (np.asarray(cp) == 1), WIDE_CAPPED_RATE_RATIO, compiled)


def attention(
    d: Device,
    op: Op,
    seq: int,
    mbs: Floats,
    heads: Floats,
    cp: Floats,
    flash: bool,
    rule: Floats | float = 1.0,
    multiple: float = 1.0,
) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of scores, softmax and values of one layer; each of `cp` devices has 1/cp of the queries.
    `rule`: the rate of a flash kernel with the layer's rule over that without (`rule_rate`). The latter pads heads to a `multiple`."""
    d, sequences, rows = d.in_16_bits(), mbs * heads, seq / cp
    if flash:
        keys = min(float(seq), op.keys(seq) + FLASH_TILE_KEYS / 2)
        tile = np.where(np.asarray(rule) == 1, multiple, 1.0)
        size = (np.ceil(op.n / tile) + np.ceil(op.k / tile)) * tile / 2
        flops = 2 * sequences * rows * keys * 2 * size
        rate = d.peak * d.calibration.flash * (size / (size + FLASH_HEAD)) * 1.5 * rule
        moved = 2 * d.element * sequences * rows * (op.n + op.k) / d.bandwidth
        return flops / rate + moved, 2.5 * flops / (rate * FLASH_BACKWARD_RATE_RATIO) + FLASH_BACKWARD_BYTES_RATIO * moved
    products = product(d, rows, seq, op.k, sequences) + product(d, rows, op.n, seq, sequences)
    scores = d.element * sequences * rows * seq / d.bandwidth
    on_matrix_units = (np.mod(op.n, 8) == 0) & (np.mod(op.k, 8) == 0)
    slower = np.where(on_matrix_units & (np.mod(sequences, EVEN_HEADS_MULTIPLE) > 0), d.calibration.uneven, 1.0)
    # Softmax reads and writes the scores, so does dropout, and writes its mask; backward likewise, and softmax reads two arrays.
    return slower * (products + 4.5 * scores), slower * (2 * products + 5.5 * scores)
