"""Run: what was run, on what, and what was seen. Every value knows whether it was said, is a default, follows from others or is unknown."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from meshwise.errors import UserError, quoted
from meshwise.runs.fields import BY_NAME

Value = int | float | str | bool | tuple[str, ...] | tuple[int, ...]
How = Literal["said", "default", "derived", "unknown"]
ENVIRONMENT = "env:"  # prefix of facts that are environment variables: 'env:CUDA_DEVICE_MAX_CONNECTIONS'
_LIBRARIES = (
    "CUDA_ NCCL_ TORCH_ PYTORCH_ XLA_ LIBTPU NVTE_ NVSHMEM_ OMP_ HF_ USE_ FORCE_TORCHRUN VLLM_ SGLANG_ OLLAMA_ UCX_ FI_ GLOO_"
)
VARIABLES = tuple(ENVIRONMENT + start for start in _LIBRARIES.split())
"""Starts of the environment variables that programs and libraries read; others are a script's own."""


def in_words(value: Value | None) -> str:
    """Return a value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return f"{value:,}" if isinstance(value, int) and value > 99_999 else "unknown" if value is None else str(value)


class Span(NamedTuple):
    """A piece of a file: the line it is on, and the characters that hold the value, which `--fix` replaces."""

    file: str
    line: int
    start: int = -1  # offset of the first character in the file; -1 where no piece of text can be replaced
    end: int = -1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def writable(self) -> bool:
        return self.start >= 0


class Stated(NamedTuple):
    """One value of a run, with its origin."""

    fact: str  # a name of FIELDS, 'env:NAME', or a name of a program's own that its `meaning` turns into facts
    value: Value | None  # none where it is unknown
    how: How = "said"
    span: Span | None = None  # where the file says it; where its default or its parts stand, if any
    key: str = ""  # the key or column in the source's own words: '--tensor-model-parallel-size', 'n_heads'
    note: str = ""  # default of which version, derived from what, or why it is unknown
    rough: bool = False  # whether the source rounds it or marks it with '~' or 'about'

    @property
    def where(self) -> str:
        return str(self.span) if self.span else ""


@dataclass(frozen=True)
class Run:
    """One run as its sources tell it: values by name of FIELDS, in SI units. A field without a value is not stated."""

    values: Mapping[str, Stated]
    where: str = ""  # the place that tells it: a line, a row
    section: str = ""  # the table or heading that the run is listed under; runs of one section are meant to be compared
    tags: tuple[tuple[str, str], ...] = ()  # columns with no known meaning; they still distinguish one setup from another
    ranks: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Figures of single ranks: tokens/s, losses, bytes."""
    replaced: tuple[Stated, ...] = ()  # statements that a later one, or another file, contradicts

    @staticmethod
    def of(stated: Iterable[Stated], where: str = "") -> "Run":
        """Collect statements; the last one about a fact counts, and the one before it is kept in `replaced`."""
        values: dict[str, Stated] = {}
        replaced: list[Stated] = []
        for one in stated:
            before = values.get(one.fact)
            if before is not None and before.how == "said" and one.how == "said":
                replaced.append(before)
            values[one.fact] = one
        return Run(values, where, replaced=tuple(replaced))

    @staticmethod
    def told(where: str, values: Mapping[str, Value], rough: Iterable[str] = (), section: str = "") -> "Run":
        """Return the run with these values, all of them said."""
        about = frozenset(rough)
        stated = {name: Stated(name, value, rough=name in about) for name, value in values.items() if value != ""}
        return Run(stated, where, section)

    def __iter__(self) -> Iterator[Stated]:
        return iter(self.values.values())

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Stated | None:
        return self.values.get(name)

    def value(self, name: str) -> Value | None:
        """Return the value of a fact; None where it is unknown or not stated."""
        stated = self.values.get(name)
        return stated.value if stated else None

    def number(self, name: str, default: float = math.nan) -> float:
        """Return a number; `default` where the field has none."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def whole(self, name: str, default: int = 0) -> int:
        """Return a whole number; `default` where the fact is unknown or not stated."""
        value = self.value(name)
        return int(value) if isinstance(value, int | float) and abs(value) < math.inf else default

    def text(self, name: str) -> str:
        """Return a value in words: 'yes' and 'no' for what is true or false; '' where it is not stated."""
        value = self.value(name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "" if value is None else str(value)

    def stated(self, *names: str) -> bool:
        """Return whether all of these fields have a number."""
        return all(math.isfinite(self.number(name)) for name in names)

    def says(self, name: str) -> bool:
        """Return whether the source itself says the fact, with a value."""
        stated = self.values.get(name)
        return stated is not None and stated.how == "said" and stated.value is not None

    def rough(self, *names: str) -> bool:
        """Return whether one of these values is rounded or marked as approximate."""
        return any(one.rough for name in names if (one := self.values.get(name)))

    def word(self, name: str) -> str:
        """Return the name of a field as the source, or else a table of measurements, writes it."""
        stated = self.values.get(name)
        return stated.key if stated and stated.key else BY_NAME[name].title if name in BY_NAME else name

    def adding(self, stated: Iterable[Stated]) -> "Run":
        """Return the run with facts that follow from others, or that take their place."""
        return replace(self, values={**self.values, **{one.fact: one for one in stated}})

    def without(self, *names: str) -> "Run":
        """Return the run less these facts."""
        return replace(self, values={name: one for name, one in self.values.items() if name not in names})

    def merged(self, other: "Run") -> "Run":
        """Return the run with the gaps filled from another source. Our value stays on conflict, and the other's goes to `replaced`."""
        more: dict[str, Stated] = {}
        against: list[Stated] = []
        for one in other:
            own = self.values.get(one.fact)
            if own is None or own.how == "default" or own.value is None:
                more[one.fact] = one
            elif one.how == "said" and one.value is not None and own.how == "said":
                against.append(one)
        return replace(self, values={**self.values, **more}, replaced=(*self.replaced, *other.replaced, *against))

    def derived(self, name: str, value: Value | None, note: str, *parts: str) -> Stated:
        """Return a fact that follows from others: `parts` are their names, the first of which gives its place in the file."""
        first = next((self.values[part] for part in parts if part in self.values), None)
        how: How = "unknown" if value is None else "derived"
        return Stated(name, value, how, first.span if first else None, first.key if first else "", note)

    def meaning(self, name: str, value: Value | None, *parts: str) -> Stated:
        """Return a fact that these parts say together, in the program's own words: as sure as the least sure of them."""
        known = [self.values[part] for part in parts if part in self.values]
        if not known:
            return Stated(name, value, "default")
        how: How = "unknown" if value is None else "default" if all(part.how == "default" for part in known) else "said"
        return known[0]._replace(fact=name, value=value, how=how)


