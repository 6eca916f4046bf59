"""Columns are known by the names that people give them, with the unit in the name."""

from meshwise.runs.fields import find_column

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
