"""TTT-MLP 125M on one GPU: kernels checked against float64, the time of each kernel, and tokens/s of forward + backward + AdamW.

PYTHONPATH=src python3 benchmarks/kernels/ttt_mlp.py [compile] [check] [kernels] [step] [profile] [plain]    (default: all)
"""

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.models.ttt.kernels import mlp
from meshwise.workers.trainer.models.ttt.mlp import learn
from meshwise.workers.trainer.models.ttt.model import rotation_of
from meshwise.workers.trainer.weights import init_random

CONFIG = json.loads((Path(__file__).parents[2] / "src/meshwise/data/models/ttt-mlp-125m.json").read_text())
NAMES = ["out", "q", "k", "v", "rate", "place", "W1", "b1", "W2", "b2", "gamma", "beta"]
PRINTED: list[str] = []
VARIANTS: dict[str, list[dict[str, int]]] = {
    "chain": [{"W": 8}, {"W": 16, "maxnreg": 128}],
    "output": [{"W": 4}, {"W": 8}, {"W": 8, "maxnreg": 128}],
    "readers": [{"W": 4}, {"W": 8}, {"W": 8, "maxnreg": 128}],
    "back_chain": [{"W": 8}, {"W": 16, "maxnreg": 128}],
    "through_w1": [{"W": 4}, {"W": 8}],
}
"""Warps (W) and registers per thread to try for each kernel."""
VOCABULARY, PADDED, CHUNK = 50257, 50304, 2048


def say(*words: object) -> None:
    """Print a line, and keep it for the summary at the end."""
    PRINTED.append(" ".join(map(str, words)))
    print(PRINTED[-1], flush=True)


def inputs(batch: int, batches: int, heads: int, width: int = 64, short: int = 16) -> list[Tensor]:
    """Return random inputs in float64; the zeros and ones of a fresh model would hide errors."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, device="cuda")

    inner, seq = 4 * width, batches * short
    return [
        *(draw(batch, seq, heads, width) for _ in range(3)), 0.1 * torch.rand(batch, seq, heads, device="cuda").double() / 16,
        torch.rand(short, device="cuda").double() + 0.1, draw(heads, width, inner) / width**0.5, 0.3 * draw(heads, 1, inner),
        draw(heads, inner, width) / inner**0.5, 0.3 * draw(heads, 1, width), 1 + 0.3 * draw(heads, width), 0.3 * draw(heads, width),
    ]  # fmt: skip


def plain(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, place: Tensor, *weights: Tensor) -> Tensor:
    def split(x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(2, (-1, len(place)))

    norm = [tensor.unsqueeze(1) for tensor in weights[-2:]]
    return learn(split(q), split(k), split(v), split(rate), place, *weights[:-2], *norm).flatten(2, 3).transpose(1, 2)


def with_gradients(run: Callable[..., Tensor], given: list[Tensor], d_out: Tensor) -> list[Tensor]:
    given = [tensor.detach().requires_grad_() for tensor in given]
    out = run(*given)
    return [out.detach(), *torch.autograd.grad(out, given, d_out.to(out.dtype))]


def check(batch: int, batches: int, heads: int) -> None:
    torch.manual_seed(batch + batches)
    given = inputs(batch, batches, heads)
    # the float64 reference gets the rounded inputs too, since the kernels do not cause that rounding
    half = [tensor.bfloat16() if i < 3 else tensor.float() for i, tensor in enumerate(given)]
    d_out = torch.randn_like(given[0]).bfloat16()
    exact = with_gradients(plain, [tensor.double() for tensor in half], d_out.double())
    ours = with_gradients(mlp.ttt_mlp, half, d_out)
    errors = {name: float((a.double() - b).norm() / b.norm()) for name, a, b in zip(NAMES, ours, exact, strict=True)}
    good = all(value < 1e-2 for value in errors.values())
    worst = max(errors, key=lambda name: errors[name])
    say(f"check {batch} x {16 * batches}, {heads} heads: worst {worst} {errors[worst]:.1e} {'ok' if good else 'TOO FAR'}")
    say("   ", " ".join(f"{name} {value:.1e}" for name, value in errors.items()))


def timed(run: Callable[[], object], repeats: int = 10) -> float:
    """Median milliseconds."""
    for _ in range(2):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in marks)[repeats // 2]


def runs(batch: int, batches: int, heads: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the forward and the backward pass of the operator on random inputs."""
    given = [tensor.bfloat16() if i < 3 else tensor.float() for i, tensor in enumerate(inputs(batch, batches, heads))]
    d_out = torch.randn_like(given[0])
    return lambda: mlp.ttt_mlp(*given), lambda: mlp.ttt_mlp_backward(d_out, *given)


