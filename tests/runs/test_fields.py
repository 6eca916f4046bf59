"""Columns are known by the names that people give them, with the unit in the name."""

import re
import time
from pathlib import Path

import pytest

import meshwise
from meshwise.cost.axes import AXES
from meshwise.runs.fields import BY_COLUMN, BY_NAME, find_column

SOURCE = Path(meshwise.__file__).parent
NAMES = {
    "iteration time (ms)": ("seconds", "ms"),
    "step_time_ms": ("seconds", "ms"),
    "Sec/it": ("seconds", "s"),
    "Mem [GiB]": ("memory", "gib"),
    "peak_mem_mib": ("memory", "mib"),
    "# GPUs": ("devices", ""),
    "NHIDDEN": ("hidden", ""),
    "tok/s/GPU": ("tokens_per_second_per_device", ""),
    "MFU %": ("mfu", "%"),
    "tensor parallelism": ("tp", ""),
}


def test_columns_are_known_by_the_names_people_give_them():
    found = {name: find_column(name) for name in NAMES}
    assert {name: (column.field.name, column.unit) if column else None for name, column in found.items()} == NAMES


def test_other_names_are_no_columns():
    assert [name for name in ("", "colour", "weather (ms)", "dim") if find_column(name)] == []


@pytest.mark.parametrize("name", ["[" * 300_000, "[" + " " * 300_000, "Mem " + "(GiB" * 100_000], ids=["open", "blank", "words"])
def test_a_name_of_many_brackets_takes_time_by_its_length_alone(name: str) -> None:
    begun = time.process_time()
    assert find_column(name) is None
    assert time.process_time() - begun < 2


WRITERS = {"workers/trainer/contract/rows.py", "workers/decoder/rows.py"}
"""The two workers, which write rows without the rest of the package."""


def test_every_axis_of_a_layout_is_a_field():
    assert [axis.name for axis in AXES if axis.name not in BY_NAME] == []


@pytest.mark.parametrize("column", ["n_gpus", "global_batch_seqs"])
def test_columns_of_tables_are_named_where_they_are_defined_and_by_the_workers_that_write_them(column: str) -> None:
    word = re.compile(rf"\b{column}\b")  # not verl's n_gpus_per_node
    named = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if word.search(path.read_text(encoding="utf-8"))
    }
    assert named <= WRITERS
    assert column in BY_COLUMN
