"""How well predictions tell two layouts of one question apart: python tools/differences.py

Prints, for each built-in table of training runs, the spread of log(predicted / measured) of all rows near the best of their group, and the
spread about the mean of their group: same model, machine, program and batch. The second is the error of a difference between layouts; its
mean over tables is DIFFERENCE_STD in audit/check/difference.py.
"""

import math

import numpy as np

from meshwise.calibrate.train.score import groups, near_best
from meshwise.errors import UserError
from meshwise.runs.table import find_table
from meshwise.runs.train.predict import predict
from meshwise.runs.train.settle import read_cases

TABLES = (
    "bloom_prequel", "dgxc_benchmarking", "internevo_a100", "korthikanti2022_iteration", "maxtext_tpu", "megatron_bridge_to_2602",
    "nanotron_h100_128", "nanotron_h100_small", "torchtitan_2024", "vtrain_a100_single_node", "mlperf_training",
)  # fmt: skip


def spreads(table: str) -> tuple[int, float, float]:
    """Return the rows of groups of two or more near their best, the spread of all rows, and the spread within groups."""
    cases, _ = read_cases(find_table(table))
    seconds, kept = predict(cases).seconds, set(near_best(cases))
    error = {i: math.log(seconds[i] / cases[i].seconds) for i in kept}
    within: list[float] = []
    for group in groups(cases):
        rows = [i for i in group if i in kept]
        if len(rows) > 1:
            mean = float(np.mean([error[i] for i in rows]))
            within += [(error[i] - mean) * math.sqrt(len(rows) / (len(rows) - 1)) for i in rows]
    return len(within), float(np.std([*error.values()])), math.sqrt(float(np.mean(np.square(within)))) if within else math.nan


def main() -> None:
    found: list[float] = []
    for table in TABLES:
        try:
            rows, level, within = spreads(table)
        except UserError as error:
            print(f"{table}: {error}")
            continue
        print(f"{table}: {rows} rows, level {level:.3f}, difference {within:.3f}")
        found.append(within)
    print(f"root of the mean square over tables: {math.sqrt(float(np.mean(np.square(found)))):.3f}")


if __name__ == "__main__":
    main()
