"""Tables of training runs as text: CSV files, vTrain's column names translated, and JSONL files that `meshwise run` wrote."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from meshwise.errors import UserError, nearest, quoted
from meshwise.runs import table as tables
from meshwise.runs.table import Row

VTRAIN = {
    "# GPUs": "n_gpus",
    "global batch": "global_batch_seqs",
    "micro batch": "micro_batch",
    "hidden size": "d_model",
    "attention heads": "n_heads",
    "# layers": "n_layers",
    "sequence length": "seq_len",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
    "iteration time (ms)": "ms_per_iter",
}
"""vTrain's column names (VIA-Research/vTrain, data/ground_truth_single.csv)."""
VTRAIN_FACTS = {
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "framework": "Megatron-DeepSpeed",
    "vocab": "51200",
    "recompute": "none",
}
"""Facts missing from vTrain's file: the machine of its paper, and GPT-2's padded vocabulary."""
NEEDED = ("n_gpus", "global_batch_seqs", "seq_len", "gpu")
"""Columns without which no row can be evaluated; any of their values may be empty where another column states the same."""
TIMES = ("sec_per_iter", "ms_per_iter", "tokens_per_sec_per_gpu", "tflops_per_gpu", "mfu", "hfu")
MEASURED = (*TIMES, "mem_gb")


class Table:
    """The rows of a CSV file, vTrain's column names translated, or of a JSONL file that `meshwise run` wrote. They are read as they are
    asked for, as often as they are: a table of a million rows is never held as text. A damaged file is refused, with the number of the
    damaged line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = tables.Text(path) if path.suffix == ".jsonl" else tables.Lines(path)

    def __iter__(self) -> Iterator[Row]:
        return _rows(self.path, self.text) if isinstance(self.text, tables.Lines) else _objects(self.path, self.text)


def _rows(path: Path, lines: tables.Lines) -> Iterator[Row]:
    header = lines.header()
    vtrain = "# GPUs" in header
    columns = [VTRAIN.get(name, name) for name in header] if vtrain else header
    _check_columns(path.name, [*columns, *VTRAIN_FACTS] if vtrain else columns)
    if not lines:
        raise UserError(f"{path.name}: no rows below the header")
    for where, row in tables.rows(path, columns, lines):
        _check_measured(where, row)
        yield VTRAIN_FACTS | row if vtrain else row


def _objects(path: Path, lines: tables.Text) -> Iterator[Row]:
    line_number = 0
    for line_number, line in enumerate(lines, 1):
        where = f"{path.name}, line {line_number}"
        try:
            values: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UserError(f"{where}: expected an object, found {quoted(values)}")
        row = {str(key): str(value) for key, value in cast(dict[object, object], values).items()}
        _check_columns(where, list(row))
        _check_measured(where, row)
        yield row
    if not line_number:
        raise UserError(f"{path.name}: empty; expected a JSON object per line")


def _check_columns(name: str, columns: list[str]) -> None:
    if not columns:
        raise UserError(f"{name}: empty; expected a CSV file with a header and the columns {', '.join(NEEDED)}")
    repeated = [column for column, times in Counter(columns).items() if times > 1]
    if repeated:
        raise UserError(f"{name}: the column {quoted(repeated[0])} appears twice")
    for column in NEEDED:
        if column not in columns:
            raise UserError(f"{name}: the column '{column}' is missing{nearest(column, columns)}")
    if not set(MEASURED) & set(columns):
        raise UserError(f"{name}: no column with a measurement; expected one of {', '.join(MEASURED)}")


def _check_measured(where: str, row: Row) -> None:
    """Refuse a measurement that is neither empty nor a finite number above zero."""
    for column in MEASURED:
        text = row.get(column, "")
        try:
            valid = not text or 0 < float(text) < math.inf
        except ValueError:
            valid = False
        if not valid:
            raise UserError(
                f"{where}: {column} is {quoted(text)}; expected a number above zero, or an empty field if it was not measured"
            )
