# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""GEMM time by shape on this GPU: the measurements behind the cost model's efficiency curve.

Prints CSV (m, n, k, aligned to, microseconds, TFLOP/s) for the three products of a linear layer: y = x W' (forward), dx = dy W
(input gradient), dw = dy' x (weight gradient). Run on the device machine:  python benchmarks/kernels/gemm_sweep.py > gemm.csv
"""

import sys
from typing import Any

import torch
from triton.testing import do_bench

TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
WIDTHS = (  # n, k of a linear layer: powers of two, real models cut by tp, and near misses of alignment
    (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (1792, 14336), (1800, 14400), (1728, 13824), (5376, 14336),
    (5400, 14400), (5184, 13824), (7168, 14336), (7200, 14400), (6912, 13824), (14336, 7168), (14400, 7200), (13824, 6912),
    (14336, 1792), (14400, 1800), (13824, 1728), (2048, 768), (2304, 768), (768, 2048), (4096, 1376), (1376, 4096), (11008, 4096),
    (4096, 11008), (6144, 768), (768, 6144), (3072, 6144), (6144, 3072), (16384, 2048), (2048, 16384), (131072, 2048), (31360, 14336),
    (4096, 4104), (4104, 4096), (4096, 4112), (4112, 4096), (4096, 4128), (4128, 4096), (4096, 4160), (4160, 4096), (4096, 4100),
    (512, 4096), (4096, 512), (256, 4096), (4096, 256), (128, 8192), (8192, 128),
)  # fmt: skip


def median_microseconds(work) -> float:
    median: Any = do_bench(work, warmup=5, rep=25, return_mode="median")
    return 1000 * median


def main() -> None:
    print("product,m,n,k,us,tflops")
    for n, k in WIDTHS:
        weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        for tokens in TOKENS:
            x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
            dy = torch.randn(tokens, n, device="cuda", dtype=torch.bfloat16)
            for product, work in (("fwd", lambda: x @ weight.t()), ("dgrad", lambda: dy @ weight), ("wgrad", lambda: dy.t() @ x)):
                us = median_microseconds(work)
                print(f"{product},{tokens},{n},{k},{us:.2f},{2 * tokens * n * k / us / 1e6:.1f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
