"""Which format a file has, told by its content or by its name; and the reading of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from meshwise.audit.logs import lines
from meshwise.audit.logs.formats import csv, deepspeed, hf, jsonl, llamabench, markdown, megatron, nanotron, torchtitan
from meshwise.audit.logs.lines import Line
from meshwise.audit.logs.run import Reading
from meshwise.errors import UserError, nearest, quoted

PAGES = (".md", ".markdown", ".txt")
"""Files that may hold nothing but sentences."""


@dataclass(frozen=True)
class Format:
    name: str
    matches: Callable[[str], bool]
    read: Callable[[Iterable[Line]], Reading]


# The narrow ones first: a Markdown page may quote a log, and a log never holds a page.
FORMATS = tuple(
    Format(module.name, module.matches, module.read)
    for module in (llamabench, jsonl, csv, markdown, torchtitan, nanotron, megatron, deepspeed, hf)
)


def detect(head: str) -> Format | None:
    """The first format whose marks the head of a file shows."""
    plain = "\n".join(map(lines.plain, head.splitlines()))
    return next((one for one in FORMATS if one.matches(plain)), None)


def find_format(name: str) -> Format:
    for one in FORMATS:
        if one.name == name.lower():
            return one
    names = [one.name for one in FORMATS]
    raise UserError(f"unknown format {quoted(name)}{nearest(name, names)}; known: {', '.join(names)}")


def read_file(path: Path, name: str = "") -> Reading:
    """One file, as it says or as it is told to be."""
    found = find_format(name) if name else detect(lines.head(path))
    if found is None and path.suffix.lower() in PAGES:
        found = find_format(markdown.name)
    if found is None:
        names = ", ".join(one.name for one in FORMATS)
        raise UserError(f"{path.name}: no known format is recognised in it; name one with --format ({names})")
    with lines.open_text(path) as file:
        return found.read(lines.lines(file))
