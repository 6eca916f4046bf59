"""Arguments that programs print before they start: 'hidden_size ........ 4096', '--tensor-model-parallel-size 8', 'dp=8,'."""

import re
from collections.abc import Mapping

from meshwise.programs.logs.series import Series
from meshwise.programs.program import find_program
from meshwise.programs.source import Setting
from meshwise.programs.train import recipe
from meshwise.runs.fields import find_column
from meshwise.runs.numbers import amount
from meshwise.runs.run import Span

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


class Recipe:
    """The arguments of a log that are about the recipe of its program, collected until a step shows that all are there."""

    def __init__(self, program: str, *more: str) -> None:
        """`more`: facts that those of the recipe depend on."""
        self.program = find_program(program)
        rows = [row for row in self.program.keys if recipe.tells(row) or row.fact in more]
        self.keys = {_argument(key): key for row in rows for key in (row.key, *row.also)}
        self.found: dict[str, str] = {}

    def read(self, text: str) -> None:
        """Keep the arguments of a line."""
        for key, value in pairs(text):
            name = key.replace("-", "_")
            if name in self.keys and value not in ("None", "null"):
                self.found[name] = re.sub(r"^[A-Z]\w*\.(?=[a-z])", "", value)  # AttnBackend.fused

    def tell(self, series: Series) -> None:
        """Set the facts that the arguments say; those of an argument that was not printed stay as the release has them."""
        if not self.found:
            return
        facts = self.program.read(Setting(self.keys[name], value, Span("", 0)) for name, value in self.found.items())
        for name in (*recipe.FACTS, "capacity"):
            stated = facts.get(name)
            if stated is not None and stated.value is not None and _argument(stated.key) in self.found:
                series.text(name, str(stated.value))
        self.found = {}


def _argument(key: str) -> str:
    """Return the name under which a program prints a key: '--overlap-grad-reduce' is overlap_grad_reduce."""
    return key.lstrip("-").rpartition(".")[2].replace("-", "_")


def read_release(series: Series, text: str, names: str) -> None:
    """Set the release of a program where a line states its version: 'transformers version: 4.46.0', 'megatron-core==0.12.1'."""
    found = re.search(rf"\b(?:{names})(?:[ _-]version)?[\"']?\s*[:=\s]=?\s*[\"']?v?(\d+(?:\.\d+)+)", text)
    if found:
        series.text("release", found[1])


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
