"""Names that fit what was typed so far, for the inputs that search: models, with weight formats for serving, and clusters."""

import re
from functools import cache
from typing import Any, NamedTuple

from meshwise import api, units
from meshwise.errors import UserError

MAX_NAMES = 1000  # names that are suggested, at most
FORMATS = ("q4_k_m", "q5_k_m", "q6_k", "q8_0", "bf16", "fp8", "awq")
"""The usual weight formats, smallest first; others can be typed."""
COUNTED_CHIP = re.compile(r"((?:\d+\s*x\s*){0,2})(.*)")  # a number of nodes and of devices, and the chip: '4x8xh100'


class Suggestion(NamedTuple):
    """A value, and what it is in a few words."""

    value: str
    about: str


def suggest(catalogue: str, typed: str, *, serving: bool, whole: bool = False) -> list[Suggestion]:
    """Return the names of a catalogue that contain the typed text, those that begin with it first."""
    read, text = _models if catalogue == "models" else _clusters, typed.strip().lower()
    found = read(text, serving)
    return list(dict.fromkeys([*found, *read("", serving)] if whole else found))[:MAX_NAMES]


def warm() -> None:
    """Read every entry of the catalogues once, so that the first suggestion comes as fast as the others."""
    for read in (_known_models, _known_chips, _known_clusters):
        read()


def _models(text: str, serving: bool) -> list[Suggestion]:
    name, colon, fmt = text.partition(":")
    known = _known_models()
    if serving and (colon or name in known):
        formats = [each for each in FORMATS if each.startswith(fmt)]
        about = known.get(name, "")
        return [Suggestion(f"{name}:{each}", about) for each in formats] if name in known else []
    return [Suggestion(each, known[each]) for each in _ordered(name, list(known))]


def _clusters(text: str, serving: bool) -> list[Suggestion]:
    """Return clusters of the catalogue, and numbers of devices of each chip that fits."""
    match = COUNTED_CHIP.fullmatch(text)
    counts, name = (match[1].replace(" ", ""), match[2]) if match else ("", text)
    chips, clusters = _known_chips(), _known_clusters()
    found = [Suggestion(each, clusters[each]) for each in _ordered(text, list(clusters))] if not counts else []
    for chip in _ordered(name, list(chips)):
        sizes = [counts] if counts else ["4x", "8x"] if serving else [f"{chips[chip][0]}x", f"8x{chips[chip][0]}x"]
        found += [Suggestion(f"{size}{chip}", chips[chip][1]) for size in sizes]
    return found


def _ordered(typed: str, names: list[str]) -> list[str]:
    """Return the names that contain every word that was typed; those that begin with it come first."""
    pieces = re.split(r"[\s\-_]+", typed)
    fitting = [name for name in names if all(piece in name for piece in pieces)]
    return sorted(fitting, key=lambda name: (not name.startswith(typed), name))


@cache
def _known_models() -> dict[str, str]:
    return {row["model"]: _parameters(row) for row in api.show("models")}


def _parameters(row: dict[str, Any]) -> str:
    if "params" not in row:
        return ""
    active = f", {units.show(row['active_params'], 'count', digits=3)} active" if row["active_params"] < row["params"] else ""
    return f"{units.show(row['params'], 'count', digits=3)} parameters{active}"


@cache
def _known_chips() -> dict[str, tuple[int, str]]:
    """Return, by chip, the devices of its vendor's node, and its name with its memory."""
    rows = api.show("chips")
    return {row["chip"]: (row["per_node"], f"{row['name']}, {units.show(row['memory'], 'bytes', binary=True)}") for row in rows}


@cache
def _known_clusters() -> dict[str, str]:
    known: dict[str, str] = {}
    for name in api.names("clusters"):
        try:
            (row,) = api.show("clusters", name)
        except (UserError, ValueError):
            continue
        chips = ", ".join(f"{count:,} x {chip}" for chip, count in row["chips"].items())
        known[name] = f"{row['nodes']:,} nodes, {chips}" if row["nodes"] > 1 else chips
    return known