# Values that a case needs: UserError in the source's own words where one is missing, unreadable or impossible.


def amount(run: Run, *names: str) -> float:
    """Return the first number of zero or more that is stated under these names; NaN where none is."""
    for name in names:
        stated = run.get(name)
        if stated is None or (stated.value is None and stated.how != "unknown"):
            continue
        value = stated.value
        if value is None or isinstance(value, bool | tuple | str):
            raise UserError(stated.note or f"{run.word(name)} is {quoted(value)}, not a number")
        if value < 0 or math.isinf(value):
            raise UserError(f"{run.word(name)} is {quoted(f'{value:g}')}; expected a number of zero or more")
        return float(value)
    return math.nan


def whole(run: Run, name: str, default: int | None = None) -> int:
    """Return a whole number, or the default; refuse a run that states none where there is no default."""
    value = amount(run, name)
    if math.isnan(value) and default is not None:
        return default
    if math.isnan(value):
        raise UserError(f"{run.word(name)} is not stated")
    if not value < 2**40 or value != int(value):
        raise UserError(f"{run.word(name)} is {value:g}, not a whole number")
    return int(value)


def above_zero(run: Run, name: str, default: int | None = None) -> int:
    """Return a whole number, or the default; refuse a stated zero, which divides nothing."""
    value = whole(run, name, default)
    if not value and name in run:
        raise UserError(f"{run.word(name)} is 0; expected a whole number of 1 or more, or an empty field if it is not known")
    return value
