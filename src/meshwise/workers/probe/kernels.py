"""Measurements on one device: products, alone and grouped, memory, launches, attention, blocks of a model, the optimizer, the host's link.

Operands are random: zeros multiply faster because they draw less power. Shapes are ordered so that any prefix is useful,
and a short probe covers the same kinds as a long one.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshwise.workers.probe.clock import Clock, Timing
from meshwise.workers.probe.rows import Row, row

Shape = tuple[int, int, int]
GPU_PRODUCTS: tuple[Shape, ...] = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (8192, 4096, 4096), (8192, 14336, 4096),
    (8192, 4096, 14336), (14336, 4096, 8192), (16384, 2048, 2048), (16384, 8192, 2048), (16384, 2048, 8192), (8192, 768, 768),
    (8192, 2048, 768), (8192, 768, 2048), (2048, 768, 8192), (16384, 768, 768), (4096, 1024, 4096), (2048, 4096, 4096),
    (8192, 50304, 768), (8192, 128256, 2048), (512, 4096, 4096), (1024, 4096, 4096), (256, 4096, 4096), (128, 4096, 4096),
    (4096, 4160, 4096), (4096, 4224, 4096), (4096, 4352, 4096), (4096, 4608, 4096), (4096, 5120, 4096), (4096, 6144, 4096),
    (4160, 4096, 4096), (4352, 4096, 4096), (4608, 4096, 4096), (4096, 4096, 64), (4096, 4096, 128), (4096, 4096, 256),
    (4096, 4096, 512), (4096, 4096, 1024), (4096, 4096, 4160), (4096, 4104, 4096), (4096, 4100, 4096), (4096, 4096, 4100),
    (2048, 8192, 2048), (8192, 2048, 8192), (2048, 2048, 16384), (768, 768, 16384), (32768, 768, 2048), (32768, 2048, 768),
    (512, 512, 512), (256, 256, 4096), (6144, 6144, 6144), (3072, 3072, 3072), (1536, 1536, 1536), (12288, 4096, 4096),
)  # fmt: skip
"""m, n, k for GPUs: squares, layers of models from 125M to 8B with their gradients, steps in m, n and k across tiles and waves, small
m, and widths that are not multiples of 8."""
CPU_PRODUCTS: tuple[Shape, ...] = (
    (512, 512, 512), (1024, 1024, 1024), (256, 256, 256), (128, 128, 128), (512, 768, 256), (512, 256, 768), (768, 256, 512),
    (512, 256, 256), (256, 256, 512), (64, 64, 64), (512, 512, 256), (2048, 512, 512), (512, 2048, 512), (128, 1024, 1024),
    (64, 1024, 1024), (16, 1024, 1024), (1, 1024, 1024), (512, 512, 32), (512, 512, 64), (512, 520, 512), (512, 516, 512),
    (520, 512, 512), (1536, 512, 512), (512, 1536, 512), (2048, 768, 768), (2048, 2048, 768), (2048, 768, 2048),
)  # fmt: skip
"""m, n, k for CPUs, which need as long for a thousandth of the FLOPs."""
GROUPED = ((64, 1024, 2048, 2048), (64, 1024, 2048, 1024), (8, 2048, 4096, 2048))
"""Experts, rows of each, outputs and inputs of a grouped product."""
SIZES = {"cuda": (2**30, 2**28, 2**26, 2**24, 2**22, 2**20), "cpu": (2**26, 2**24, 2**28, 2**22, 2**20, 2**18)}  # bytes to copy
ATTENTION_BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention backends in the trainer's order: on Hopper, cuDNN's takes two thirds of FlashAttention 2's time."""
ATTENTION = {"cuda": (
    (4, 32, 2048, 64), (2, 32, 2048, 128), (8, 16, 1024, 64), (1, 32, 8192, 128), (16, 12, 1024, 64), (4, 32, 4096, 128)),
    "cpu": ((4, 8, 64, 32), (1, 8, 256, 64), (8, 8, 64, 32), (1, 8, 1024, 64))}  # fmt: skip
"""Sequences, heads, sequence length and head size."""
BLOCKS = {"cuda": ((64, 256, 4, 768), (8192, 2048, 16, 8192), (8192, 768, 12, 2048), (8192, 4096, 32, 14336)),
    "cpu": ((16, 64, 4, 192), (512, 256, 8, 768), (256, 512, 8, 1536), (2048, 256, 8, 768))}  # fmt: skip