def results(run: Callable[[], Any]) -> list[Tensor]:
    found = run()
    return [tensor.float() for tensor in ([found] if isinstance(found, Tensor) else found)]


def one(name: str, at: int) -> None:
    """Compile one variant of a kernel, for the cache on disk."""
    mlp.LAUNCH[name] = VARIANTS[name][at]
    mlp.KERNELS = {other: kernel if other == name else Absent() for other, kernel in mlp.KERNELS.items()}
    for run in runs(1, 2, 12):
        run()
    torch.cuda.synchronize()


class Absent:
    """A kernel that does nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *given, **named: None


def compile_all() -> None:
    """Compile all variants at once, each in a process."""
    began = time.perf_counter()
    each = [(name, at) for name, several in VARIANTS.items() for at in range(len(several))]
    started = [
        subprocess.Popen([sys.executable, __file__, "one", name, str(at)], stderr=subprocess.PIPE, text=True) for name, at in each
    ]
    for job, names in zip(started, each, strict=True):
        _, errors = job.communicate()
        if job.returncode:
            say("did not compile:", *names, errors[-600:])
    say(f"compiled in {time.perf_counter() - began:.0f} s")


def kernels(batch: int = 16, batches: int = 32, heads: int = 12) -> None:
    forward, backward = runs(batch, batches, heads)
    staggered, whole = mlp.waves, lambda q: [slice(None)]
    mlp.waves = whole
    for name, several in VARIANTS.items():
        run = forward if name in ("chain", "output") else backward
        before, wanted = mlp.LAUNCH[name], results(run)
        for options in several:
            mlp.LAUNCH[name] = options
            far = max(float((a - b).norm() / b.norm()) for a, b in zip(results(run), wanted, strict=True))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
                run()
                run()
                torch.cuda.synchronize()
            took = sum(e.device_time_total for e in seen.key_averages() if e.key.startswith(name)) / 2e3
            say(f"{name}, {options}: {took:.3f} ms, {far:.1e} from the default")
        mlp.LAUNCH[name] = before
    for words, waves in (("waves staggered", staggered), ("in one launch", whole)):
        mlp.waves = waves
        say(f"operator at {batch} x {16 * batches}, {words}: forward {timed(forward):.3f} ms,",
            f"backward {timed(backward):.3f} ms")  # fmt: skip
    mlp.waves = staggered


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of a tied head in chunks of tokens: all logits never exist at once, and gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        half = F.pad(weight.to(hidden.dtype), (0, 0, 0, PADDED - VOCABULARY))
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(half, dtype=torch.float32)
        total = torch.zeros((), device=hidden.device)
        for rows, row_targets, into in zip(hidden.split(CHUNK), targets.split(CHUNK), d_hidden.split(CHUNK), strict=True):
            loss, slope = entropy(rows @ half.T, row_targets, len(hidden))
            total += loss
            torch.mm(slope, half, out=into)
            d_weight += slope.T @ rows
        ctx.save_for_backward(d_hidden, d_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *d_loss: Tensor) -> tuple[Tensor, Tensor, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden, d_weight[:VOCABULARY], None


@torch.compile
def entropy(logits: Tensor, targets: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and its gradient by the logits."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    wide = torch.where(columns < VOCABULARY, logits.float(), float("-inf"))
    top = wide.logsumexp(-1, keepdim=True)
    right = columns == targets[:, None]
    loss = (top.squeeze(-1) - torch.where(right, wide, 0.0).sum(-1)).sum() / tokens
    return loss, (((wide - top).exp() - right.float()) / tokens).to(logits.dtype)


class Step:
    """Forward, backward and AdamW of the trainer's model, its blocks compiled, as one CUDA graph."""

    def __init__(self, batch: int, seq: int) -> None:
        layers = CONFIG["num_hidden_layers"]
        with torch.device("cuda"):
            self.model: Any = build(CONFIG, Span(0, layers, layers))
        init_random([self.model], 0, 0.02)
        self.tokens = torch.randint(0, VOCABULARY, (batch, seq + 1), device="cuda")
        self.rotation = rotation_of(CONFIG, torch.device("cuda"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True, capturable=True)
        for block in self.model.blocks():
            block.compile(fullgraph=True)

    def run(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            x = self.model.model.embed_tokens(self.tokens[:, :-1])
            for block in self.model.blocks():
                block.seq_modeling_block.choose_kernels(x.device)
                x = block(x, self.rotation)
            x = self.model.model.norm(x).bfloat16().flatten(0, 1)
            loss = ChunkedLoss.apply(x, self.model.model.embed_tokens.weight, self.tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def captured(self) -> Callable[[], object]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.first = self.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss = self.run()
        return graph.replay


def step(batch: int = 16, seq: int = 512) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    trainer = Step(batch, seq)
    replay = trainer.captured()
    replay()
    torch.cuda.synchronize()
    ready = time.perf_counter() - began
    took = timed(replay, 20)
    for _ in range(20):
        replay()
    peak = torch.cuda.max_memory_allocated() / 2**30
    say(f"step {batch} x {seq}: {took:.2f} ms, {batch * seq / took * 1e3:,.0f} tok/s, peak {peak:.2f} GiB,",
        f"loss {float(trainer.first):.3f} -> {float(trainer.loss):.3f}, ready in {ready:.0f} s")  # fmt: skip


def profile(batch: int = 16, seq: int = 512) -> None:
    trainer = Step(batch, seq)
    replay = trainer.captured()
    replay()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        replay()
        torch.cuda.synchronize()
    rows = sorted(((e.device_time_total / 1e3, e.count, e.key) for e in seen.key_averages()), reverse=True)
    say(f"by kernel, {sum(row[0] for row in rows):.2f} ms in all:")
    for took, count, key in rows[:24]:
        say(f"  {took:7.3f} ms {count:4} x {key[:100]}")


def plain_step(batch: int = 16, seq: int = 128) -> None:
    """Time the plain loop in eager PyTorch."""
    layers = CONFIG["num_hidden_layers"]
    with torch.device("cuda"):
        model: Any = build(CONFIG, Span(0, layers, layers))
    init_random([model], 0, 0.02)
    tokens = torch.randint(0, VOCABULARY, (batch, seq + 1), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rotation = rotation_of(CONFIG, torch.device("cuda"))

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            x = model.model.embed_tokens(tokens[:, :-1])
            for block in model.blocks():
                x = block(x, rotation)
            logits = model.lm_head(model.model.norm(x))
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    took = timed(run, 3)
    say(f"plain loop, eager, {batch} x {seq}: {took:.1f} ms, {batch * seq / took * 1e3:,.0f} tok/s")


PARTS: dict[str, list[Callable[[], None]]] = {
    "compile": [compile_all],
    "check": [
        lambda: check(2, 4, 3),
        lambda: check(1, 32, 2),
        lambda: check(1, 1, 1),
        lambda: check(3, 9, 5),
        lambda: check(16, 3, 12),
    ],
    "kernels": [kernels],
    "step": [step, lambda: step(16, 128), lambda: step(8, 2048)],
    "profile": [profile],
    "plain": [plain_step],
}


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], int(sys.argv[3]))
        return
    for name in sys.argv[1:] or list(PARTS):
        for part in PARTS[name]:
            try:
                part()
            except Exception:
                say(f"{name} failed:", traceback.format_exc()[-1500:])
    print("\n=== " + torch.cuda.get_device_name() + "\n" + "\n".join(PRINTED), flush=True)


if __name__ == "__main__":
    main()
