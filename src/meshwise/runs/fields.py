"""FIELDS: everything that can be told of a run, one row of data/runs/fields.toml a field, and the column of a table that means it."""

import re
import tomllib
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from meshwise.catalogue.files import BUILT_IN
from meshwise.cost.axes import AXES
from meshwise.runs.numbers import UNITS, Quantity

Group = Literal["layout", "stages", "batch", "work", "model", "machine", "serving", "result", "row"]


@dataclass(frozen=True)
class Field:
    """One field of a run."""

    name: str
    help: str
    group: Group
    quantity: Quantity = ""  # a key of UNITS; '' for words
    unit: str = ""  # unit of a number that states none
    column: str = ""  # its column in tables of measurements, where that is not its name
    words: str = ""  # other names of it, without spaces and marks. A name may state a unit of its own: 'msperiter=ms'.

    @property
    def title(self) -> str:
        """Its name in tables of measurements."""
        return self.column or self.name


def _read() -> tuple[Field, ...]:
    helps = {axis.name: axis.help for axis in AXES}
    groups = tomllib.loads((BUILT_IN / "runs" / "fields.toml").read_text(encoding="utf-8"))
    return tuple(
        Field(name=name, group=cast(Group, group), **({"help": helps[name]} if name in helps else {}), **row)
        for group, rows in groups.items()
        for name, row in rows.items()
    )


FIELDS = _read()
BY_NAME = {field.name: field for field in FIELDS}
BY_COLUMN = {field.title: field for field in FIELDS}


class Column(NamedTuple):
    """A column of a table: its field, and the unit of its numbers."""

    field: Field
    unit: str


def squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words() -> dict[str, Column]:
    """Return the column that each word means; a field whose words begin with '-' is known by its column and other words alone."""
    found: dict[str, Column] = {}
    for field in FIELDS:
        hidden = field.words.startswith("-")
        for text in (*field.words.split(), field.column, "" if hidden else field.name):
            word, _, unit = text.partition("=")
            if squeeze(word):
                found.setdefault(squeeze(word), Column(field, unit or field.unit))
    return found


WORDS = _words()
_IN_NAME = re.compile(r"[\[(]([^\[(\])]*)[\])]")


def find_column(name: str) -> Column | None:
    """Return the field of a column name, with the unit that the name states: 'iteration time (ms)', 'Mem [GiB]', 'step_ms', 'MFU %'."""
    bracket = _IN_NAME.search(name)
    inside = bracket[1].strip().lower() if bracket else "%" if "%" in name else ""
    for bare in (_IN_NAME.sub("", name), name):
        column = WORDS.get(squeeze(bare))
        if column is None:
            continue
        factors = UNITS.get(column.field.quantity, {})
        unit = inside if inside in factors else inside.split("/")[0] if inside.split("/")[0] in factors else ""
        named = squeeze(inside) in ("gpu", "pergpu", "device", "total", "global")
        if inside and not unit and column.field.quantity and bare != name and not named:
            return WORDS.get(squeeze(name))
        return Column(column.field, unit or column.unit)
    return _suffixed(name)


def _suffixed(name: str) -> Column | None:
    """Return the column of a name that ends in its unit: 'step_time_ms', 'peak_mem_mib'."""
    stem, _, last = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").rpartition("_")
    column = WORDS.get(squeeze(stem)) if stem else None
    if column is None or not column.field.quantity or last not in UNITS[column.field.quantity]:
        return None
    return Column(column.field, last)
