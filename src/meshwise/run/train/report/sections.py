"""A report as data, printed as aligned text or written as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Formatted cells. The first column is text; the others are aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def without_empty_columns(self) -> "Table":
        """Return the table without columns that are empty in every row."""
        kept = [i for i in range(len(self.header)) if any(row[i] for row in self.rows)]
        return Table(tuple(self.header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in self.rows))


@dataclass(frozen=True)
class Section:
    """A title with a table, lines and commands below it."""

    title: str
    table: Table | None = None
    lines: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Commands to try next."""


def as_text(sections: Sequence[Section]) -> str:
    """Return the sections for a terminal: titles, aligned tables, and lines below them."""
    return "\n\n".join("\n".join([section.title, *_indented(section)]) for section in sections)


def _indented(section: Section) -> list[str]:
    rows = [] if section.table is None else _aligned(section.table)
    return [f"  {line}".rstrip() for line in (*rows, *section.lines, *(f"$ {command}" for command in section.commands))]


def _aligned(table: Table) -> list[str]:
    every = [table.header, *table.rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(table.header))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in every
    ]


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the sections as Markdown."""
    parts = [f"# {title}", *(part for section in sections for part in _marked(section))]
    return "\n\n".join(parts) + "\n"


def _marked(section: Section) -> list[str]:
    parts = [f"## {section.title[:1].upper()}{section.title[1:]}"]
    if section.table is not None:
        rule = ("---", *(["---:"] * (len(section.table.header) - 1)))
        parts.append("\n".join(_row(row) for row in (section.table.header, rule, *section.table.rows)))
    parts += ["\n".join(f"- {line.strip()}" for line in section.lines)] if section.lines else []
    return parts + (
        ["```console\n" + "\n".join(f"$ {command}" for command in section.commands) + "\n```"] if section.commands else []
    )


def _row(cells: Sequence[str]) -> str:
    """Return a row of Markdown. Leading blanks, which mark parts of the row above, become non-breaking."""
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return "| " + " | ".join("&nbsp;" * (len(cell) - len(cell.lstrip())) + cell.lstrip() for cell in escaped) + " |"
