"""Open models that people run: where their weights are, licence, date, what for, and published scores, each with its source."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from meshwise.catalogue import files, records
from meshwise.units import Count

Use = Literal["chat", "code", "agents", "vision", "embedding", "reasoning"]
USES: tuple[Use, ...] = get_args(Use)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of one model, and what its release states about it."""

    gguf: str = ""  # the hub's repository of GGUF files; '' where none is known
    awq: str = ""  # the repository of its publisher with 4-bit AWQ weights
    ollama: str = ""  # its tag in Ollama's library, which is Q4_K_M there, or the format that it is published in
    uses: tuple[Use, ...] = ()  # what it is for, where that differs from the other models of the release
    scores: dict[str, Count] = field(default_factory=dict[str, Count])
    """Percent by benchmark; a release of another benchmark's year is another benchmark. Empty: none is known here."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Models that one source describes: a report, or model cards."""

    key: str = field(default="", metadata={"derived": True})
    title: str
    url: str
    by: str  # who published the models and measured the scores
    licence: str = ""
    date: str = ""  # day, or month, on which the weights were published; '' for unknown
    recalled: bool = False
    """Whether repositories and scores were written down from memory, not copied from the source: check them before you cite them."""
    uses: tuple[Use, ...]
    models: dict[str, Weights]  # by hub id


@dataclass(frozen=True)
class Score:
    """One published score."""

    benchmark: str
    percent: float
    source: Release


@dataclass(frozen=True)
class Offer:
    """One model that can be downloaded."""

    id: str  # its hub id
    weights: Weights
    release: Release
    uses: tuple[Use, ...]
    scores: tuple[Score, ...]  # of every source that states some


@files.cached
def releases() -> tuple[Release, ...]:
    """Return all releases of the catalogue and of the user's own folder."""
    paths = files.files("releases", ".toml")
    return tuple(replace(records.read(Release, files.table_of(path), path.name), key=key) for key, path in paths.items())


@files.cached
def offers() -> tuple[Offer, ...]:
    """Return every model once, with the scores of all sources; the first file that names it says where its weights are."""
    first: dict[str, tuple[Weights, Release]] = {}
    scores: dict[str, list[Score]] = {}
    for name, weights, release in _listed():
        first.setdefault(name, (weights, release))
        scores.setdefault(name, []).extend(Score(bench, percent, release) for bench, percent in weights.scores.items())
    return tuple(
        Offer(name, weights, release, weights.uses or release.uses, tuple(scores[name]))
        for name, (weights, release) in first.items()
    )


def _listed() -> Iterator[tuple[str, Weights, Release]]:
    for release in releases():
        for name, weights in release.models.items():
            yield name, weights, release
