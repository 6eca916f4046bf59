"""Faults that no limit of `doctor` was set on, planted in real runs and diagnosed: `python benchmarks/doctor/unseen.py cpu|cuda [NAME...]`.

Each case is traced by torch's profiler and read by `meshwise doctor`; one JSON line says whether its fault is the first or second finding,
and whether a clean run has a certain one. `cpu` also has cases over several processes with gloo. Traces stay in $TRACES, or a new folder;
`judge` in place of `cpu` reads the traces in $TRACES again.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import gc
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)]

import numpy as np
import torch
import torch.distributed as dist
from small_runs import (
    BATCH,
    CUDA,
    DEVICE,
    LAYERS,
    SEQ,
    TRACED,
    VOCAB,
    WARM,
    WIDTH,
    Capacity,
    Experts,
    Net,
    batches,
    data_parallel,
    features,
    loss_of,
    rank,
    saving,
    square,
    steps,
    through_loader,
    with_clean_model,
    written_loss,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

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
    "parsing-on-the-host": ("host work|data loader", 1, lambda: steps(Net(), batches(work=120))),
    # the second round, of 2026-11-18, planted before rules were made more general
    "clean-capacity": ("", 1, lambda: steps(Net(ffw=Capacity))),
    "clean-inference": ("", 1, lambda: inference(Net(kv=2))),
    "clean-recomputed": ("", 1, lambda: steps(recomputed(Net(layers=2 * LAYERS)))),
    "clean-autocast": ("", 1, lambda: steps(autocast(Net(dtype=torch.float32)))),
    "clean-loader": ("", 1, lambda: steps(Net(), through_loader(0.0, 2))),
    "rmsprop-by-tensor": ("no fused optimizer", 1, lambda: steps(Net(layers=3 * LAYERS),
        optimizer=lambda w: torch.optim.RMSprop(w, lr=1e-5, momentum=0.9, foreach=False))),
    "own-update-loop": ("no fused optimizer", 1, lambda: own_update(Net(layers=3 * LAYERS))),
    "attention-with-bias": ("no flash attention", 1, lambda: steps(Net(kind="biased", heads=8))),
    "plain-attention-kernels": ("no flash attention", 1, lambda: steps(Net(kind="plain kernels", heads=8))),
    "one-hot-loss": ("eager loss", 1, lambda: steps(Net(layers=1, vocab=4 * VOCAB), loss=one_hot_loss)),
    "heads-of-80": ("head size", 1, lambda: steps(Net(size=80, heads=4 if CUDA else 3, layers=2 * LAYERS))),
    "numpy-checkpoint": ("checkpoint in the step", 1, lambda: with_clean_model(numpy_saving, layers=2 * LAYERS)),
    "pattern-of-text": ("host work|data loader", 1, lambda: steps(Net(), tokenized())),
    "three-busy-of-sixteen": ("expert imbalance", 1, lambda: steps(Net(ffw=lambda: Experts(2.5, 3, 16)))),
    "recompiled-by-a-number": ("recompilation", 1, lambda: renumbered(Net(layers=1))),
    "slow-workers": ("data loader", 1, lambda: steps(Net(), through_loader(0.9, 2))),
    "collected-garbage": ("host work", 1, lambda: steps(Net(), after=lambda logits: collect())),
    # the third round, planted after it
    "clean-convolutions": ("", 1, lambda: pictures()),
    "clean-encoder": ("", 1, lambda: steps(encoder())),
    "usual-adamw": ("no fused optimizer", 1, lambda: steps(Net(layers=3 * LAYERS), optimizer=lambda w: torch.optim.AdamW(w, lr=1e-5))),
    "own-signed-update": ("no fused optimizer", 1, lambda: own_update(Net(layers=3 * LAYERS), signed=True)),
    "module-with-weights": ("no flash attention", 1, lambda: steps(Net(kind="module", heads=8))),
    "loss-of-each-word": ("eager loss", 1, lambda: steps(Net(layers=1, vocab=4 * VOCAB), loss=loss_of_each_word)),
    "pickled-weights": ("checkpoint in the step", 1, lambda: with_clean_model(pickling, layers=2 * LAYERS)),
    "sorted-tokens": ("expert imbalance", 1, lambda: steps(Net(ffw=lambda: Sorted(3.0)))),
    "batches-recompiled": ("recompilation", 1, lambda: steps(torch.compile(Net(layers=1), backend="aot_eager", dynamic=False), batches(sizes=(4, 4, 2, 1, 3, 5)))),  # pyright: ignore[reportArgumentType]
    "slow-collate": ("data loader", 1, lambda: steps(Net(), collated())),
    "heads-of-100": ("head size", 1, lambda: steps(Net(size=100, heads=4 if CUDA else 3, layers=2 * LAYERS))),
}  # fmt: skip
ON_CPU: dict[str, tuple[str, int, Make]] = {
    "clean-two-ranks": ("", 2, lambda: steps(data_parallel(Net()))),
    "buckets-of-a-kilobyte": ("tiny messages", 2, lambda: steps(data_parallel(Net(layers=5), 0.0005))),
    "busy-rank-of-four": ("slow rank", 4, lambda: steps(data_parallel(Net()), after=square(0.5 if rank() == 3 else 0.0))),
    "late-data-of-first-rank": ("slow rank", 2, lambda: steps(data_parallel(Net()), batches(0.5 if rank() == 0 else 0.0))),
    "reduced-scalars": (
        "tiny messages",
        2,
        lambda: steps(data_parallel(Net()), after=lambda logits: [dist.all_reduce(logits.detach().mean()) for _ in range(200)]),
    ),
    "saved-by-one-rank": ("slow rank|checkpoint in the step", 2, lambda: saved_by_one_rank(Net(layers=2 * LAYERS))),
    "clean-three-ranks": ("", 3, lambda: steps(data_parallel(Net(layers=3)), parts=2)),
    "late-logging-of-last-rank": (
        "slow rank",
        3,
        lambda: steps(data_parallel(Net()), after=lambda logits: time.sleep(0.4 if rank() == 2 else 0.0)),
    ),
    "longer-batches-of-a-rank": (
        "slow rank",
        3,
        lambda: steps(data_parallel(Net()), batches(lengths=(4 * SEQ if rank() == 1 else SEQ,))),
    ),
    "reduced-one-by-one": ("tiny messages|no overlap", 2, lambda: reduced_by_tensor(Net(layers=4))),
    "sharded-in-turns": ("no overlap", 2, lambda: steps(sharded(Net(layers=4, width=8 * WIDTH)))),
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
    # the second round
    "cache-emptied-each-step": ("allocator", 1, lambda: steps(Net(), after=lambda logits: torch.cuda.empty_cache())),
    "odd-inner-width": ("uneven shapes", 1, lambda: steps(Net(width=5461))),
    "norms-read-by-tensor": ("synchronisation", 1, lambda: with_clean_model(read_norms, layers=3 * LAYERS)),
    "activations-on-the-host": ("pageable copies|copies to the host", 1, lambda: offloaded(Net())),
    "head-in-float32": ("TF32 off", 1, lambda: steps(wide_head(Net(layers=2)))),
    "batch-of-one": ("small kernels", 1, lambda: steps(Net(layers=16, heads=1), batches(lengths=(64,), rows=1))),
}


def near_the_limit() -> Iterator[None]:
    """Train with lengths that change in so little more memory than they need that the allocator frees what it kept, and asks again: the limit
    is lowered until it does so in each round of lengths."""
    lengths, total = (SEQ, SEQ - 256, SEQ - 64, SEQ - 512), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    made = steps(Net(), batches(lengths=lengths))
    for _ in lengths:
        next(made)
    room = torch.cuda.max_memory_reserved() / torch.cuda.max_memory_allocated()
    while room > 1.002:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, room * torch.cuda.max_memory_allocated() / total))
        for _ in range(2):
            before = torch.cuda.memory_stats()["num_alloc_retries"]
            for _ in lengths:
                next(made)
            if torch.cuda.memory_stats()["num_alloc_retries"] == before:
                break
        else:
            break
        room -= 0.25 * (room - 1)
    yield from made


def inference(net: nn.Module) -> Iterator[None]:
    """Read prompts, as an engine does before it answers."""
    net.eval()
    for tokens in batches():
        with torch.inference_mode():
            net(tokens.to(DEVICE, non_blocking=True)).argmax(-1)
        yield


def recomputed(net: Net) -> nn.Module:
    """Compute what the layers keep again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    for layer in (*net.attention, *net.ffw):
        layer.forward = lambda x, plain=layer.forward: checkpoint(plain, x, use_reentrant=False)
    return net


