"""Arguments that programs print before they start: 'hidden_size ........ 4096', '--tensor-model-parallel-size 8', 'dp=8,'."""

import re
from collections.abc import Mapping

from meshwise.programs.logs.series import Series
from meshwise.runs.fields import find_column
from meshwise.runs.numbers import amount

_DOTTED = re.compile(r"^.*?([A-Za-z_][\w-]*)\s*\.{3,}\s*(\S.*)$")
_PAIR = re.compile(r"(?:^|[\s({,])--?([A-Za-z][\w-]*)[= ]([\w.+-]+)|(?:^|[\s({,])([A-Za-z_]\w*)\s*=\s*'?([\w.+-]+)'?(?=[,)\s]|$)")
_MODEL = "layers hidden ffn heads kv_heads vocab seq params"
_LAYOUT = "devices dp tp pp cp ep vpp zero mbs per_device_batch batch accumulation"
ARGUMENT_FIELDS = frozenset([*_MODEL.split(), *_LAYOUT.split(), "recompute", "sp", "precision"])
"""Fields that an argument may set; other names that look like columns, such as 'loss', are not arguments."""


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a line."""
    dotted = _DOTTED.match(text)
    if dotted:
        return [(dotted[1], dotted[2].strip())]
    return [(a or c, b or d) for a, b, c, d in _PAIR.findall(text)]


def read_arguments(series: Series, text: str, names: Mapping[str, str] | None = None) -> None:
    """Add the arguments of a line to the facts of a series. `names` maps a program's own argument names to shared ones."""
    for key, value in pairs(text):
        set_argument(series, (names or {}).get(key, key), value)


def set_argument(series: Series, name: str, value: str) -> None:
    """Set the fact that an argument stands for; ignore a name that is not an argument, or a value that is not a number."""
    column = find_column(name)
    if column is None or column.field.name not in ARGUMENT_FIELDS:
        return
    if not column.field.quantity:
        series.text(column.field.name, value)
        return
    number = amount(value, column.field.quantity, column.unit)
    if number is not None and not number.rest:
        series.fact(column.field.name, number.value)
