# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""Time of all other kernels than GEMMs on this GPU: copies, norms, softmax, activation functions, attention, AdamW, launches.

Prints CSV (kernel, bytes moved by the formula, microseconds, TB/s). Run on the device machine:  python benchmarks/kernels/bytes_sweep.py
"""

import time
from typing import Any

import torch
import torch.nn.functional as F
from triton.testing import do_bench

H = 4096


def row(what: str, work, moved: float, flops: float = 0) -> None:
    median: Any = do_bench(work, warmup=5, rep=30, return_mode="median")
    us = 1000 * median
    print(f"{what},{moved:.4g},{us:.2f},{moved / us / 1e6:.3f},{flops / us / 1e6:.1f}", flush=True)


def attention(batch: int, heads: int, seq: int, size: int) -> None:
    q, k, v = (torch.randn(batch, heads, seq, size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    flops = 4 * batch * heads * seq * seq * size / 2
    row(f"flash fwd b{batch} a{heads} s{seq} d{size}", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 0, flops)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(out)
    row(
        f"flash bwd b{batch} a{heads} s{seq} d{size}",
        lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True),
        0,
        2.5 * flops,
    )
    scores = (
        torch.randn(batch, heads, seq, seq, device="cuda", dtype=torch.bfloat16) if batch * heads * seq * seq < 2**31 else None
    )
    if scores is not None:
        row(
            f"bmm qk b{batch} a{heads} s{seq} d{size}",
            lambda: q.detach() @ k.detach().transpose(-1, -2),
            2 * scores.numel(),
            2 * flops,
        )
        row(f"bmm av b{batch} a{heads} s{seq} d{size}", lambda: scores @ v.detach(), 2 * scores.numel(), 2 * flops)


def main() -> None:
    print("what,bytes,us,TB/s,TFLOP/s")
    for tokens in (1024, 4096, 16384):
        x, y = (torch.randn(tokens, H, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        w = torch.ones(H, device="cuda", dtype=torch.bfloat16)
        size = 2 * x.numel()
        row(f"copy {tokens}", lambda: x.clone(), 2 * size)
        row(f"add {tokens}", lambda: x + y, 3 * size)
        row(f"gelu {tokens}", lambda: F.gelu(x), 2 * size)
        row(f"silu-mul {tokens}", lambda: F.silu(x) * y, 5 * size)
        row(f"rmsnorm {tokens}", lambda: F.rms_norm(x, (H,), w), 2 * size)
        row(f"layernorm {tokens}", lambda: F.layer_norm(x, (H,), w, w), 2 * size)
        row(f"softmax {tokens}", lambda: F.softmax(x, -1), 2 * size)
        row(f"dropout {tokens}", lambda: F.dropout(x, 0.1, True), 2.5 * size)
    for vocab in (50304, 131072):
        logits = torch.randn(4096, vocab, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        target = torch.randint(vocab, (4096,), device="cuda")
        row(f"cross entropy fwd {vocab}", lambda: F.cross_entropy(logits.float(), target), 4096 * vocab * 14)
        loss = F.cross_entropy(logits.float(), target)
        row(f"cross entropy bwd {vocab}", lambda: torch.autograd.grad(loss, logits, retain_graph=True), 4096 * vocab * 14)
    for shape in ((1, 32, 4096, 64), (2, 32, 4096, 128), (4, 8, 2048, 224), (4, 14, 2048, 128), (4, 12, 2048, 144), (4, 16, 2048, 108),
                  (1, 8, 32768, 128), (1, 64, 2048, 128), (8, 12, 1024, 64)):  # fmt: skip
        attention(*shape)
    params = [torch.nn.Parameter(torch.randn(4096, 4096, device="cuda")) for _ in range(16)]
    for p in params:
        p.grad = torch.randn_like(p)
    n = sum(p.numel() for p in params)
    for fused in (True, False):
        optimizer = torch.optim.AdamW(params, lr=1e-4, fused=fused)
        optimizer.step()
        row("adamw fused" if fused else "adamw foreach", optimizer.step, 28 * n)
    a = torch.randn(64, device="cuda")
    torch.cuda.synchronize()
    for name, work in (("launch add", lambda: a + a), ("launch mm", lambda: torch.mm(a.view(8, 8), a.view(8, 8)))):
        for _ in range(200):
            work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5000):
            work()
        torch.cuda.synchronize()
        print(f"{name},0,{(time.perf_counter() - start) / 5000 * 1e6:.2f},0,0")


if __name__ == "__main__":
    main()
