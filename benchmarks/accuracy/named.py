"""Fit the calibrations that ship by name for chips and programs that many people have, from the rows of all built-in tables.

python benchmarks/accuracy/named.py            print the errors of groups left out
python benchmarks/accuracy/named.py --write    renew them in src/meshwise/data/calibration
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from levels import all_cases
from meshwise.calibrate.train.fit import prior_for
from meshwise.calibrate.train.make import fitted_to
from meshwise.calibrate.train.score import score
from meshwise.catalogue import files, records
from meshwise.catalogue.levels import levels
from meshwise.runs.train.case import Case

MEGATRON = ("megatron-bridge", "megatron")
NAMED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "h100-megatron": (("h100-sxm",), MEGATRON),
    "h200-megatron": (("h200",), MEGATRON),
    "b200-megatron": (("b200",), MEGATRON),
    "gb200-megatron": (("gb200",), MEGATRON),
    "gb300-megatron": (("gb300",), MEGATRON),
    "a100-fsdp": (("a100-80gb-sxm", "a100-40gb-sxm"), ("fsdp",)),
    "tpu-v4-maxtext": (("tpu-v4",), ("maxtext",)),
    "tpu-v5e-maxtext": (("tpu-v5e",), ("maxtext",)),
    "tpu-v5p-maxtext": (("tpu-v5p",), ("maxtext",)),
    "ascend-910b-megatron": (("ascend-910b",), ("megatron",)),
    "trn1-megatron": (("trn1",), ("megatron",)),
}
"""Chips and programs of each calibration."""


def rows_of(cases: Sequence[Case], chips: Sequence[str], programs: Sequence[str]) -> list[Case]:
    return [case for case in cases if case.chip.key in chips and case.work.framework.key in programs]


def main() -> None:
    cases = all_cases()
    for name, (chips, programs) in NAMED.items():
        rows = rows_of(cases, chips, programs)
        tables = ", ".join(dict.fromkeys(case.table for case in rows))
        fitted, made, _ = fitted_to(rows, prior_for(rows[0], levels()), "group")
        out, inside = (score(rows, [], part)["time"]["mape_near"] for part in (fitted.left_out, fitted.inside))
        print(f"{name:22} {len(rows):4} rows, left out {out:.1%}, in sample {inside:.1%}: {tables}", flush=True)
        made = replace(made, chips=chips, frameworks=programs, architectures=(), fitted_on=tables, date=str(date.today()))
        head = f"# Written by 'python benchmarks/accuracy/named.py --write'. Groups left out: time {out:.1%}; in sample {inside:.1%}."
        if "--write" in sys.argv:
            (files.BUILT_IN / "calibration" / f"{name}.toml").write_text(records.toml(made, head, "matmul"))


if __name__ == "__main__":
    main()
