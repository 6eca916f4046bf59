"""Commands that start an engine with a planned layout. Engines are found through the entry-point group `meshwise.programs`."""

from typing import Protocol, cast

from meshwise.catalogue.plugins import load_plugins
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError

GROUP = "meshwise.export"


class Writer(Protocol):
    """A module that writes the commands of one engine."""

    def lines(self, q: ServeQuestion, layout: ServeLayout) -> list[str]:
        """Return the shell lines that start the engine with this layout."""
        ...


class SharingWriter(Writer, Protocol):
    """A module whose engine can also run layouts of another engine."""

    RUNS_LAYOUTS_OF: str
    """The other engine."""

    def can(self, q: ServeQuestion, layout: ServeLayout) -> bool:
        """Return whether this engine can run that layout."""
        ...


def writers() -> dict[str, Writer]:
    """Load the modules that write commands, by engine."""
    return cast(dict[str, Writer], load_plugins(GROUP, "lines"))


def commands(q: ServeQuestion, layout: ServeLayout) -> dict[str, tuple[str, ...]]:
    """Return shell lines by engine: the planned one first, then others that can run the same layout."""
    known, engine = writers(), q.engine.name
    if engine not in known:
        raise UserError(f"no commands are known for the engine {engine!r}; expected one of {', '.join(known)} ({GROUP} plugins)")
    lines = {engine: tuple(known[engine].lines(q, layout))}
    for name, writer in known.items():
        if getattr(writer, "RUNS_LAYOUTS_OF", "") == engine and cast(SharingWriter, writer).can(q, layout):
            lines[name] = tuple(writer.lines(q, layout))
    return lines
