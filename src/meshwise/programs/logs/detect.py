"""Recognize the format of a file (`formats/`, or the entry-point group `meshwise.logs`) by its content or name, and read the file."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from meshwise.catalogue.files import unreadable
from meshwise.catalogue.plugins import load_own, load_plugins, own_files
from meshwise.errors import UserError, unknown
from meshwise.programs.logs import lines
from meshwise.programs.logs.lines import Line
from meshwise.runs.reading import Reading

GROUP, FORMATS = "meshwise.logs", "meshwise.programs.logs.formats"
REQUIRED_NAMES = ("name", "order", "matches", "read")  # what a module must define to be a format
PAGES = (".md", ".markdown", ".txt")  # files that are read as Markdown if no format matches: they may hold nothing but sentences


class Format(Protocol):
    """The contents of a format module."""

    name: str  # the name for --format
    order: int
    """Formats are tried from the lowest: 10 for a program's own table or JSON, 20 to 40 for general tables and pages, 50 and more for
    logs. A page may quote a log, but a log never contains a page."""

    def matches(self, head: str) -> bool:
        """Return whether the first 64 KiB of a file, without colors, are in this format."""
        ...

    def read(self, lines: Iterable[Line]) -> Reading:
        """Read a file from its stream of lines, in bounded memory."""
        ...


def formats() -> list[Format]:
    """Return all registered formats, in the order in which they are tried."""
    modules = cast(Iterable[Format], load_plugins(GROUP, (FORMATS,), *REQUIRED_NAMES).values())
    return sorted(modules, key=lambda module: (module.order, module.name))


def tried() -> Iterator[Format]:
    """Yield the formats in their order. One of ours is imported when its turn comes, where the text of its file tells its order."""
    modules: dict[str, Any] = dict(load_plugins(GROUP, (), *REQUIRED_NAMES))
    orders = {name: module.order for name, module in modules.items()}
    for name, path in own_files(FORMATS).items():
        stated = re.search(r"^order = (\d+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if stated is None:
            modules[name] = load_own((FORMATS,), name)
        orders[name] = int(stated[1]) if stated else getattr(modules[name], "order", None)
    turns = sorted((order, name) for name, order in orders.items() if order is not None)
    return (cast(Format, modules.get(name) or load_own((FORMATS,), name)) for _, name in turns)


def detect(head: str) -> Format | None:
    """Return the first format that matches the head of a file."""
    plain = "\n".join(map(lines.plain, head.splitlines()))
    return next((module for module in tried() if module.matches(plain)), None)


def find_format(name: str) -> Format:
    known = {module.name: module for module in formats()}
    if name.lower() not in known:
        raise unknown("format", name, known)
    return known[name.lower()]


def read_file(path: Path, name: str = "") -> Reading:
    """Read a file in the named format, or in the one that its content matches."""
    head, file = lines.open_text(path)
    with file:
        reader = find_format(name) if name else detect(head)
        if reader is None and path.suffix.lower() in PAGES:
            reader = find_format("markdown")
        if reader is None:
            names = ", ".join(module.name for module in formats())
            raise UserError(f"{path.name}: no known format matches its content; name one with --format ({names})")
        try:
            return reader.read(lines.lines(file))
        except OSError as error:
            raise unreadable(path, error) from None
