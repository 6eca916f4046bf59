"""The report of a run in sections, printed as text or written as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.ui.views.tables import Table


@dataclass(frozen=True)
class Section:
    """A title with a table, lines and commands below it."""

    title: str
    table: Table[Any] | None = None
    lines: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()  # commands to try next


def as_text(sections: Sequence[Section]) -> str:
    """Return the sections for a terminal: titles, aligned tables, and lines below them."""
    return "\n\n".join("\n".join([section.title, *_indented(section)]) for section in sections)


def _indented(section: Section) -> list[str]:
    rows = section.table.lines() if section.table else []
    return [f"  {line}".rstrip() for line in (*rows, *section.lines, *(f"$ {command}" for command in section.commands))]


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the sections as Markdown."""
    parts = [f"# {title}", *(part for section in sections for part in _marked(section))]
    return "\n\n".join(parts) + "\n"


def _marked(section: Section) -> list[str]:
    parts = [f"## {section.title[:1].upper()}{section.title[1:]}"]
    parts += [section.table.markdown()] if section.table else []
    parts += ["\n".join(f"- {line.strip()}" for line in section.lines)] if section.lines else []
    commands = "\n".join(f"$ {command}" for command in section.commands)
    return parts + ([f"```console\n{commands}\n```"] if commands else [])
