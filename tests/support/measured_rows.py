"""Tables of training runs for tests: one valid row, and the changes of each test."""

import csv
from functools import cache
from pathlib import Path

from meshwise.errors import UserError
from meshwise.runs.table import Skipped, find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.settle import read_cases
from support.command import one_line

ROW = {
    "row_id": "a",
    "n_layers": "24",
    "d_model": "2048",
    "n_heads": "16",
    "vocab": "51200",
    "seq_len": "1024",
    "gpu": "A100-80GB",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "framework": "Megatron-LM",
    "precision": "bf16",
    "dp": "8",
    "tp": "1",
    "pp": "1",
    "zero_stage": "1",
    "micro_batch": "1",
    "global_batch_seqs": "64",
    "recompute": "none",
    "sec_per_iter": "1.0",
    "mem_gb": "",
    "mem_unit": "GB",
    "outcome": "ok",
}


def table(folder: Path, *changes: dict[str, str], without: tuple[str, ...] = ()) -> Path:
    """Write a CSV file of ROW with these changes, one row each."""
    rows = [ROW | {"row_id": "abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i // 26)} | change for i, change in enumerate(changes)]
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in without]
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@cache
def built_in(name: str) -> tuple[list[Case], list[Skipped]]:
    """Return the cases and skipped rows of a built-in table, read once per process. Do not change the lists."""
    return read_cases(find_table(name))


def skipped(folder: Path, change: dict[str, str]) -> str:
    """Return the reason for which a row is skipped, beside one that is not."""
    used, (skip,) = read_cases(table(folder, {}, change))
    assert ([case.row_id for case in used], skip.row_id) == (["a"], "b")
    return one_line(UserError(skip.reason))


def read(folder: Path, *changes: dict[str, str]) -> list[Case]:
    """Return the cases of such a table, all of whose rows must be valid."""
    used, unused = read_cases(table(folder, *changes))
    assert not unused
    return used
