"""Trace small training steps on a CPU, clean and with one fault planted in each: `python benchmarks/doctor/plant.py FOLDER [NAME...]`.

Every case is a real run under torch's profiler: one process, or several that talk over gloo (torchrun starts this file again). FOLDER gets
one gzipped trace per rank; `--slim FOLDER TRACE...` writes them smaller. tests/audit/doctor reads traces that were made so.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

HIDDEN, FFN, VOCAB, SEQ, BATCH = 192, 512, 2048, 192, 4
WARM, TRACED = 2, 2


class Attention(nn.Module):
    def __init__(self, heads: int = 3, size: int = 64, eager: bool = False) -> None:
        super().__init__()
        self.heads, self.size, self.eager = heads, size, eager
        self.qkv = nn.Linear(HIDDEN, 3 * heads * size, bias=False)
        self.out = nn.Linear(heads * size, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        if self.eager:
            scores = q @ k.transpose(-1, -2) / self.size**0.5
            scores = scores + torch.full((length, length), float("-inf")).triu(1)
            mixed = functional.dropout(functional.softmax(scores, -1, dtype=torch.float32), 0.0) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, -1))


class Experts(nn.Module):
    def __init__(self, count: int = 8, skew: float = 0.0) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, count, bias=False)
        self.up = nn.ModuleList(nn.Linear(HIDDEN, FFN, bias=False) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(FFN, HIDDEN, bias=False) for _ in range(count))
        self.bias = torch.linspace(skew, 0, count)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = (self.router(flat) + self.bias).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, down(functional.silu(up(flat[rows]))) * weights[rows, slot, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, attention: Attention, experts: Experts | None) -> None:
        super().__init__()
        self.first, self.second, self.attention = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN), attention
        self.ffw: nn.Module = experts or nn.Sequential(nn.Linear(HIDDEN, FFN), nn.SiLU(), nn.Linear(FFN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.ffw(self.second(x))


class Net(nn.Module):
    def __init__(
        self, experts: Callable[[], Experts] | None = None, layers: int = 2, vocab: int = VOCAB, **attention: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(vocab, HIDDEN), nn.RMSNorm(HIDDEN)
        self.blocks = nn.Sequential(*(Block(Attention(**attention), experts() if experts else None) for _ in range(layers)))
        self.head = nn.Linear(HIDDEN, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(tokens))))


class Samples(torch.utils.data.Dataset[Tensor]):
    """Random tokens; each takes some seconds to prepare."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return torch.randint(0, VOCAB, (SEQ + 1,))


def loader(seconds: float = 0.0, workers: int = 0) -> Iterator[Tensor]:
    return iter(torch.utils.data.DataLoader(Samples(seconds), batch_size=BATCH, num_workers=workers))


