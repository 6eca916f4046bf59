"""Commands that start an engine with a planned layout: the serving programs that have `lines`, on their module or their `PROGRAM`."""

from typing import Any, Protocol, cast

from meshwise.catalogue.plugins import load_plugins
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import UserError
from meshwise.programs.program import PROGRAMS, SERVE


class Writer(Protocol):
    """A module that writes the commands of one engine."""

    def lines(self, q: ServeQuestion, layout: ServeLayout) -> list[str]:
        """Return the shell lines that start the engine with this layout."""
        ...


class SharingWriter(Writer, Protocol):
    """A module whose engine can also run layouts of another engine."""

    RUNS_LAYOUTS_OF: str  # the other engine

    def can(self, q: ServeQuestion, layout: ServeLayout) -> bool:
        """Return whether this engine can run that layout."""
        ...


def writers() -> dict[str, Writer]:
    """Load what writes commands, by engine."""
    found: dict[str, Any] = {}
    for file, module in load_plugins(PROGRAMS, (SERVE,), "PROGRAM or lines").items():
        program = getattr(module, "PROGRAM", None)
        writer = next((one for one in (module, program) if hasattr(one, "lines")), None)
        if writer is not None:
            found[program.name if program is not None else file] = writer
    return cast(dict[str, Writer], found)


def commands(q: ServeQuestion, layout: ServeLayout) -> dict[str, tuple[str, ...]]:
    """Return shell lines by engine: the planned one first, then others that can run the same layout."""
    known, engine = writers(), q.engine.name
    if engine not in known:
        expected = f"expected one of {', '.join(known)} ({PROGRAMS} plugins)"
        raise UserError(f"no commands are known for the engine {engine!r}; {expected}")
    lines = {engine: tuple(known[engine].lines(q, layout))}
    for name, writer in known.items():
        if getattr(writer, "RUNS_LAYOUTS_OF", "") == engine and cast(SharingWriter, writer).can(q, layout):
            lines[name] = tuple(writer.lines(q, layout))
    return lines
