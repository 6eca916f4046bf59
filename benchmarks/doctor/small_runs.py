"""Small models and training steps of plain PyTorch, in which unseen.py plants faults; on a GPU if 'cuda' is among the first arguments."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

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
        if self.kind == "biased":
            k, v = (part.repeat_interleave(self.heads // self.kv, 1).flatten(0, 1) for part in (k, v))
            far = torch.arange(length, device=x.device)[None] - torch.arange(length, device=x.device)[:, None]
            slopes = 2.0 ** -torch.arange(1, self.heads + 1, device=x.device)
            bias = (slopes[:, None, None] * far + torch.full_like(far, -1e4, dtype=torch.float).triu(1)).to(q.dtype)
            scores = torch.baddbmm(bias.repeat(rows, 1, 1), q.flatten(0, 1), k.transpose(1, 2), alpha=self.size**-0.5)
            mixed = (scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v).view(rows, self.heads, length, self.size)
        elif self.kind == "module":
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            weights = torch.matmul(q, k.transpose(-1, -2)).mul(self.size**-0.5)
            weights = torch.where(hidden, torch.tensor(-1e4, dtype=q.dtype, device=x.device), weights)
            mixed = functional.dropout(functional.softmax(weights.float(), -1).to(q.dtype), 0.1) @ v
        elif self.kind == "plain kernels":
            with sdpa_kernel(SDPBackend.MATH):
                mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.heads)
        elif self.kind == "written out":
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
    """Top-1 experts in a loop; `favour` is added to the score of the first `busy` of `count`."""

    def __init__(self, favour: float, busy: int = 2, count: int = 12) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(Gated(WIDTH) for _ in range(count))
        self.register_buffer("bias", torch.tensor([*[favour] * busy, *[0.0] * (count - busy)]))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        best = (self.router(flat) + self.bias.to(flat.dtype)).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (best.indices == number).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(flat[rows]) * best.values[rows, None])
        return out.view_as(x)


class Capacity(nn.Module):
    """Experts as one product of batches, each with as many tokens as the others: the clean way."""

    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(count, WIDTH, WIDTH) * WIDTH**-0.5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chance, rows = self.router(flat).softmax(-1).T.topk(2 * len(flat) // len(self.up), -1)
        mixed = torch.bmm(functional.silu(torch.bmm(flat[rows], self.up)), self.down) * chance[..., None]
        return torch.zeros_like(flat).index_add(0, rows.flatten(), mixed.flatten(0, 1)).view_as(x)


class Net(nn.Module):
    def __init__(
        self, heads: int = 4, size: int = 0, kv: int = 0, kind: str = "", layers: int = 0, vocab: int = 0, favour: float | None = None,
        dtype: torch.dtype | None = None, each: Callable[[Tensor], object] = lambda x: None, width: int = 0,
        ffw: Callable[[], nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(1)
        self.each = each
        heads = heads * (4 if CUDA else 1)
        size, kv, layers = size or WIDTH // heads, kv or heads, layers or LAYERS
        ffn = width or 4 * WIDTH
        self.embed, self.norm = nn.Embedding(vocab or VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.ModuleList(Attention(heads, size, kv, kind) for _ in range(layers))
        self.ffw = nn.ModuleList(ffw() if ffw else Gated(ffn) if favour is None else Experts(favour) for _ in range(layers))
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


def batches(
    seconds: float = 0.0,
    lengths: tuple[int, ...] = (),
    work: int = 0,
    rows: int = BATCH,
    pin: bool = CUDA,
    sizes: tuple[int, ...] = (),
) -> Iterator[Tensor]:
    """Yield batches; each waits, or computes on the host, as a loader without workers does."""
    number = 0
    while True:
        time.sleep(seconds)
        for _ in range(work):
            sorted(json.loads(json.dumps(list(range(4000)))), reverse=True)
        length = lengths[number % len(lengths)] if lengths else SEQ
        rows = sizes[number % len(sizes)] if sizes else rows
        number += 1
        tokens = torch.randint(0, VOCAB, (rows, length + 1))
        yield tokens.pin_memory() if pin else tokens


def through_loader(seconds: float, workers: int) -> Iterator[Tensor]:
    class Slow(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from batches(seconds, pin=False)  # a worker process has no GPU

    return iter(torch.utils.data.DataLoader(Slow(), batch_size=None, num_workers=workers, pin_memory=CUDA))


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
