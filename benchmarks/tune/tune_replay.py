"""Replay `tune` on the built-in tables: time lost by number of runs, against what is demanded and beside rivals. With optuna, which takes
most of it: about twenty minutes.

python benchmarks/tune/tune_replay.py            print the table
python benchmarks/tune/tune_replay.py --write    and put it into docs/reports/tune-runs.md

Predictions are by calibrations, and the scales of the residual by a fit (`benchmarks/tune/tune_scales.py`), that never saw the table.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from meshwise.tune.replay.replay import Replay, replay
from tune_scales import TABLES, fitted, sampled

DEMANDS = {
    "bloom_prequel": ((0.8, 0.3, 0.1, 0), "BLOOM, each day and shape with at least 6 rows"),
    "nanotron_h100_small": ((2, 0.5, 0.1, 0), "nanotron, 8 to 64 GPUs"),
    "nanotron_h100_128": ((25, 7, 4, 1), "nanotron, 128 GPUs"),
    "vtrain_a100_single_node": ((3, 1.5, 0.7, 0.3), "vTrain, one node"),
}
"""Percent of time lost after 1, 3, 5 and 10 runs, at most; the aim is half of each."""
RUNS = (1, 3, 5, 10)
PAGE = Path(__file__).parents[2] / "docs" / "reports" / "tune-runs.md"
START, END = "<!-- replay -->\n", "<!-- /replay -->\n"


def lines(table: str, result: Replay) -> Iterator[str]:
    """Yield the rows of one table: what is demanded, what was reached, and the rivals."""
    demands, words = DEMANDS[table]
    sizes = f"{len(result.groups)} groups of {min(result.sizes)} to {max(result.sizes)} rows"
    yield f"| **{words}** ({sizes}): must | " + " | ".join(f"{demand:g}%" for demand in demands) + " |"
    for strategy in result.strategies:
        reached = [100 * strategy.mean(number) for number in RUNS]
        cells = [f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 0.95 else f"{value:.2g}%" for value in reached]
        if strategy is result.strategies[0]:
            marks = [" aim met" if v <= d / 2 else "" if v <= d else " NOT met" for v, d in zip(reached, demands, strict=True)]
            cells = [f"**{cell}**{mark}" for cell, mark in zip(cells, marks, strict=True)]
        yield f"| {strategy.name} | " + " | ".join(cells) + " |"


def page() -> Iterator[str]:
    """Yield the lines of the table in docs/reports/tune-runs.md."""
    yield "| mean time lost over groups | " + " | ".join(f"after {n} run{'s' * (n > 1)}" for n in RUNS) + " |"
    yield "| --- | --- | --- | --- | --- |"
    others = {name: sampled(name) for name in TABLES}
    for table in DEMANDS:
        scales = fitted([groups for name, groups in others.items() if name != table])
        result = replay(table, runs=max(RUNS), seeds=40, scales=scales)
        for line in lines(table, result):
            print(line, flush=True)
            yield line


def main() -> None:
    start = time.perf_counter()
    text = "\n".join(page()) + "\n"
    print(f"{time.perf_counter() - start:.0f} s")
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(before + START + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
