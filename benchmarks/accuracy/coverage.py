"""Share of measurements inside the 90% interval of a prediction fitted without them and their group: all built-in tables, minutes each.

python benchmarks/accuracy/coverage.py [TABLE...]
"""

import sys
import time

from meshwise.calibrate.serve.validate import validate as validate_serve
from meshwise.calibrate.train.validate import validate
from meshwise.runs.table import find_table, is_serving_table

TABLES = ("bloom_prequel", "nanotron_h100_small", "megatron2021_table1", "korthikanti2022_iteration", "vtrain_a100_single_node",
          "xiongjiedai_llama3_bench", "xiongjiedai_notebook_runs")  # fmt: skip


def main() -> None:
    print(f"{'table':<28} {'part':<8} {'left out':>9} {'shipped':>8}")
    for name in sys.argv[1:] or TABLES:
        began = time.monotonic()
        if is_serving_table(find_table(name)):
            score = validate_serve(name, leave_out="group").score
            lines = [(part, score[part]["coverage"], None) for part in ("decode", "prefill")]
        else:
            unit = "row" if name == "megatron2021_table1" else "group"  # its ten runs are of ten models
            left_out, shipped = (validate(name, leave_out=by).score["time"]["coverage"] for by in (unit, None))
            lines = [("time", left_out, shipped)]
        for part, left, shipped in lines:
            print(
                f"{name:<28} {part:<8} {left:>9.1%} {'' if shipped is None else f'{shipped:8.1%}'}  {time.monotonic() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