def usual_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def eager_loss(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.double()
    peak = logits.max(-1, keepdim=True).values
    powers = (logits - peak).exp()
    chances = powers / powers.sum(-1, keepdim=True)
    chosen = chances.gather(-1, targets[..., None]).log()
    return -chosen.mean() + 1e-4 * powers.sum(-1).log().square().mean() - 1e-4 * (chances * (chances + 1e-9).log()).sum(-1).mean()


def steps(
    net: nn.Module, data: Iterator[Tensor] | None = None, *, loss: Callable[[Tensor, Tensor], Tensor] = usual_loss, fused: bool = True,
    after: Callable[[int], object] = lambda step: None, parts: int = 1, every: Callable[[], object] = lambda: None,
) -> Iterator[None]:  # fmt: skip
    """Yield after each training step."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=fused, foreach=False)
    data = data or loader()
    for step in range(100):
        for _ in range(parts):
            tokens = next(data)
            found = loss(net(tokens[:, :-1]), tokens[:, 1:])
            every()
            found.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
        yield


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def data_parallel(net: nn.Module, megabytes: float = 1) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=megabytes)


def sharded(net: Net) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return net


def lengths() -> Iterator[Tensor]:
    for length in (64, 64, 96, 128, *[64] * 90):
        yield torch.randint(0, VOCAB, (BATCH, length + 1))


def busy(seconds: float) -> None:
    """Compute for some time, as another job on the same cores would."""
    until, square = time.perf_counter() + seconds, torch.randn(192, 192)
    while time.perf_counter() < until:
        torch.mm(square, square)


def pause(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(1000))


def exchange(net: Net) -> None:
    """Gather the weights of every block again, layer by layer, while nothing computes."""
    for block in net.blocks:
        for weight in block.parameters():
            if weight.numel() > 50_000:
                gathered = [torch.empty_like(weight) for _ in range(ranks())]
                dist.all_gather(gathered, weight.detach())


CASES: dict[str, tuple[int, Callable[[], Iterator[None]]]] = {
    "clean": (1, lambda: steps(Net())),
    "clean-deep": (1, lambda: steps(Net(layers=4))),
    "clean-workers": (1, lambda: steps(Net(), loader(0.0, 2))),
    "clean-micro-batches": (1, lambda: steps(Net(), parts=3)),
    "clean-experts": (1, lambda: steps(Net(experts=Experts))),
    "clean-heads-of-32": (1, lambda: steps(Net(heads=6, size=32))),
    "clean-data-parallel": (2, lambda: steps(data_parallel(Net(), 25))),
    "no-flash-attention": (1, lambda: steps(Net(eager=True, heads=12, size=16))),
    "unfused-optimizer": (1, lambda: steps(Net(layers=6), fused=False)),
    "slow-loader": (1, lambda: steps(Net(), loader(0.04))),
    "slow-workers": (1, lambda: steps(Net(), loader(1.2, 1))),
    "recompilation": (1, lambda: steps(torch.compile(Net(layers=1), dynamic=False), lengths())),  # pyright: ignore[reportArgumentType]
    "eager-loss": (1, lambda: steps(Net(vocab=8192), loss=eager_loss)),
    "head-size": (1, lambda: steps(Net(heads=3, size=73))),
    "checkpoint": (1, lambda: checkpointed(Net(layers=4))),
    "uneven-experts": (1, lambda: steps(Net(experts=lambda: Experts(skew=2.0)))),
    "host-work": (1, lambda: steps(Net(), every=lambda: pause(0.15))),
    "tiny-messages": (2, lambda: steps(data_parallel(Net(layers=4), 0.001))),
    "slow-rank": (3, lambda: steps(data_parallel(Net()), every=lambda: busy(0.3 if dist.get_rank() == 1 else 0.0))),
    "slow-data-of-a-rank": (3, lambda: steps(data_parallel(Net()), loader(0.1 if dist.get_rank() == 2 else 0.0))),
    "no-overlap": (2, lambda: gathered(Net(layers=4))),
    "sharded": (2, lambda: steps(sharded(Net(layers=4)))),
}  # fmt: skip


def checkpointed(net: Net) -> Iterator[None]:
    place = f"/tmp/meshwise-plant-{os.getpid()}.pt"
    return steps(net, after=lambda step: (torch.save(net.state_dict(), place), os.sync()))


def gathered(net: Net) -> Iterator[None]:
    return steps(data_parallel(net), every=lambda: exchange(net))


def trace(folder: Path, name: str) -> None:
    """Trace one case as this rank."""
    torch.set_num_threads(1)
    count, make = CASES[name]
    if count > 1:
        dist.init_process_group("gloo")
    run = make()
    for _ in range(WARM):
        next(run)
    if count > 1:
        dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(TRACED):
            next(run)
    rank = f".rank{dist.get_rank()}" if count > 1 else ""
    seen.export_chrome_trace(str(folder / f"{name}{rank}.json.gz"))
    if count > 1:
        dist.barrier()
        dist.destroy_process_group()


KEPT = ("correlation", "External id", "stream", "Input Dims", "Input type", "Collective name", "In msg nelems", "Out msg nelems", "dtype",
        "Group size", "Process Group Name", "Process Group Description", "bytes")  # fmt: skip


def slim(source: Path, target: Path) -> None:
    """Write a trace without what no reader of ours looks at, so that it is small enough for a repository."""
    whole = json.loads(gzip.decompress(source.read_bytes()))
    kept = []
    for event in whole["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") not in ("python_function", "ac2g", "fwdbwd", "Trace", "overhead"):
            args = {key: value for key, value in event.get("args", {}).items() if key in KEPT}
            kept.append(
                {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
                | {"name": event["name"][:120], "args": args}
            )
    whole["traceEvents"] = kept
    target.write_bytes(gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), 9, mtime=0))


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        count, _ = CASES[name]
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"] if count > 1 else []
        command = [sys.executable, *start, __file__, "--one", str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"})
        print(name, "done" if done.returncode == 0 else done.stderr[-1500:], flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        trace(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "--slim":
        for one in map(Path, sys.argv[3:]):
            slim(one, Path(sys.argv[2]) / one.name)
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
