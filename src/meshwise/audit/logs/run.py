"""Run: what a source states of one run, in SI; Claim: what it says in words; Reading: all of one file, with what was skipped."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

MOST_RUNS = 20_000
"""Of one file: beyond, rows are counted and not kept, so that memory stays bounded."""
MOST_CLAIMS = 2_000
NAMED = 3
"""Places that are named for each reason why something was skipped."""

Kind = Literal["rate", "product", "meaning", "efficiency", "grade", "spread", "conflict"]
Numbers = Mapping[str, float]
Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run as stated. What is not stated is not there: `get` says NaN."""

    where: str
    numbers: Numbers
    texts: Texts = field(default_factory=dict[str, str])
    ranks: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Figures of single ranks: tokens/s, losses, bytes."""
    tags: tuple[tuple[str, str], ...] = ()
    """Columns that have no meaning here, but tell one setup from another."""
    rough: frozenset[str] = frozenset()
    """Numbers printed with a 'about'."""
    section: str = ""
    """The table or heading it stands under: runs that were meant to be compared."""

    def get(self, name: str) -> float:
        return self.numbers.get(name, math.nan)

    def text(self, name: str) -> str:
        return self.texts.get(name, "")

    def stated(self, *names: str) -> bool:
        return all(math.isfinite(self.get(name)) for name in names)

    def filled(self, numbers: Numbers, texts: Texts) -> "Run":
        """The same, with what it leaves unsaid taken from elsewhere."""
        return replace(self, numbers={**numbers, **self.numbers}, texts={**texts, **{k: v for k, v in self.texts.items() if v}})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement in words that arithmetic can check."""

    kind: Kind
    where: str
    text: str
    """Its few words, as quoted in a finding."""
    values: tuple[float, ...] = ()
    about: tuple[str, ...] = ()
    """What the values are of, by kind: the subject of a rate, the word and its meaning."""


@dataclass
class Skips:
    """What was not read: how often for each reason, and the first places."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.places.setdefault(reason, [])
        if len(named) < NAMED:
            named.append(where)

    def lines(self) -> list[str]:
        """'3 rows: the time is not a number (line 4, line 9, line 12)'."""
        return [
            f"{count} x {reason} ({', '.join(self.places[reason])}{', ...' * (count > NAMED)})"
            for reason, count in self.counts.items()
        ]


@dataclass
class Reading:
    """All that one file says."""

    format: str = ""
    runs: list[Run] = field(default_factory=list[Run])
    claims: list[Claim] = field(default_factory=list[Claim])
    skipped: Skips = field(default_factory=Skips)

    def keep(self, run: Run) -> None:
        if len(self.runs) < MOST_RUNS:
            self.runs.append(run)
        else:
            self.skipped.add(f"beyond the first {MOST_RUNS:,} runs", run.where)

    def claim(self, claim: Claim) -> None:
        if len(self.claims) < MOST_CLAIMS:
            self.claims.append(claim)
        else:
            self.skipped.add(f"beyond the first {MOST_CLAIMS:,} statements", claim.where)


class Sample:
    """The median of a stream in bounded memory: every value until there are 4,096, then every second, every fourth..."""

    def __init__(self, size: int = 4096) -> None:
        self.size, self.every, self.seen = size, 1, 0
        self.kept: list[float] = []

    def add(self, value: float) -> None:
        if math.isfinite(value) and self.seen % self.every == 0:
            self.kept.append(value)
            if len(self.kept) >= self.size:
                self.kept = self.kept[::2]
                self.every *= 2
        self.seen += math.isfinite(value)

    def median(self, warm_up: int = 0) -> float:
        """Without the first values, which allocate and compile, where there are enough others."""
        values = sorted(self.kept[warm_up:] if self.every == 1 and len(self.kept) > 2 * warm_up else self.kept)
        return values[len(values) // 2] if values else math.nan
