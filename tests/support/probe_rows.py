"""Rows that a probe would write on a machine that follows the cost model exactly, with coefficients that the test knows."""

from dataclasses import replace
from typing import Any

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import find_chip
from meshwise.cost.train.compute import Device, attention, product
from meshwise.models.op import Op
from meshwise.workers.probe.kernels import ATTENTION, GPU_PRODUCTS

Row = dict[str, Any]


def row(kind: str, seconds: float, **shape: Any) -> Row:
    return {"kind": kind, **shape, "seconds": seconds, "low": seconds * 0.99, "high": seconds * 1.01, "repeats": 9}


def h200_rows(truth: Calibration, hot: float = 0.9) -> list[Row]:
    """An H200 with these `matmul`, `tile`, `depth`, `memory` and `flash`, which loses a tenth of its rate once it is hot."""
    chip = find_chip("h200")
    about = {"kind": "machine", "device": "cuda", "ranks": 1, "nodes": 1, "name": "NVIDIA H200", "memory": 150e9, "sms": 132}
    rows: list[Row] = [about | {"torch": "2.11", "date": "2026-11-15", "context": 5e8, "cores": 16, "threads": 8}]
    device = Device.of(chip, truth, "bf16")
    for m, n, k in GPU_PRODUCTS:
        seconds = float(np.ravel(product(device, m, n, k))[0])
        rows.append(row("gemm", seconds, m=m, n=n, k=k, dtype="bf16", flops=2 * m * n * k))
    burst = next(one for one in rows[1:] if (one["m"], one["n"], one["k"]) == (4096, 4096, 4096))
    rows.append(row("sustained", burst["seconds"] / hot, m=4096, n=4096, k=4096, dtype="bf16", flops=2 * 4096**3))
    rows += [
        row("memory", 2 * size / (chip.bandwidth * truth.memory), what="copy", size=size, bytes=2 * size)
        for size in (2**30, 2**28)
    ]
    rows += _attention(device)
    rows += [row("launch", 5e-6, what="eager"), row("launch", 1e-6, what="graph")]
    shape = {"tokens": 64, "seq": 64, "hidden": 256, "heads": 4, "ffn": 768, "dtype": "bf16"}
    rows.append(row("block", 1.2e-3, what="both", small=1, **shape))
    return rows


def _attention(device: Device) -> list[Row]:
    found: list[Row] = []
    for batch, heads, seq, width in ATTENTION["cuda"]:
        flops = 2 * batch * heads * seq * seq * width
        op = Op(name="attention", part="attention", kind="attention", n=width, k=width, m=heads)
        both = attention(device, op, seq, np.array([float(batch)]), np.array([float(heads)]), np.ones(1), flash=True)
        shape = {"batch": batch, "heads": heads, "seq": seq, "width": width, "dtype": "bf16"}
        for what, seconds, times in (("forward", both[0], 1), ("backward", both[1], 2.5)):
            found.append(row("attention", float(seconds[0]), what=what, flops=times * flops, **shape))
    return found


TRUTH = replace(Calibration(), matmul=0.7, tile=0.1, depth=150.0, memory=0.82, flash=0.5)
