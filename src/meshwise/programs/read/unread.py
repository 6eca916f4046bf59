"""Unread: keys of launch files that an answer does not use, those that change memory or speed first (data/programs/keys)."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, cast

from meshwise.catalogue import files
from meshwise.programs.program import Program, plain_key
from meshwise.programs.read.flags import POSITIONAL
from meshwise.programs.source import Setting, Unknown
from meshwise.runs.run import Span

Changes = Literal["memory", "speed", "", "nothing"]
LIKENESS = 0.87  # ratio of difflib from which a key that nobody lists is a misspelt one
MIN_LETTERS = 7  # letters of a key that can be told from another by its likeness
SHARED = {"trainer": ("trainer", "trl"), "llama-factory": ("llama-factory", "trainer"), "megatron-deepspeed": ("megatron",)}
"""Lists of keys of programs that take those of another; a program without a list is compared with what is read of it."""
OPEN = ("trainer", "accelerate", "deepspeed", "megatron-deepspeed", "neox", "megatron-bridge")
"""Programs whose scripts add keys of their own, so that a key that is not listed is no fault."""


@dataclass(frozen=True)
class Unread:
    """A key of a file that the answer does not use."""

    key: str
    span: Span
    changes: Changes  # what it changes, by its words: memory, speed, nothing of both, or '' where they do not tell
    decides: str = ""  # what of the verdict it decides; '' where it decides nothing, or that is not known
    lessens: str = ""  # the memory that it saves and that is not counted; '' where it saves none, or that is not known
    like: str = ""  # the key that it is most like, where the program lists no such key
    used: bool = False  # whether the answer would use that other key

    @property
    def withholds(self) -> str:
        """Why there is no verdict beside this key; '' where there may be one."""
        place = f"{self.key} ({self.span}) is not read"
        if self.decides:
            return f"{place}: it sets {self.decides}"
        return f"{place}; did you mean {self.like}?" if self.like and self.used else ""


def unread(program: Program, settings: Sequence[Setting], used: Iterable[str] = ()) -> list[Unread]:
    """Return the keys that a program's facts do not come from. `used`: keys that something else reads, such as a launcher."""
    table = {*program.table, *(plain_key(key) for key in program.refers), *(plain_key(key) for key in used)}
    known, found = listed(program.name), dict[str, Unread]()
    sections = {row.key.rpartition(".")[0] for row in program.keys if "." in row.key}
    decides, lessens = (
        {plain_key(key): text for key, text in _rules()[kind].get(program.name, {}).items()} for kind in ("decides", "lessens")
    )
    given = {setting.key for setting in settings}
    for setting in settings:
        key, plain = setting.key, plain_key(setting.key)
        if not _names_a_setting(key) or plain in table or _read_as_list(plain, {*table, *given}) or _unset(setting):
            continue
        like = "" if not known and program.flag_words else _like(plain, table, known, program, sections)
        shown = next((row.key for row in program.keys if plain_key(row.key) == like), like) if like else ""
        found.setdefault(
            plain,
            Unread(key, setting.span, changes_of(key), decides.get(plain, ""), lessens.get(plain, ""), shown, like in table),
        )
    order = ("memory", "speed", "", "nothing")
    return sorted(found.values(), key=lambda one: (not one.withholds, not one.like, order.index(one.changes)))


def _names_a_setting(key: str) -> bool:
    return key != POSITIONAL and bool(re.search(r"[A-Za-z]", key)) and len(key) < 120 and not key.startswith("env:")


def _read_as_list(key: str, table: set[str]) -> bool:
    """Return whether a key is an item of a list that is read whole."""
    stem, _, last = key.rpartition(".")
    return last.isdecimal() and (stem in table or _read_as_list(stem, table))


def _unset(setting: Setting) -> bool:
    """Return whether a value turns its key off, or leaves it at its default."""
    value = setting.value
    return not isinstance(value, Unknown | bool) and (value is None or str(value).lower() in ("", "none", "null", "auto"))


@cache
def listed(program: str) -> frozenset[str]:
    """Return the keys that a program lists itself; empty where no list is known."""
    names = SHARED.get(program, (program,))
    paths = [files.BUILT_IN / "programs" / "keys" / f"{name}.json" for name in names]
    if not all(path.exists() for path in paths):
        return frozenset()
    keys = [str(key) for path in paths for key in json.loads(files.text_of(path))]
    return frozenset(plain_key(key) for key in keys)


@cache
def _rules() -> dict[str, Any]:
    return cast(dict[str, Any], files.table_of(files.BUILT_IN / "programs" / "unread.toml"))


@cache
def _words(kind: str) -> frozenset[str]:
    return frozenset(str(_rules()[kind]).split())


def changes_of(key: str) -> Changes:
    """Return what a key changes, by its words."""
    words = set(re.split(r"[-_.\s]+", key.lower().lstrip("-")))
    if words & _words("memory") and not words & _words("harmless"):
        return "memory"
    if words & _words("speed") and not words & _words("harmless"):
        return "speed"
    return "nothing" if words & _words("harmless") else ""


def _like(key: str, table: set[str], known: frozenset[str], program: Program, sections: set[str]) -> str:
    """Return the key that a misspelt one is like; '' for a key that the program lists, or that is like none."""
    if _is_listed(key, known, sections) or len(key.lstrip("-")) < MIN_LETTERS:
        return ""
    candidates: Sequence[str] = [*table, *(known if program.name not in OPEN else ())]
    same_form = [one for one in candidates if one.startswith("-") == key.startswith("-") and abs(len(one) - len(key)) < 5]
    close = get_close_matches(key, same_form, n=3, cutoff=LIKENESS)
    return next((one for one in close if _alike(one.rpartition("."), key.rpartition("."))), "")


def _alike(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    """Return whether the last parts of two dotted keys are alike too, and not only the section that they share."""
    return one[2] == other[2] or bool(get_close_matches(one[2], [other[2]], cutoff=LIKENESS))


def _is_listed(key: str, known: frozenset[str], sections: set[str]) -> bool:
    """Return whether a program lists a key: whole, or its last name inside a section that has keys of its own."""
    if key in known or f"--{key}" in known or key.lstrip("-").replace("-", "_") in known or key.replace("--no-", "--") in known:
        return True
    parent, _, last = key.rpartition(".")
    return bool(parent) and last in known and (parent in sections or parent in known or parent.partition(".")[0] in known)