def autocast(net: nn.Module) -> nn.Module:
    plain = net.forward
    net.forward = torch.autocast(DEVICE.type, torch.bfloat16)(plain)
    return net


def wide_head(net: Net) -> nn.Module:
    """Compute logits in float32, without TF32."""
    torch.set_float32_matmul_precision("highest")
    net.norm.register_forward_hook(lambda module, inputs, found: found.float())
    net.head.float()
    return net


def own_update(net: nn.Module, signed: bool = False) -> Iterator[None]:
    """Write Adam's update, or one by signs, as a loop over tensors, without torch's optimizers."""
    weights = list(net.parameters())
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for tokens in batches():
        there = tokens.to(DEVICE, non_blocking=True)
        loss_of(net(there[:, :-1]), there[:, 1:]).backward()
        with torch.no_grad():
            for weight, mean, square in zip(weights, first, second, strict=True):
                assert weight.grad is not None
                if signed:
                    weight.data -= 1e-6 * (0.9 * mean + 0.1 * weight.grad).sign() + 1e-9 * weight.data
                mean.mul_(0.9).add_(weight.grad, alpha=0.1)
                square.mul_(0.99).addcmul_(weight.grad, weight.grad, value=0.01)
                weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-1e-5)
                weight.grad = None
        yield


def one_hot_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return a focal loss by chances and one-hot targets."""
    chances = torch.softmax(logits.float(), -1).clamp(1e-7, 1 - 1e-7)
    wanted = functional.one_hot(targets, logits.shape[-1]).float()
    both = -wanted * chances.log() * (1 - chances).square() - 0.01 * (1 - wanted) * (1 - chances).log() * chances.square()
    return both.sum(-1).mean()


def numpy_saving(net: nn.Module) -> Callable[[Tensor], object]:
    def save(_: Tensor) -> None:
        with tempfile.TemporaryFile() as file:
            for value in net.parameters():
                np.save(file, value.detach().float().cpu().numpy())
            os.fsync(file.fileno())

    return save


def pickling(net: nn.Module) -> Callable[[Tensor], object]:
    def save(_: Tensor) -> None:
        with tempfile.TemporaryFile() as file:
            pickle.dump([value.detach().float().cpu().numpy() for value in net.state_dict().values()], file)
            os.fsync(file.fileno())

    return save


def saved_by_one_rank(net: nn.Module) -> Iterator[None]:
    save = saving(net)
    return steps(data_parallel(net), after=lambda logits: save(logits) if rank() == 1 else None)


def loss_of_each_word(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a yes or no for every word of the vocabulary, with weights."""
    wanted = torch.zeros_like(logits).scatter_(-1, targets[..., None], 1.0)
    likely = logits.float().sigmoid()
    losses = -(wanted * (likely + 1e-6).log() * 3 + (1 - wanted) * (1 - likely + 1e-6).log())
    return (losses * (1 + wanted)).mean() + 1e-3 * likely.var(-1).mean()


