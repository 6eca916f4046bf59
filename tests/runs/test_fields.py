"""Columns are known by the names that people give them, with the unit in the name."""

from meshwise.runs.columns import find_field

NAMES = {
    "iteration time (ms)": ("seconds", "ms"),
    "step_time_ms": ("seconds", "ms"),
    "Sec/it": ("seconds", "s"),
    "Mem [GiB]": ("memory", "gib"),
    "peak_mem_mib": ("memory", "mib"),
    "# GPUs": ("n_gpus", ""),
    "NHIDDEN": ("d_model", ""),
    "tok/s/GPU": ("tokens_per_second_per_gpu", ""),
    "MFU %": ("mfu", "%"),
    "tensor parallelism": ("tp", ""),
}


def test_columns_are_known_by_the_names_people_give_them():
    found = {name: find_field(name) for name in NAMES}
    assert {name: (field.name, field.unit) if field else None for name, field in found.items()} == NAMES


def test_other_names_are_no_columns():
    assert [name for name in ("", "colour", "weather (ms)", "dim") if find_field(name)] == []
