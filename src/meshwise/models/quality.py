"""Quality of weight formats: what published evaluations say about each, read from data/quality/*.toml."""

from dataclasses import dataclass, field

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.units import Count


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Published findings about formats, as a figure or in words."""

    sources: tuple[Source, ...]
    says: str = ""
    """The sentence of a figure, with {share} for it."""
    formats: dict[str, Count] = field(default_factory=dict[str, Count])
    """Figures by format, as shares."""
    words: dict[str, str] = field(default_factory=dict[str, str])
    """Findings in words by format."""

    def note(self, fmt: str) -> str:
        """Return what it says about a format, with its source; '' where it says nothing."""
        said = self.words.get(fmt, "")
        if fmt in self.formats:
            share = float(self.formats[fmt])
            said = self.says.format(share=f"{share:.1%}" if share < 0.1 else f"{share:.0%}")
        return f"quality of {fmt}: {said} ({self.sources[0].title.partition(',')[0]})" if said else ""


@files.cached
def evaluations() -> tuple[Evaluation, ...]:
    """Return every evaluation of formats."""
    return tuple(records.read(Evaluation, files.table_of(path), path.name) for path in files.files("quality", ".toml").values())


def quality_note(fmt: str) -> str:
    """Return one line about the quality of a format, with its source; '' for 16 bits and for formats without a published evaluation."""
    return next((note for one in evaluations() if (note := one.note(fmt))), "")