"""Tokens, hidden size, heads and feed-forward width of a block; the first is so small that only its launches take time."""
SEQUENCE_TOKENS = 64  # tokens per sequence in these blocks on a CPU; sixteen times as many on a GPU
STATE = {"cuda": 2**26, "cpu": 2**21}  # weights in the timing of the optimizer


def dtype_of(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _name(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


def random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype_of(device))


def products(clock: Clock, stop: float) -> Iterator[Row]:
    """Time x W', as in a linear layer, over shapes."""
    shapes = GPU_PRODUCTS if clock.device.type == "cuda" else CPU_PRODUCTS
    for i, (m, n, k) in enumerate(shapes):
        x, weight = random(clock.device, m, k), random(clock.device, n, k)
        seconds = max(0.0, stop - time.monotonic()) / (len(shapes) - i)
        timing = clock.time(partial(F.linear, x, weight), seconds)
        yield row("gemm", timing, m=m, n=n, k=k, dtype=_name(x.dtype), flops=2 * m * n * k)


def grouped(clock: Clock, stop: float) -> Iterator[Row]:
    """Time products of rows that are grouped by expert on a GPU, each with its own matrix: forward, and the weights' gradient."""
    for i, (experts, m, n, k) in enumerate(GROUPED):
        x, by, weights = (
            random(clock.device, experts * m, k), random(clock.device, experts * m, n), random(clock.device, experts, n, k),
        )  # fmt: skip
        ends = torch.arange(m, experts * m + 1, m, device=clock.device, dtype=torch.int32)
        product = torch._grouped_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        each = max(0.0, stop - time.monotonic()) / (len(GROUPED) - i) / 2
        about: Row = {"experts": experts, "m": m, "n": n, "k": k, "dtype": _name(x.dtype), "flops": 2 * experts * m * n * k}
        forward = clock.time(partial(product, x, weights.transpose(-2, -1), offs=ends), each)
        yield row("grouped", forward, what="forward", **about)
        yield row("grouped", clock.time(partial(product, by.T, x, offs=ends), each), what="weights", **about)


def sustained(clock: Clock, stop: float) -> Iterator[Row]:
    """Time one product repeatedly, to find its rate once the chip is hot and power-limited. Only the second half counts."""
    side = 4096 if clock.device.type == "cuda" else 512
    x, weight = random(clock.device, side, side), random(clock.device, side, side)
    out = torch.empty_like(x)
    each = clock.once(partial(torch.mm, x, weight, out=out))
    calls = max(1, round(0.05 / each))
    began, samples = time.monotonic(), list[float]()

    def burst() -> None:
        for _ in range(calls):
            torch.mm(x, weight, out=out)

    while time.monotonic() < stop or len(samples) < 3:
        samples.append(clock.once(burst) / calls)
    half = samples[len(samples) // 2 :]
    yield row("sustained", Timing.of(half), m=side, n=side, k=side, dtype=_name(x.dtype), flops=2 * side**3,
        lasted=time.monotonic() - began)  # fmt: skip


def copies(clock: Clock, stop: float) -> Iterator[Row]:
    """Time the reads and writes of a copy and of an addition of two arrays."""
    sizes = SIZES[clock.device.type]
    for i, size in enumerate(sizes):
        count = size // torch.tensor([], dtype=dtype_of(clock.device)).element_size()
        a, b = random(clock.device, count), random(clock.device, count)
        out = torch.empty_like(a)
        each = max(0.0, stop - time.monotonic()) / (len(sizes) - i) / 2
        yield row("memory", clock.time(partial(out.copy_, a), each), what="copy", size=size, bytes=2 * size)
        yield row("memory", clock.time(partial(torch.add, a, b, out=out), each), what="add", size=size, bytes=3 * size)


def launches(clock: Clock, stop: float) -> Iterator[Row]:
    """Time the host's launch of one small operation; on a GPU also the device's time per operation of a CUDA graph."""
    a = random(clock.device, 64)
    yield row("launch", clock.host(lambda: a + a, (stop - time.monotonic()) / 2), what="eager")
    if clock.device.type != "cuda":
        return
    count, graph = 200, torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        b = a
        for _ in range(count):
            b = b + a
    timing = clock.time(graph.replay, (stop - time.monotonic()) / 2)
    each = Timing(timing.seconds / count, timing.low / count, timing.high / count, timing.repeats)
    yield row("launch", each, what="graph")


def attention(clock: Clock, stop: float) -> Iterator[Row]:
    """Time causal attention, forward and backward separately."""
    shapes = ATTENTION[clock.device.type]
    for i, (batch, heads, seq, width) in enumerate(shapes):
        q, k, v = (random(clock.device, batch, heads, seq, width).requires_grad_() for _ in range(3))
        each = max(0.0, stop - time.monotonic()) / (len(shapes) - i) / 2
        about: Row = {"batch": batch, "heads": heads, "seq": seq, "width": width, "dtype": _name(q.dtype)}
        flops = 2 * batch * heads * seq * seq * width  # two products, half of them masked
        attend = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        with sdpa_kernel(ATTENTION_BACKENDS, set_priority=True):
            with torch.no_grad():
                forward = clock.time(attend, each)
            out = attend()
        yield row("attention", forward, what="forward", flops=flops, **about)
        grad = torch.randn_like(out)
        backward = clock.time(partial(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True), each)
        yield row("attention", backward, what="backward", flops=2.5 * flops, **about)


def blocks(clock: Clock, stop: float) -> Iterator[Row]:
    """Time a Llama block, one kernel per operation: forward, and forward plus backward."""
    kinds = BLOCKS[clock.device.type]
    for i, (tokens, hidden, heads, ffn) in enumerate(kinds):
        length = min(tokens, SEQUENCE_TOKENS * (16 if clock.device.type == "cuda" else 1))
        block, x = _block(clock.device, tokens, length, hidden, heads, ffn)
        each = max(0.0, stop - time.monotonic()) / (len(kinds) - i) / 2
        about: Row = {"tokens": tokens, "seq": length, "hidden": hidden, "heads": heads, "ffn": ffn, "dtype": _name(x.dtype)}
        small = i == 0
        run = partial(clock.host, inside=5) if small else clock.time

        def both(block: Callable[[Tensor], Tensor] = block, x: Tensor = x) -> None:
            block(x).sum().backward()

        with torch.no_grad():
            forward = run(partial(block, x), each)
        yield row("block", forward, what="forward", small=int(small), **about)
        yield row("block", run(both, each), what="both", small=int(small), **about)


def _block(
    device: torch.device, tokens: int, length: int, hidden: int, heads: int, ffn: int
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return a function that computes a block like the trainer's Llama, and its input."""
    sizes = ((hidden, hidden),) * 4 + ((ffn, hidden),) * 2 + ((hidden, ffn),)
    q, k, v, o, gate, up, down = ((random(device, *size) * 0.02).requires_grad_() for size in sizes)
    gains = [torch.ones(hidden, device=device, dtype=q.dtype, requires_grad=True) for _ in range(2)]
    half = hidden // heads // 2
    angle = torch.randn(length, 2 * half, device=device)
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)

    def rotate(x: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def block(x: Tensor) -> Tensor:
        y = F.rms_norm(x, (hidden,), gains[0])
        qs, ks, vs = (F.linear(y, w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in (q, k, v))
        a = F.scaled_dot_product_attention(rotate(qs), rotate(ks), vs, is_causal=True)
        x = x + F.linear(a.transpose(1, 2).flatten(2), o)
        y = F.rms_norm(x, (hidden,), gains[1])
        return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)

    return block, random(device, tokens // length, length, hidden).requires_grad_()


def update(clock: Clock, stop: float) -> Iterator[Row]:
    """Time a step of AdamW on float32 weights."""
    count = STATE[clock.device.type]
    weight = torch.nn.Parameter(torch.randn(count, device=clock.device))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=clock.device.type == "cuda")
    yield row("optimizer", clock.time(optimizer.step, stop - time.monotonic()), weights=count, bytes=28 * count)


def host_link(clock: Clock, stop: float) -> Iterator[Row]:
    """Time copies between pinned host memory and the device, in both directions."""
    for i, size in enumerate((2**28, 2**24, 2**20)):
        host, on_device = torch.randn(size // 4).pin_memory(), torch.randn(size // 4, device=clock.device)
        each = max(0.0, stop - time.monotonic()) / (3 - i) / 2
        yield row(
            "host", clock.time(partial(on_device.copy_, host, non_blocking=True), each), what="to device", size=size, bytes=size
        )
        yield row(
            "host", clock.time(partial(host.copy_, on_device, non_blocking=True), each), what="to host", size=size, bytes=size
        )
