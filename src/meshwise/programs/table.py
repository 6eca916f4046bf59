"""Tables of keys: a program's rows of facts and keys, from data/programs/tables."""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.programs.kinds import BOOL, COUNT, INT, MODEL, NUMBER, TEXT, WORDS, Kind, flag, switch, word
from meshwise.programs.program import Key
from meshwise.runs.run import Value

FOLDER = "programs/tables"  # a file in the user's own folder comes before the built-in one
NAMES = files.BUILT_IN / "programs" / "names.toml"
KINDS = {"int": INT, "number": NUMBER, "bool": BOOL, "text": TEXT, "words": WORDS, "count": COUNT, "model": MODEL}


def names(name: str) -> Mapping[str, str]:
    """Return the names that a program gives to models or keys, from data/programs/names.toml."""
    return cast(Mapping[str, str], _names()[name])


@cache
def _names() -> Mapping[str, object]:
    return files.table_of(NAMES)


def table(name: str, **own: Kind | Iterable[Key]) -> tuple[Key, ...]:
    """Return the rows of a table; `own`: kinds that only its program has, and rows to include, by the names that the table gives them."""
    given = cast(Mapping[str, Any], files.table_of(files.files(FOLDER, ".toml")[name]))
    kinds: Mapping[str, Any] = KINDS | own | {kind: _words(**words) for kind, words in given.get("kinds", {}).items()}
    return tuple(chain.from_iterable(_rows(row, kinds) for row in given["rows"]))


def _words(words: Mapping[str, Value], also: Mapping[str, Value | None] | None = None, ignored: Iterable[str] = ()) -> Kind:
    """Return the kind of a few words: those that are read and written, those that are only read, and those that say nothing."""
    return word({value: text for text, value in words.items()}, {**(also or {}), **dict.fromkeys(ignored)})


def _rows(row: Mapping[str, Any], kinds: Mapping[str, Any]) -> Iterable[Key]:
    if "include" in row:
        return kinds[row["include"]]
    rest = {name: row[name] for name in ("default", "write") if name in row}
    return [Key(row["fact"], row["key"], _kind(row, kinds), tuple(row.get("also", ())), **rest)]


def _kind(row: Mapping[str, Any], kinds: Mapping[str, Any]) -> Kind:
    match row.get("kind", "int"):
        case "flag":
            return flag(row.get("on", True))
        case "switch":
            return switch(row.get("on", True), row.get("off"))
        case name:
            return kinds[name]
