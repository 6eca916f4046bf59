"""Reading: the runs and the checkable statements (Claim) of one file, with what was skipped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from meshwise.runs.run import Run
from meshwise.runs.table import SERVE_FIGURES, SIZES, TRAINED, Header

MAX_RUNS = 20_000  # runs kept from one file; further rows are counted but not kept, so that memory stays bounded
MAX_CLAIMS = 2_000
MAX_PLACES = 3  # places listed for each reason why lines were skipped

MEASURED_FIELDS = (*TRAINED, *SERVE_FIGURES, *SIZES)  # a row with one of these is a run; so is a row that states a failure

Kind = Literal["rate", "product", "meaning", "efficiency", "grade", "spread", "conflict"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement in words that arithmetic can check."""

    kind: Kind
    where: str
    text: str  # the quoted words, shortened for a finding
    values: tuple[float, ...] = ()
    about: tuple[str, ...] = ()
    """The subject of the values, by kind: model and token kind of a rate, abbreviation and meaning, field of a conflict."""


@dataclass
class Skips:
    """Lines that were not read: a count and the first few places for each reason."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < MAX_PLACES:
            places.append(where)

    def lines(self) -> list[str]:
        """Return one line per reason: '4 x 'Sec/it' is not a number (line 4, line 9, line 12, ...)'."""
        return [
            f"{count} x {reason} ({', '.join(self.places[reason])}{', ...' * (count > MAX_PLACES)})"
            for reason, count in self.counts.items()
        ]


@dataclass
class Reading:
    """Everything read from one file."""

    format: str = ""
    runs: list[Run] = field(default_factory=list[Run])
    claims: list[Claim] = field(default_factory=list[Claim])
    skipped: Skips = field(default_factory=Skips)

    def add_run(self, run: Run) -> None:
        if len(self.runs) < MAX_RUNS:
            self.runs.append(run)
        else:
            self.skipped.add(f"beyond the first {MAX_RUNS:,} runs", run.where)

    def add_claim(self, claim: Claim) -> None:
        if len(self.claims) < MAX_CLAIMS:
            self.claims.append(claim)
        else:
            self.skipped.add(f"beyond the first {MAX_CLAIMS:,} statements", claim.where)


def run_of(header: Header, cells: Sequence[str], where: str, decimal: str, skipped: Skips) -> Run | None:
    """Return the run of one row, or None if nothing was measured. Unreadable numbers stay unknown and are counted as skipped."""
    run = header.run(cells, where, decimal)
    for one in run:
        if one.how == "unknown":
            skipped.add(f"{one.key[:30]!r} is not an unambiguous number", where)
    measured = any(run.value(name) is not None for name in MEASURED_FIELDS) or "outcome" in run
    return run if measured else None


class Sample:
    """The median of a stream in bounded memory: keeps every value up to 4,096 of them, then every second, every fourth, and so on."""

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
        """Return the median, without the first `warm_up` values (allocation, compilation) where enough others remain."""
        values = sorted(self.kept[warm_up:] if self.every == 1 and len(self.kept) > 2 * warm_up else self.kept)
        return values[len(values) // 2] if values else math.nan
