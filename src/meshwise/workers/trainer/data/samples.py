"""The tokens of a step: samples of token files, or of the embedded text with one token per byte.

A sample is a pure function of seed and number, so that resuming, in any layout, only needs the count of samples read: step s reads the
`batch` samples from s x batch + ahead on, where `ahead` counts the samples that earlier steps with another batch have read beyond that.
"""

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.files.grammar import sample
from meshwise.workers.trainer.contract.files.order import shuffled_index
from meshwise.workers.trainer.contract.models.registry import sizes_of
from meshwise.workers.trainer.contract.settings import HIDDEN_TOKEN_BIT, Settings, TokenFile
from meshwise.workers.trainer.ops.attention import LocalShard
from meshwise.workers.trainer.ops.loss import IGNORED_TARGET
from meshwise.workers.trainer.parallel import Ranks

WIDTHS = {2: torch.uint16, 4: torch.uint32}


@cache
def map_tokens(file: TokenFile) -> Tensor:
    """Map the tokens of a file; only the pages that are read take memory."""
    with open(file.path, "rb") as opened:
        # copy on write, since torch warns about read-only memory
        view = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(view, dtype=WIDTHS[file.width], count=file.count, offset=file.offset)


def read_samples(settings: Settings, numbers: Sequence[int]) -> Tensor:
    """Read the samples of these numbers, each of `seq` tokens and the one that follows; hidden ones have that bit."""
    length = settings.seq + 1
    if not settings.data:
        text = b"".join(sample(settings.seed, number, length) for number in numbers)
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, length)
    ends = list(accumulate(file.windows(settings.seq) for file in settings.data))
    rows: list[Tensor] = []
    for number in numbers:
        window = shuffled_index(settings.seed, number, ends[-1])
        which = bisect_right(ends, window)
        first = (window - (ends[which - 1] if which else 0)) * settings.seq
        # torch has few operations on unsigned 32-bit integers; everything but the copy works on 64 bits
        rows.append(map_tokens(settings.data[which])[first : first + length].long())
    tokens = torch.stack(rows)
    vocab = sizes_of(settings.model).vocab
    largest = int((tokens % HIDDEN_TOKEN_BIT).max())
    if largest >= vocab:
        raise SystemExit(f"token {largest} in {settings.text} is outside the vocabulary of {vocab}")
    return tokens


def batch_of(settings: Settings, step: int, first: int = 0, count: int | None = None, ahead: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens and targets of `count` samples from `first` on in a step's batch; by default of the whole batch. Targets without a
    loss are IGNORED_TARGET. The batch begins `ahead` samples after step x batch, if earlier steps had other batches."""
    count = settings.batch if count is None else count
    begin = step * settings.batch + ahead + first
    samples = read_samples(settings, range(begin, begin + count))
    tokens = samples % HIDDEN_TOKEN_BIT
    return tokens[:, :-1], tokens[:, 1:].masked_fill(samples[:, 1:] >= HIDDEN_TOKEN_BIT, IGNORED_TARGET)


def local_batch(settings: Settings, ranks: Ranks, step: int, ahead: int = 0) -> tuple[Tensor, Tensor]:
    """Return tokens and targets of this rank: its replica's samples, and its part of their sequence."""
    each = settings.batch // settings.layout.dp
    tokens, targets = batch_of(settings, step, ranks.replica * each, each, ahead)
    if settings.layout.cp == 1:
        return tokens, targets
    shard = LocalShard(cp=settings.layout.cp, cp_rank=ranks.at("cp"))
    places, _ = shard.positions(settings.seq // settings.layout.cp, tokens.device)
    return tokens[:, places], targets[:, places]
