"""Columns are known by the names that people give them, with the unit in the name."""

import re
from pathlib import Path

import pytest

import meshwise
from meshwise.runs.fields import find_column

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


WRITERS = {"runs/fields.py", "workers/trainer/contract/rows.py", "workers/decoder/rows.py"}
"""FIELDS, and the two workers, which write rows without the rest of the package."""


@pytest.mark.parametrize("column", ["n_gpus", "global_batch_seqs"])
def test_columns_of_tables_are_named_where_they_are_defined_and_by_the_workers_that_write_them(column: str) -> None:
    word = re.compile(rf"\b{column}\b")  # not verl's n_gpus_per_node
    named = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if word.search(path.read_text(encoding="utf-8"))
    }
    assert named <= WRITERS
    assert "runs/fields.py" in named
