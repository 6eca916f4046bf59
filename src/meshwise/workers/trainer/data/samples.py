"""What a step reads: rows of token files, or of the embedded text, one token per byte. A sample is a pure function of seed and number.

So going on after a stop, in whatever layout, takes no more than how many were read: step s reads samples s x batch and the `batch - 1`
after it, or as many further on as steps with another batch read more.
"""

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from meshwise.workers.trainer.data.grammar import sample
from meshwise.workers.trainer.data.order import place
from meshwise.workers.trainer.parallel import Ranks
from meshwise.workers.trainer.settings import Settings, Sizes, TokenFile

WIDTHS = {2: torch.uint16, 4: torch.uint32}


@cache
def mapped(file: TokenFile) -> Tensor:
    """The tokens of a file, in memory only where they are read."""
    with open(file.path, "rb") as opened:
        # a private copy on write, for torch warns of memory that it may not write to
        view = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(view, dtype=WIDTHS[file.width], count=file.count, offset=file.offset)


def rows_of(settings: Settings, numbers: Sequence[int]) -> Tensor:
    """A sample for each number, of `seq` tokens and the one that follows."""
    length = settings.seq + 1
    if not settings.data:
        text = b"".join(sample(settings.seed, number, length) for number in numbers)
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, length)
    ends = list(accumulate(file.windows(settings.seq) for file in settings.data))
    rows: list[Tensor] = []
    for number in numbers:
        window = place(settings.seed, number, ends[-1])
        which = bisect_right(ends, window)
        first = (window - (ends[which - 1] if which else 0)) * settings.seq
        # 32 bits without a sign have few operations in torch; all but the copy is done on 64
        rows.append(mapped(settings.data[which])[first : first + length].long())
    found = torch.stack(rows)
    if int(found.max()) >= Sizes.of(settings.model).vocab:
        raise SystemExit(f"token {int(found.max())} in {settings.text}: the vocabulary has {Sizes.of(settings.model).vocab}")
    return found


def batch_of(settings: Settings, step: int, first: int = 0, count: int | None = None, ahead: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and what follows each of them, of `count` samples from `first` of a step's batch, or of all.

    The batch begins `ahead` samples after step x batch, where steps before it had other batches.
    """
    count = settings.batch if count is None else count
    begin = step * settings.batch + ahead + first
    both = rows_of(settings, range(begin, begin + count))
    return both[:, :-1], both[:, 1:]


def own_batch(settings: Settings, ranks: Ranks, step: int, ahead: int = 0) -> tuple[Tensor, Tensor]:
    """What this rank reads of a step: its replica's samples, and of those its part of the sequence."""
    each = settings.batch // settings.layout.dp
    tokens, targets = batch_of(settings, step, ranks.replica * each, each, ahead)
    length, part = settings.seq // settings.layout.cp, ranks.at("cp")
    return tokens[:, part * length : (part + 1) * length], targets[:, part * length : (part + 1) * length]
