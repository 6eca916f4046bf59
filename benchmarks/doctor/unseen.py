"""Faults that no limit of `doctor` was set on, planted in real runs and diagnosed: `python benchmarks/doctor/unseen.py cpu|cuda [NAME...]`.

Each case is traced by torch's profiler and read by `meshwise doctor`; one JSON line says whether its fault is the first or second finding,
and whether a clean run has a certain one. `cpu` also has cases over several processes with gloo. Traces stay in $OUT/unseen or /tmp.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

CUDA = "cuda" in sys.argv[1:3]
DEVICE = torch.device("cuda" if CUDA else "cpu")
WIDTH, LAYERS, VOCAB, SEQ, BATCH = (2048, 4, 32768, 1024, 8) if CUDA else (256, 2, 3072, 160, 4)
WARM, TRACED = 3, 3


class Attention(nn.Module):
    def __init__(self, heads: int, size: int, kv: int, kind: str) -> None:
        super().__init__()
        self.heads, self.size, self.kv, self.kind = heads, size, kv, kind
        self.q, self.k, self.v = (nn.Linear(WIDTH, count * size, bias=False) for count in (heads, kv, kv))
        self.out = nn.Linear(heads * size, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            layer(x).view(rows, length, count, self.size).transpose(1, 2)
            for layer, count in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv))
        )
        if self.kind == "written out":
            k, v = (part.repeat_interleave(self.heads // self.kv, 1) for part in (k, v))
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.size**-0.5
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = torch.einsum("bhqk,bhkd->bhqd", scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1), v)
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.heads)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, -1))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, width, bias=False),
            nn.Linear(WIDTH, width, bias=False),
            nn.Linear(width, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Top-1 experts in a loop; `favour` is added to the score of the first two."""

    def __init__(self, favour: float, count: int = 12) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(Gated(WIDTH) for _ in range(count))
        self.register_buffer("bias", torch.tensor([favour, favour, *[0.0] * (count - 2)]))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        best = (self.router(flat) + self.bias.to(flat.dtype)).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (best.indices == number).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(flat[rows]) * best.values[rows, None])
        return out.view_as(x)


