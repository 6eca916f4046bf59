"""Time on one device: matrix products, attention, and everything that only moves bytes."""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Chip, Dtype
from meshwise.cost.layout import Floats
from meshwise.cost.tiles import FLASH_HEAD, LARGEST_TILE, TILES
from meshwise.models.op import Op

SIDES = np.array(TILES, dtype=float).T
BACKWARD_BYTES = 1.3
"""Bytes an elementwise operation moves backward over forward: Korthikanti et al. 2022, Table 4, 11.9 ms - products and all-reduces."""
VECTOR_EFFICIENCY = 0.5
"""Of the fp32 rate, when a product cannot use the matrix units."""
FLASH_BACKWARD = 0.85
FLASH_TILE = 128
"""Keys that flash attention computes at a time: at the edge of the causal mask whole tiles, half of which are thrown away."""
FLASH_BYTES_BACK = 4
"""Bytes that it moves backward over forward: queries, keys, values, output and its gradient are read, three gradients written, and that of
the queries is summed in float32. On an H200 a step's time over sequences of 512 to 4096 tokens has 48 to 59 bytes per element of the
queries that do not grow with the sequence (Llama 125M and 1B, docs/loop.md); 5 times 8 are counted here, and the tile."""
EVEN = 32
"""Of 8, 16, 32 and 64, the one that steps in the BLOOM notes and in vTrain's runs follow."""
SHORTEST_KERNEL = 2.8e-6
"""Seconds of a kernel that has next to nothing to do: on an H200, AdamW took 1.02 ms for the 110 weights of Llama 125M, a kernel each, and
their bytes take 0.71 (docs/ttt-kernels.md)."""
CAST_BYTES = 5.0
"""Moved per element that is turned from bf16 into fp8: read for its scale, read again, written."""


@dataclass(frozen=True)
class Device:
    """What of a chip and its calibration the formulas need, for one precision."""

    peak: float
    """FLOP/s of the layers' products."""
    wide: float
    """FLOP/s in 16 bits: attention and the head stay there when the layers go lower."""
    vector: float
    bandwidth: float
    sms: int
    element: float
    calibration: Calibration
    share: float
    """Of the peak, in a product of ideal shape."""
    casts: bool = False
    """Inputs are turned into 8 bits before every product."""
    joins: bool = False
    """Products of one input are one."""

    @staticmethod
    def of(chip: Chip, calibration: Calibration, precision: str) -> "Device":
        rates = chip.flops
        wide = rates.get("bf16") or rates.get("fp16") or rates.get("fp32") or max(rates.values(), default=1e12)
        peak = rates.get(cast(Dtype, precision)) or wide
        casts = precision == "fp8" and "fp8" in rates
        share = calibration.matmul * (calibration.fp8 if casts else 1)
        vector = rates.get("fp32") or wide / 16
        return Device(peak, wide, vector, chip.bandwidth * calibration.memory, chip.sms or 100, 2.0, calibration, share, casts)

    def without(self, sms: int) -> "Device":
        """The same device where so many of its SMs do something else."""
        left = max(1, self.sms - sms) / self.sms
        return replace(self, peak=self.peak * left, wide=self.wide * left, sms=max(1, self.sms - sms))

    def in_16_bits(self) -> "Device":
        return replace(self, peak=self.wide, share=self.calibration.matmul, casts=False)


def product(d: Device, m: Floats | float, n: Floats | float, k: Floats | float, batch: Floats | float = 1.0) -> Floats:
    """Seconds of `batch` products m x k by k x n: whole waves of whole tiles over the SMs, or the bytes, whichever is longer.

    A tile of the output occupies one SM for k + depth steps. Rows of memory that are no multiple of 16 bytes cannot feed the matrix
    units at all: 13824 hidden in 128 heads of 108 took 163 s where 96 heads of 144 took 125 (BLOOM notes, NHEADS tables).
    """
    c = d.calibration
    m, n, k = np.asarray(m, float), np.asarray(n, float), np.asarray(k, float)
    tall, wide = SIDES.reshape(2, -1, *(1,) * max(1, m.ndim))
    tiles = np.ceil(m / tall) * np.ceil(n / wide) * batch
    area = np.min(np.ceil(tiles / d.sms) * (d.sms * tall * wide / (tall * wide / LARGEST_TILE) ** c.tile), axis=0)
    busy = 2 * area * (k + c.depth) / (d.peak * d.share)
    moved = d.element * batch * (m * k + k * n + m * n) / d.bandwidth
    aligned = (np.mod(n, 8) == 0) & (np.mod(k, 8) == 0)
    slow = 2 * m * n * k * batch / (d.vector * VECTOR_EFFICIENCY)
    return np.maximum(np.where(aligned, busy, slow), moved)


def linear(d: Device, rows: Floats, n: Floats, k: Floats, batch: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Forward, and backward: the gradient of the input (rows x k over n) and of the weight (n x k over rows).

    Tokens are padded to whole rows of 8, as frameworks do for experts: the weight's gradient sums over them.
    """
    rows = np.ceil(rows / 8) * 8
    forward, inputs, weights = product(d, np.array([rows, rows, n]), np.array([n, k, k]), np.array([k, n, rows]), batch)
    return forward, inputs + weights


def moving(d: Device, size: Floats) -> Floats:
    """Seconds of a kernel that only moves bytes: no kernel is over at once. Where bytes are more for want of fusing, so are kernels."""
    return np.maximum(size / d.bandwidth, SHORTEST_KERNEL)


def attention(d: Device, op: Op, seq: int, mbs: Floats, heads: Floats, cp: Floats, flash: bool) -> tuple[Floats, Floats]:
    """Scores, softmax and values of one layer, forward and backward; each of `cp` devices has 1/cp of the queries."""
    d, sequences, rows = d.in_16_bits(), mbs * heads, seq / cp
    if flash:
        keys = min(float(seq), op.keys(seq) + FLASH_TILE / 2)
        size = (op.n + op.k) / 2
        flops = 2 * sequences * rows * keys * (op.n + op.k)
        rate = d.peak * d.calibration.flash * (size / (size + FLASH_HEAD)) * 1.5
        moved = 2 * d.element * sequences * rows * (op.n + op.k) / d.bandwidth
        return flops / rate + moved, 2.5 * flops / (rate * FLASH_BACKWARD) + FLASH_BYTES_BACK * moved
    products = product(d, rows, seq, op.k, sequences) + product(d, rows, op.n, seq, sequences)
    scores = d.element * sequences * rows * seq / d.bandwidth
    on_matrix_units = (np.mod(op.n, 8) == 0) & (np.mod(op.k, 8) == 0)
    slower = np.where(on_matrix_units & (np.mod(sequences, EVEN) > 0), d.calibration.uneven, 1.0)
    # Softmax reads and writes the scores, dropout too and its mask; backward the same, and softmax reads two.
    return slower * (products + 4.5 * scores), slower * (2 * products + 5.5 * scores)
