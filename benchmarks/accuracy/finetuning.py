"""Score predictions of fine-tuning runs by table, method and card: `python benchmarks/accuracy/finetuning.py [--rows]`.

No coefficient was fitted to these tables; facts of programs and cards were set in view of them (docs/reports/fine-tuning.md says which).
Memory is compared with what each row counts: tensors, the allocator's blocks, or all of the device's.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.calibrate.train.validate import by_machine, find_table, read_cases
from meshwise.catalogue import levels
from meshwise.cost.interval import COVERAGE_STDS
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch

TABLES = ("answerai_fsdp_qlora", "torchtune_readme", "fms_a100_liger", "fitcheck_t4", "h200_transformers_tuned")
BITSANDBYTES = ("nf4", "nf4-single")


@dataclass(frozen=True)
class Row:
    case: Case
    memory: float
    """Predicted over measured bytes, NaN where none were measured."""
    seconds: float
    fits: bool
    inside: bool
    """Whether the measured memory lies in the 90% interval."""


def rows_of(table: str) -> list[Row]:
    cases, _ = read_cases(find_table(table))
    predicted = Batch.of(cases).evaluate()
    spreads = by_machine(cases, lambda case: levels.choose_for(case.cluster, case.work.framework).memory_spread)
    found: list[Row] = []
    for i, case in enumerate(cases):
        ratio = float(predicted.memory[i]) / case.memory if case.has_memory else math.nan
        inside = abs(math.log(ratio)) <= COVERAGE_STDS * spreads[i] if case.has_memory else False
        seconds = float(predicted.seconds[i]) / case.seconds if case.timed else math.nan
        found.append(Row(case, ratio, seconds, float(predicted.needed[i]) <= case.limit, inside))
    return found


def line(words: str, rows: Sequence[Row]) -> None:
    """Print the errors of some rows."""
    memory = np.array([row.memory for row in rows if not math.isnan(row.memory)])
    seconds = np.array([row.seconds for row in rows if not math.isnan(row.seconds)])
    text = f"{words:44} {len(rows):4} rows"
    if len(memory):
        inside = np.mean([row.inside for row in rows if not math.isnan(row.memory)])
        text += f"  memory: median {np.median(np.abs(memory - 1)):5.1%} bias {np.median(memory - 1):+6.1%} inside {inside:4.0%}"
    if len(seconds):
        text += f"  time: median {np.median(np.abs(seconds - 1)):5.1%} bias {np.median(seconds - 1):+6.1%}"
    print(text)


def main() -> None:
    tables = {table: rows_of(table) for table in TABLES}
    every = [row for rows in tables.values() for row in rows]
    for table, rows in tables.items():
        line(table, rows)
    chosen: dict[str, Callable[[Row], bool]] = {
        "all": lambda row: True,
        "bitsandbytes QLoRA, tensors, one GPU": lambda row: row.case.work.finetune.stored in BITSANDBYTES
        and row.case.memory_kind == "allocated" and row.case.cluster.devices == 1,
        "full tuning, one GPU": lambda row: not row.case.work.finetune.adapts and row.case.cluster.devices == 1,
        "full tuning, several": lambda row: not row.case.work.finetune.adapts and row.case.cluster.devices > 1,
        "16-bit LoRA": lambda row: row.case.work.finetune.adapts and not row.case.work.finetune.quantized,
        **{card: (lambda row, card=card: row.case.chip.key == card) for card in ("t4", "rtx6000ada", "rtxa5000", "rtx3090", "rtx4090")},
    }  # fmt: skip
    for words, chosen_by in chosen.items():
        line(words, [row for row in every if chosen_by(row)])
    ran, failed = ([row for row in every if row.case.ran == outcome] for outcome in (True, False))
    print(f"rejected although they ran: {sum(not row.fits for row in ran)} of {len(ran)}")
    print(f"out of memory, said to fit: {sum(row.fits for row in failed)} of {len(failed)}")
    if "--rows" in sys.argv:
        for row in every:
            print(f"{row.case.row_id:28} memory {row.memory - 1:+7.1%} time {row.seconds - 1:+7.1%}")


if __name__ == "__main__":
    main()