class Net(nn.Module):
    def __init__(
        self, heads: int = 4, size: int = 0, kv: int = 0, kind: str = "", layers: int = 0, vocab: int = 0, favour: float | None = None,
        dtype: torch.dtype | None = None, each: Callable[[Tensor], object] = lambda x: None, width: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(1)
        self.each = each
        heads = heads * (4 if CUDA else 1)
        size, kv, layers = size or WIDTH // heads, kv or heads, layers or LAYERS
        ffn = width or 4 * WIDTH
        self.embed, self.norm = nn.Embedding(vocab or VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.ModuleList(Attention(heads, size, kv, kind) for _ in range(layers))
        self.ffw = nn.ModuleList(Gated(ffn) if favour is None else Experts(favour) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * layers))
        self.head = nn.Linear(WIDTH, vocab or VOCAB, bias=False)
        self.to(DEVICE, dtype or (torch.bfloat16 if CUDA else torch.float32))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for number, (attention, ffw) in enumerate(zip(self.attention, self.ffw, strict=True)):
            x = x + attention(self.norms[2 * number](x))
            x = x + ffw(self.norms[2 * number + 1](x))
            self.each(x)
        return self.head(self.norm(x))


def batches(seconds: float = 0.0, lengths: tuple[int, ...] = (), work: int = 0) -> Iterator[Tensor]:
    """Yield batches; each waits, or computes on the host, as a loader without workers does."""
    number = 0
    while True:
        time.sleep(seconds)
        for _ in range(work):
            sorted(json.loads(json.dumps(list(range(4000)))), reverse=True)
        length = lengths[number % len(lengths)] if lengths else SEQ
        number += 1
        yield torch.randint(0, VOCAB, (BATCH, length + 1)).pin_memory() if CUDA else torch.randint(0, VOCAB, (BATCH, length + 1))


def through_loader(seconds: float, workers: int) -> Iterator[Tensor]:
    class Slow(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from batches(seconds)

    return iter(torch.utils.data.DataLoader(Slow(), batch_size=None, num_workers=workers))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def written_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a label-smoothed loss in single operations, in float32."""
    wide = logits.float() / 1.1
    wide = wide - wide.amax(-1, keepdim=True)
    logs = wide - wide.exp().sum(-1, keepdim=True).log()
    smooth = -logs.mean(-1)
    entropy = -(logs.exp() * logs).sum(-1)
    return (0.9 * -logs.gather(-1, targets[..., None]).squeeze(-1) + 0.1 * smooth - 0.01 * entropy).mean()


def steps(
    net: nn.Module, data: Iterator[Tensor] | None = None, loss: Callable[[Tensor, Tensor], Tensor] = loss_of,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None, after: Callable[[Tensor], object] = lambda logits: None, parts: int = 1,
    clip: bool = False,
) -> Iterator[None]:  # fmt: skip
    update = (optimizer or (lambda weights: torch.optim.AdamW(weights, lr=1e-5, fused=True)))(net.parameters())
    data = batches() if data is None else data
    while True:
        logits = torch.empty(0)
        for _ in range(parts):
            tokens = next(data).to(DEVICE, non_blocking=True)
            logits = net(tokens[:, :-1])
            loss(logits, tokens[:, 1:]).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update.step()
        update.zero_grad()
        after(logits)
        yield


def saving(net: nn.Module) -> Callable[[Tensor], object]:
    def save(_: Tensor) -> None:
        with tempfile.TemporaryFile() as file:
            torch.save({name: value.cpu() for name, value in net.state_dict().items()}, file)
            file.flush()
            os.fsync(file.fileno())

    return save


def features() -> Iterator[None]:
    """Copy a large input from memory that is not pinned in every step."""
    net, images = Net(), torch.randn(2**28 if CUDA else 2**22)
    return steps(net, after=lambda logits: images.to(DEVICE).sum())


def data_parallel(net: nn.Module, megabytes: float = 25) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=megabytes)


def square(seconds: float) -> Callable[[Tensor], object]:
    def work(_: Tensor) -> None:
        until, own = time.perf_counter() + seconds, torch.randn(256, 256)
        while time.perf_counter() < until:
            torch.mm(own, own)

    return work


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def with_clean_model(after: Callable[[nn.Module], Callable[[Tensor], object]], **words: Any) -> Iterator[None]:
    net = Net(**words)
    return steps(net, after=after(net))


Make = Callable[[], Iterator[None]]
BOTH: dict[str, tuple[str, int, Make]] = {
    "clean-gqa": ("", 1, lambda: steps(Net(kv=4))),
    "clean-clipped": ("", 1, lambda: steps(Net(layers=2 * LAYERS), clip=True)),
    "clean-parts": ("", 1, lambda: steps(Net(), parts=2)),
    "clean-wide": ("", 1, lambda: steps(Net(width=6 * WIDTH))),
    "written-out-attention": ("no flash attention", 1, lambda: steps(Net(kind="written out", heads=8))),
    "momentum-by-tensor": ("no fused optimizer", 1, lambda: steps(Net(layers=3 * LAYERS),
        optimizer=lambda w: torch.optim.SGD(w, lr=1e-4, momentum=0.9, weight_decay=0.1, foreach=False))),
    "loader-on-the-host": ("data loader", 1, lambda: steps(Net(), through_loader(0.25, 0))),
    "one-slow-loader": ("data loader", 1, lambda: steps(Net(), through_loader(0.6, 1))),
    "smoothed-loss": ("eager loss", 1, lambda: steps(Net(layers=1, vocab=4 * VOCAB), loss=written_loss)),
    "heads-of-odd-size": ("head size", 1, lambda: steps(Net(heads=8 if CUDA else 4, size=51))),
    "saved-each-step": ("checkpoint in the step", 1, lambda: with_clean_model(saving, layers=2 * LAYERS)),
    "two-busy-experts": ("expert imbalance", 1, lambda: steps(Net(favour=3.0))),
    "lengths-recompiled": ("recompilation", 1, lambda: steps(torch.compile(Net(layers=1), dynamic=False), batches(lengths=(SEQ, SEQ, SEQ, SEQ // 2, SEQ // 4, 96)))),  # pyright: ignore[reportArgumentType]
    "parsing-on-the-host": ("host work", 1, lambda: steps(Net(), batches(work=120))),
}  # fmt: skip
ON_CPU: dict[str, tuple[str, int, Make]] = {
    "clean-two-ranks": ("", 2, lambda: steps(data_parallel(Net()))),
    "buckets-of-a-kilobyte": ("tiny messages", 2, lambda: steps(data_parallel(Net(layers=5), 0.0005))),
    "busy-rank-of-four": ("slow rank", 4, lambda: steps(data_parallel(Net()), after=square(0.5 if rank() == 3 else 0.0))),
    "late-data-of-first-rank": ("slow rank", 2, lambda: steps(data_parallel(Net()), batches(0.5 if rank() == 0 else 0.0))),
}
ON_GPU: dict[str, tuple[str, int, Make]] = {
    "float32-with-tf32": (
        "float32 products",
        1,
        lambda: (torch.set_float32_matmul_precision("high"), steps(Net(dtype=torch.float32)))[1],
    ),
    "float32-without-tf32": (
        "TF32 off",
        1,
        lambda: (torch.set_float32_matmul_precision("highest"), steps(Net(dtype=torch.float32)))[1],
    ),
    "checked-each-layer": ("synchronisation", 1, lambda: steps(Net(layers=2 * LAYERS, each=lambda x: bool(x.isfinite().all())))),
    "many-small-kernels": ("small kernels", 1, lambda: steps(Net(layers=24, heads=1), batches(lengths=(32,)))),
    "input-not-pinned": ("pageable copies", 1, features),
    "logits-to-the-host": ("copies to the host", 1, lambda: steps(Net(layers=1), after=lambda logits: logits.detach().cpu())),
    "odd-vocabulary": ("uneven shapes", 1, lambda: steps(Net(layers=1, vocab=50257))),
    "near-the-limit": ("allocator", 1, lambda: near_the_limit()),
}


def near_the_limit() -> Iterator[None]:
    """Train with lengths that change in little more memory than they need: the allocator frees what it kept, and asks again."""
    net = Net()
    made = steps(net, batches(lengths=(SEQ, SEQ - 256, SEQ - 64, SEQ - 512)))
    next(made)
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 0.93 * most / torch.cuda.get_device_properties(0).total_memory))
    return made


CASES = BOTH | (ON_GPU if CUDA else ON_CPU)


def trace(folder: Path, name: str) -> None:
    """Trace one case as this rank."""
    if not CUDA:
        torch.set_num_threads(1)
    _, count, make = CASES[name]
    if count > 1:
        dist.init_process_group("gloo")
    run = make()
    for _ in range(WARM):
        next(run)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
    if CUDA:
        torch.cuda.synchronize()
    elif count > 1:
        dist.barrier()
    with profile(activities=kinds, record_shapes=True) as seen:
        for _ in range(TRACED):
            next(run)
        if CUDA:
            torch.cuda.synchronize()
    seen.export_chrome_trace(str(folder / f"{name}.rank{rank()}.json.gz"))
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()


def judge(folder: Path, name: str) -> dict[str, Any]:
    """Diagnose the traces of a case."""
    from meshwise import api

    expected = CASES[name][0]
    found = api.doctor(*sorted(folder.glob(f"{name}.rank*.json.gz")))
    names = [fault.name for fault in found.faults]
    certain = [fault.name for fault in found.faults if fault.certainty == "certain"]
    parts = max(abs(sum(one.parts.values()) / one.step - 1) for one in found.profiles)
    right = expected in names[:2] if expected else not certain
    said = [f"{fault.name} ({fault.certainty}, {fault.seconds / found.profiles[0].step:.0%})" for fault in found.faults[:4]]
    return {"case": name, "planted": expected, "right": right, "findings": said, "parts off the step": round(parts, 5)}


def trace_apart(folder: Path, name: str) -> str:
    """Trace one case in processes of its own; return its error."""
    count = CASES[name][1]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
    command = [sys.executable, *start, __file__, DEVICE.type, "--one", str(folder), name]
    limit = float(os.environ.get("CASE_SECONDS", "120"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=os.environ | {"OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        return f"took more than {limit:g} s"
    return done.stderr[-600:] if done.returncode else ""


def trace_here(folder: Path, name: str) -> str:
    """Trace one case in this process, whose CUDA context is there already; return its error."""
    try:
        trace(folder, name)
    except Exception as error:  # one case must not cost the others
        return f"{type(error).__name__}: {error}"[:600]
    finally:
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    return ""


def main(names: list[str]) -> None:
    folder = Path(os.environ.get("TRACES") or tempfile.mkdtemp(prefix="unseen-"))
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + float(os.environ.get("SECONDS_LEFT", "3600"))
    right = tried = 0
    for name in names or CASES:
        if time.monotonic() > until:
            print(json.dumps({"case": name, "left out": "no time"}), flush=True)
            continue
        tried += 1
        error = (trace_here if CUDA else trace_apart)(folder, name)
        try:
            result = {"case": name, "right": False, "error": error} if error else judge(folder, name)
        except Exception as problem:
            result = {"case": name, "right": False, "error": f"{type(problem).__name__}: {problem}"[:600]}
        right += bool(result["right"])
        print(json.dumps(result), flush=True)
    print(json.dumps({"cases": tried, "right": right}), flush=True)


if __name__ == "__main__":
    if "--one" in sys.argv:
        trace(Path(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[2:])
