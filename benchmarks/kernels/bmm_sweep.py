# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""Time the batched products of attention without flash kernels, in Megatron's memory layout, over the shapes of the BLOOM notes.

Prints CSV: hidden, heads, tp, micro-batch, head size, microseconds of Q K' and of P V, and TFLOP/s of both, each as a view of
[sequence, micro-batch x heads, head size] and contiguous. Run on the device machine:  python benchmarks/kernels/bmm_sweep.py > bmm.csv
"""

import torch

from gemm_sweep import median_microseconds

SEQ = 2048
ROWS = (  # hidden, heads, tp, micro-batch
    *((14336, 64, 8, mbs) for mbs in (1, 2, 3, 4, 6, 8)), *((14336, 64, 4, mbs) for mbs in (1, 2, 4)),
    *((14336, 64, 2, mbs) for mbs in (1, 2)), *((14336, heads, 8, 4) for heads in (16, 32, 112, 128, 256)),
    *((13824, heads, 8, 4) for heads in (64, 96, 128)), (13824, 64, 8, 2), *((13312, heads, 8, 4) for heads in (64, 128)),
    (13312, 64, 8, 2), *((12288, heads, 8, 4) for heads in (64, 96, 128)), (12288, 64, 8, 2), (14400, 96, 8, 1), (14400, 96, 8, 4),
)  # fmt: skip


def main() -> None:
    print("hidden,heads,tp,mbs,head,layout,qk_us,pv_us,qk_tflops,pv_tflops")
    for hidden, heads, tp, mbs in ROWS:
        batch, size = mbs * heads // tp, hidden // heads
        flops = 2 * batch * SEQ * SEQ * size
        views = [torch.randn(SEQ, batch, size, device="cuda", dtype=torch.bfloat16).transpose(0, 1) for _ in range(3)]
        scores = torch.randn(batch, SEQ, SEQ, device="cuda", dtype=torch.bfloat16)
        for layout, (q, k, v) in (("view", views), ("contiguous", [x.contiguous() for x in views])):
            qk = median_microseconds(lambda: torch.bmm(q, k.transpose(1, 2)))
            pv = median_microseconds(lambda: torch.bmm(scores, v))
            print(
                f"{hidden},{heads},{tp},{mbs},{size},{layout},{qk:.1f},{pv:.1f},{flops / qk / 1e6:.0f},{flops / pv / 1e6:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
