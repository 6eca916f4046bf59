"""Answers: how many tokens the answers of one step have, from a mean and the longest, or from a file of lengths."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

from meshwise.catalogue.files import text_of
from meshwise.errors import UserError

KEYS = ("answer", "output", "response_length", "completion_length", "output_len", "tokens", "length")
"""Keys of a JSONL row that state the tokens of an answer."""
MAX_DEVIATION = 3.0  # largest standard deviation of the logarithm of a length that is tried


@dataclass(frozen=True)
class Answers:
    """The lengths of the `number` answers of one step, in tokens. Where only mean and longest are known, logarithms of lengths are normally
    distributed, with the deviation at which the longest of `number` answers is expected to be the longest."""

    number: int
    mean: float
    longest: float
    samples: tuple[int, ...] = ()  # measured lengths, in order of their size; () where only mean and longest are known

    @classmethod
    def of(cls, samples: Sequence[int], number: int, limit: int) -> "Answers":
        """Return the answers of a step that are drawn from measured lengths, cut at `limit` tokens."""
        cut = sorted(min(one, limit) for one in samples)
        return cls(number, sum(cut) / len(cut), float(cut[-1]), tuple(cut))

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the logarithm of a length: ln(longest / mean) = z s - s^2 / 2, with z the quantile of the longest."""
        ratio = math.log(max(1.0, self.longest / self.mean))
        z = NormalDist().inv_cdf(1 - 0.5 / self.number) if self.number > 1 else 1.0
        root = z * z - 2 * ratio
        return min(MAX_DEVIATION, z - math.sqrt(root)) if root > 0 else min(MAX_DEVIATION, z)

    def drawn(self, number: int) -> list[float]:
        """Return `number` lengths in order of their size, at equal distances of probability. Their mean is `mean`, and the last one is the
        longest, for which a whole step waits."""
        at = [(i + 0.5) / number for i in range(number)]
        if self.samples:
            size = len(self.samples)
            drawn = [float(self.samples[min(size - 1, int(p * size))]) for p in at]
        else:
            normal = NormalDist(math.log(self.mean) - self.deviation**2 / 2, max(1e-9, self.deviation))
            drawn = [min(self.longest, math.exp(normal.inv_cdf(p))) for p in at]
        drawn[-1] = self.longest
        others = sum(drawn[:-1])
        wanted = self.mean * number - self.longest
        if others and wanted > 0:
            scale = wanted / others
            drawn[:-1] = [max(1.0, min(self.longest, one * scale)) for one in drawn[:-1]]
        return drawn

    def longest_of(self, number: int) -> float:
        """Return the mean length of the longest of `number` answers that are drawn together."""
        lengths = self.drawn(min(max(self.number, 64), 1024))
        size, total, below = len(lengths), 0.0, 0.0
        for i, one in enumerate(lengths, 1):
            share = (i / size) ** number
            total += one * (share - below)
            below = share
        return total

    @property
    def squared(self) -> float:
        """Mean of the squares of lengths over the mean: the length of the answer that a token belongs to, on average."""
        lengths = self.drawn(min(max(self.number, 64), 1024))
        return sum(one * one for one in lengths) / sum(lengths)


def _stated(row: "dict[str, Any]") -> Any:
    return next(row[key] for key in KEYS if key in row)


def read(path: str, number: int, limit: int) -> Answers:
    """Read the lengths of answers from a file: one whole number per line, or JSONL with one of KEYS in each row."""
    file = Path(path)
    found: list[int] = []
    for line_number, line in enumerate(text_of(file).splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        try:
            row: Any = json.loads(text)
            value: Any = _stated(cast("dict[str, Any]", row)) if isinstance(row, dict) else row
            if isinstance(value, bool) or int(value) != value:
                raise ValueError
        except (ValueError, TypeError, StopIteration):
            raise UserError(
                f"{file.name}, line {line_number}: expected a whole number of tokens, or a row with 'answer' (also {', '.join(KEYS[1:4])})"
            ) from None
        if not 1 <= value <= 2**24:
            raise UserError(f"{file.name}, line {line_number}: {value} tokens; expected 1 to {2**24:,}")
        found.append(int(value))
    if not found:
        raise UserError(f'{file.name} has no lengths; expected a line such as {{"answer": 812}} for each answer')
    return Answers.of(found, number, limit)
