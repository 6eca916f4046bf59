# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportPrivateImportUsage=false
"""Time of 8-bit products and of casts to 8 bits on this GPU: the measurements behind the cost model's prior for fp8.

Prints CSV (what, m, n, k, microseconds, TFLOP/s or GB/s): scaled products with one scale per tensor and one per row, the bf16 product of
the same shape, and the cast from bf16 to fp8 with a scale per row. On the GPU machine: python benchmarks/kernels/fp8_sweep.py > fp8.csv
"""

import torch

from gemm_sweep import median_microseconds

SHAPES = (  # tokens, n, k: DeepSeek-V3's experts, dense layers and projections, Llama 3 70B and 405B cut by tp, squares
    (512, 4096, 7168), (1024, 4096, 7168), (4096, 4096, 7168), (4096, 7168, 2048), (1024, 7168, 2048), (4096, 24576, 1536),
    (4096, 7168, 16384), (4096, 18432, 7168), (4096, 7168, 18432), (8192, 7168, 8192), (8192, 8192, 7168), (8192, 13312, 16384),
    (8192, 16384, 6656), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 8192, 8192),
)  # fmt: skip


def quantize(x):
    scale = x.abs().amax(dim=1, keepdim=True).float() / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def main() -> None:
    print("what,m,n,k,us,rate")
    fused = torch.compile(quantize)
    for m, n, k in SHAPES:
        x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        (a, by_row), (b, by_column) = quantize(x), quantize(w)
        one = torch.ones((), device="cuda")

        def scaled(left, right):
            return torch._scaled_mm(a, b.t(), scale_a=left, scale_b=right, out_dtype=torch.bfloat16, use_fast_accum=False)

        works = {
            "bf16": lambda: x @ w.t(),
            "fp8 by tensor": lambda: scaled(one, one),
            "fp8 by row": lambda: scaled(by_row, by_column.t()),
        }
        for what, work in works.items():
            us = median_microseconds(work)
            print(f"{what},{m},{n},{k},{us:.2f},{2 * m * n * k / us / 1e6:.1f}")
        us = median_microseconds(lambda: fused(x))
        print(f"quantize,{m},0,{k},{us:.2f},{3 * m * k / us / 1e3:.1f}", flush=True)


if __name__ == "__main__":
    main()
