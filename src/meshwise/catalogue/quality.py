"""The cost of quantization in quality: published differences from 16-bit weights, by format, approximate for other models."""

from dataclasses import dataclass, field, replace

from meshwise.catalogue import files, records
from meshwise.units import Count


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Differences that one source states."""

    key: str = field(default="", metadata={"derived": True})
    title: str
    url: str
    measure: str = ""  # name of the score, such as perplexity, that `changes` are differences of
    changes: dict[str, Count] = field(default_factory=dict[str, Count])  # by format, the value minus that of 16-bit weights
    words: dict[str, str] = field(default_factory=dict[str, str])
    """By format, what the source states without a figure of one measure."""
    models: tuple[str, ...] = ()  # model types that it is about; empty: formats in general

    def note(self, fmt: str) -> str:
        """Return its statement about a format; '' where it has none."""
        if fmt in self.words:
            return f"{self.words[fmt]} ({self.title})"
        return f"{self.measure} {self.changes[fmt]:+.2g} ({self.title})" if fmt in self.changes else ""


@files.cached
def qualities() -> tuple[Quality, ...]:
    """Return all sources, those about a model type first."""
    paths = files.files("quality", ".toml")
    known = (replace(records.read(Quality, files.table_of(path), path.name), key=key) for key, path in paths.items())
    return tuple(sorted(known, key=lambda quality: not quality.models))


def quality_note(fmt: str, model_type: str) -> str:
    """Return what is published about the quality of a format, with its source; '' where nothing is."""
    for quality in qualities():
        if not quality.models or model_type in quality.models:
            note = quality.note(fmt)
            if note:
                return note
    return ""