class Sorted(nn.Module):
    """Top-2 experts on tokens that are sorted by expert and split; `favour` is added to the score of the first."""

    def __init__(self, favour: float, count: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.router.bias.data[:] = favour * (torch.arange(count) == 0)
        self.up, self.down = (
            nn.ModuleList(nn.Linear(a, b) for _ in range(count)) for a, b in ((WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chance, chosen = self.router(flat).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort()
        parts = flat[order // 2].split(chosen.flatten().bincount(minlength=len(self.up)).tolist())
        mixed = torch.cat([down(up(part).relu()) for up, down, part in zip(self.up, self.down, parts, strict=True)])
        return torch.zeros_like(flat).index_add(0, order // 2, mixed * chance.flatten()[order, None]).view_as(x)


def pictures() -> Iterator[None]:
    """Train a small network of convolutions."""
    layers = [nn.Sequential(nn.Conv2d(a, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for a in (3, 64, 64)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(DEVICE)
    update = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    while True:
        images, labels = torch.randn(8 * BATCH, 3, 32, 32, device=DEVICE), torch.randint(0, 10, (8 * BATCH,), device=DEVICE)
        functional.cross_entropy(net(images), labels).backward()
        update.step()
        update.zero_grad()
        yield


def encoder() -> nn.Module:
    """Return torch's own encoder over words, without a causal mask."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, VOCAB, bias=False))
    return net.to(DEVICE, torch.bfloat16 if CUDA else torch.float32)


def collated() -> Iterator[Tensor]:
    """Load with a function that pads and sorts in plain Python, in the training process."""

    def collate(rows: list[list[int]]) -> Tensor:
        for _ in range(600):
            rows = [sorted(row, key=lambda word: -word)[::-1] for row in rows]
        return torch.tensor(rows)

    rows = [[(7 * i + j) % VOCAB for j in range(SEQ + 1)] for i in range(400)]
    return iter(torch.utils.data.DataLoader(rows, batch_size=BATCH, collate_fn=collate))  # pyright: ignore[reportArgumentType]


def tokenized() -> Iterator[Tensor]:
    """Split text and look words up in Python before each batch."""
    words = re.compile(r"\w+|[^\w\s]")
    text = "The quick brown fox, which had read nothing, jumps over 1234 lazy dogs; they sleep. " * (6000 if CUDA else 12000)
    known: dict[str, int] = {}
    while True:
        numbers = [known.setdefault(word.lower(), len(known)) for word in words.findall(text)]
        rows = torch.tensor(numbers[: BATCH * (SEQ + 1)]).view(BATCH, SEQ + 1)
        yield rows.pin_memory() if CUDA else rows


def renumbered(net: nn.Module) -> Iterator[None]:
    """Pass another Python number to compiled code in every step."""

    @torch.compile(backend="aot_eager", dynamic=False)
    def scaled(tokens: Tensor, name: str) -> Tensor:
        return net(tokens) * (1.0 if name else 0.0)

    for number, tokens in enumerate(batches()):
        there = tokens.to(DEVICE)
        loss_of(scaled(there[:, :-1], f"step {number}"), there[:, 1:]).backward()
        yield


def collect() -> None:
    """Make and drop many objects that refer to each other, and collect them."""
    for _ in range(3):
        made = [[number] for number in range(300_000)]
        made[0].append(made)  # pyright: ignore[reportArgumentType]
        del made
        gc.collect()


def read_norms(net: nn.Module) -> Callable[[Tensor], object]:
    """Read the norm of every weight in every layer's turn, as a careful logger does."""
    weights = list(net.parameters())
    net.each = lambda x: [float(weight.norm()) for weight in weights[:4]]  # pyright: ignore[reportAttributeAccessIssue]
    return lambda logits: [float(weight.norm()) for weight in weights]


def offloaded(net: nn.Module) -> Iterator[None]:
    """Keep what the backward pass needs in the host's memory."""
    with torch.autograd.graph.save_on_cpu(pin_memory=False):
        yield from steps(net)


def reduced_by_tensor(net: nn.Module) -> Iterator[None]:
    """Reduce each gradient by itself after the backward pass."""
    weights = list(net.parameters())
    update = torch.optim.AdamW(weights, lr=1e-5, fused=True)
    for tokens in batches():
        loss_of(net(tokens[:, :-1]), tokens[:, 1:]).backward()
        for weight in weights:
            dist.all_reduce(weight.grad)
        update.step()
        update.zero_grad()
        yield


def sharded(net: Net) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in (*net.attention, *net.ffw):
        fully_shard(layer)
    fully_shard(net)
    return net


CASES = BOTH | (ON_GPU if CUDA else ON_CPU)
ALL = BOTH | ON_CPU | ON_GPU


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

    expected = ALL[name][0]
    found = api.doctor(*sorted(folder.glob(f"{name}.rank*.json.gz")))
    names = [fault.name for fault in found.faults]
    certain = [fault.name for fault in found.faults if fault.certainty == "certain"]
    parts = max(abs(sum(one.parts.values()) / one.step - 1) for one in found.profiles)
    right = bool({*expected.split("|")} & {*names[:2]}) if expected else not certain
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
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    return ""


def main(names: list[str]) -> None:
    folder = Path(os.environ.get("TRACES") or tempfile.mkdtemp(prefix="unseen-"))
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + float(os.environ.get("SECONDS_LEFT", "3600"))
    right = tried = 0
    for name in names or (ALL if "judge" in sys.argv[1:2] else CASES):
        if "judge" in sys.argv[1:2] and not list(folder.glob(f"{name}.rank*")):
            continue
        if time.monotonic() > until:
            print(json.dumps({"case": name, "left out": "no time"}), flush=True)
            continue
        tried += 1
        error = "" if "judge" in sys.argv[1:2] else (trace_here if CUDA else trace_apart)(folder, name)
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
