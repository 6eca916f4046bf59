"""The TTT-Linear kernels alone: checked against a float64 loop, and timed one by one in several launch configurations.

python benchmarks/kernels/ttt_kernels.py check | time | warm KERNEL
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.workers.trainer.models.ttt.kernels import linear
from meshwise.workers.trainer.models.ttt.learner import rotate
from meshwise.workers.trainer.models.ttt.linear import learn
from meshwise.workers.trainer.models.ttt.model import rotation_of

SHAPES = ((16, 128), (16, 512), (8, 2048))
VARIANTS = {
    "prepare": ((1, 0),),
    "forward_chain": ((4, 1), (4, 2), (2, 2)),
    "forward_out": ((1, 0),),
    "backward_each": ((1, 0), (2, 0)),
    "backward_chain": ((4, 1), (4, 2), (2, 2)),
    "backward_finish": ((1, 0), (2, 0)),
}


def plain(
    packed: Tensor, rotation: Tensor, w: Tensor, b: Tensor, g: Tensor, be: Tensor, idx: Tensor, bias: Tensor, base: float
) -> Tensor:
    """Run the plain learner's loop on the kernels' inputs, in their precision."""
    heads, size, tokens, seq = w.shape[0], w.shape[-1], len(idx), packed.shape[1]
    width = heads * size
    x = F.pad(packed, (0, 0, 0, -seq % tokens))
    parts = (
        x[..., at : at + width].unflatten(-1, (heads, size)).transpose(1, 2).unflatten(2, (-1, tokens))
        for at in (0, width, 2 * width)
    )
    q, k, v = parts
    q, k = rotate(q, rotation), rotate(k, rotation)
    rate = (
        (x[..., 3 * width : 3 * width + heads] + bias.flatten()).sigmoid().transpose(1, 2).unflatten(2, (-1, tokens))
        * base
        / size
    )
    place = (1 / torch.arange(1, tokens + 1, dtype=x.dtype, device=x.device) + idx).clamp(min=0)
    out = learn(q, k, v, rate, place, w, b, g.unsqueeze(1), be.unsqueeze(1))
    return out.flatten(2, 3).transpose(1, 2).flatten(2)[:, :seq]


def draw(batch: int, seq: int, heads: int, size: int = 64, tokens: int = 16, device: str = "cuda") -> list[Tensor]:
    """Return random inputs of the kernels."""
    width = heads * size
    config = {"model_type": "ttt", "hidden_size": width, "num_attention_heads": heads, "mini_batch_size": tokens}
    normal = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731
    small = [normal(heads, size, size) * 0.3, normal(heads, 1, size), normal(heads, size), normal(heads, size)]
    rotation = rotation_of(config, torch.device(device))
    return [normal(batch, seq, linear.columns(width, heads)), rotation, *small, normal(tokens) * 0.3, normal(heads, 1)]


def gradients(run: Callable[..., Tensor], given: list[Tensor], dtype: torch.dtype, rest: torch.dtype) -> list[Tensor]:
    """Return the output and the gradient of every input but the rotation; `dtype` is that of the packed rows, `rest` of all others."""
    leaves = [tensor.to(dtype if i == 0 else rest).detach().requires_grad_(i != 1) for i, tensor in enumerate(given)]
    out = run(*leaves, 1.3)
    wanted = torch.randn(out.shape, generator=torch.Generator(out.device).manual_seed(1), device=out.device)
    out.backward(wanted.to(out.dtype))
    return [out.detach(), *(tensor.grad for tensor in leaves if tensor.grad is not None)]


DRAWS = {torch.float32: 1, torch.bfloat16: 4}
NAMES = ("out", "packed", "W1", "b1", "gamma", "beta", "token_idx", "lr_bias")


def fast(*given: Tensor) -> Tensor:
    return linear.forward(*given)[0]


def errors(
    batch: int, seq: int, heads: int, dtype: torch.dtype, size: int = 64, device: str = "cuda", draws: int = 1
) -> dict[str, float]:
    """Return the relative errors of the output and of every gradient against the loop in float64, over several random draws.

    Gradients of token_idx and lr_bias are a few numbers, each a sum over all tokens: where such a sum happens to cancel, 16-bit results
    are off by percents of the remainder, in plain PyTorch more than here. Several draws together do not cancel.
    """
    off, whole = torch.zeros(len(NAMES)), torch.zeros(len(NAMES))
    for seed in range(draws):
        torch.manual_seed(seed)
        given = draw(batch, seq, heads, size, device=device)
        given[0] = given[0].to(dtype)
        true = gradients(plain, given, torch.float64, torch.float64)
        ours = gradients(fast, given, dtype, torch.float32)
        off += torch.tensor([float((a.double() - b).square().sum()) for a, b in zip(ours, true, strict=True)])
        whole += torch.tensor([float(b.square().sum()) for b in true])
    return dict(zip(NAMES, (off / whole).sqrt().tolist(), strict=True))


def check() -> None:
    """Print the errors of every shape. bfloat16 comes first: float32 products without tensor cores take Triton a minute to compile."""
    shapes = [(2, 16, 3), (1, 4096, 2), (64, 48, 2), (3, 1, 2), (2, 100, 12), (4, 333, 12), (2, 512, 12)]
    for dtype, limit in ((torch.bfloat16, 1e-2), (torch.float32, 1e-5)):
        for batch, seq, heads in shapes:
            off = errors(batch, seq, heads, dtype, draws=DRAWS[dtype])
            word = "ok " if all(value < limit for value in off.values()) else "BAD"
            print(f"{word} {str(dtype)[6:]:9} {batch}x{seq}x{heads}", *(f"{n} {v:.0e}" for n, v in off.items()), flush=True)


def seconds(run: Callable[[], object], times: int = 20) -> float:
    """Return the median seconds of one call, by replaying a CUDA graph of ten."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    graph.replay()
    torch.cuda.synchronize()
    samples: list[float] = []
    for _ in range(times):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / 1e4)
    return sorted(samples)[len(samples) // 2]


def part(name: str, given: list[Tensor]) -> Callable[[], object]:
    """Return a function that launches one kernel on these inputs."""
    calls: list[Callable[[], object]] = []
    launch = linear.launch

    def spy(called: str, programs: int, packed: Tensor) -> Callable[..., None]:
        def start(*args: object, **options: object) -> None:
            ready = partial(launch(called, programs, packed), *args, **options)
            if called == name:
                calls.append(ready)
            ready()

        return start

    linear.launch = spy
    try:
        out, *kept = linear.forward(*given, 1.0)
        _, rotation, w1, _, gamma, _, token_idx, _ = given
        linear.backward(torch.randn_like(out), rotation, w1, gamma, token_idx, *kept, 1.0)
    finally:
        linear.launch = launch
    return calls[0]


def inputs(batch: int, seq: int) -> list[Tensor]:
    given = draw(batch, seq, 12)
    given[0] = given[0].bfloat16()
    return given


def time_all(names: list[str], quiet: bool) -> None:
    for name in names:
        for warps, stages in VARIANTS[name]:
            kept = linear.LAUNCH_SETTINGS[name]
            linear.LAUNCH_SETTINGS[name] = replace(kept, warps=warps, stages=stages)
            row: list[str] = []
            try:
                for batch, seq in SHAPES[:1] if quiet else SHAPES:
                    given = inputs(batch, seq)
                    if quiet:
                        part(name, given)()
                    else:
                        row.append(f"{seconds(part(name, given)) * 1e6:8.1f}")
            except Exception as error:
                row.append(f"{type(error).__name__}: {str(error)[:100]}")
            linear.LAUNCH_SETTINGS[name] = kept
            if not quiet:
                print(f"{name:15} warps {warps} stages {stages}  us at 16x128, 16x512, 8x2048:", *row, flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    mode, *names = sys.argv[1:]
    if mode == "check":
        check()
    elif mode == "warm":
        time_all(names, quiet=True)
    else:
        began = time.time()
        for process in [subprocess.Popen([sys.executable, __file__, "warm", name]) for name in VARIANTS]:
            process.wait()
        print(f"compiled in {time.time() - began:.0f} s", flush=True)
        time_all(names or list(VARIANTS), quiet=False)
