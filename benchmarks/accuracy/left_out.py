"""Fit the calibrations that `meshwise tune --replay` uses for a built-in table: without any row of that table. Takes about four minutes.

python benchmarks/accuracy/left_out.py --write    renew src/meshwise/data/left_out

For each chip and framework of a table: levels (architecture, framework, network) that are fitted to all other tables, then a fit to the
rows of other tables with this chip and framework, where there are any. This is how a calibration for a machine that was not measured
comes about.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from levels import all_cases
from meshwise.calibrate.train.fit import fit, prior_for
from meshwise.catalogue import files, levels, records
from meshwise.catalogue.calibrations import Calibration
from meshwise.runs.train.case import Case
from meshwise.tune.replay.groups import LEFT_OUT, left_out_name
from sources import Fits

FEWEST = 3
"""Rows that a group must have for its source to be replayed."""


def replayed(cases: Sequence[Case]) -> list[Case]:
    """Return one case of each table, chip and framework that has a group to replay."""
    sizes: dict[tuple[object, ...], int] = {}
    for case in cases:
        key = (case.table, case.date, *case.group)
        sizes[key] = sizes.get(key, 0) + 1
    found: dict[str, Case] = {}
    for case in cases:
        if sizes[case.table, case.date, *case.group] >= FEWEST:
            found.setdefault(left_out_name(case), case)
    return list(found.values())


def calibrations(cases: Sequence[Case]) -> Iterator[tuple[str, Calibration]]:
    """Yield the calibration of each replayed source, by its name."""
    left = {each.cases[0].table: each.levels for each in Fits.of(cases).leave_out(cases, [case.table for case in cases])}
    for case in replayed(cases):
        known = replace(left[case.table], spread=levels.levels().spread, fitted_on=f"all tables but {case.table}")
        pair = (case.chip.key, case.work.framework.key)
        same = [other for other in cases if (other.chip.key, other.work.framework.key) == pair and other.table != case.table]
        prior = prior_for(case, known)
        fitted = replace(fit(same, prior), rows=float(len(same))) if same else prior
        if same:
            fitted = replace(fitted, fitted_on=", ".join(dict.fromkeys(other.table for other in same)))
        yield left_out_name(case), replace(fitted, chips=(pair[0],), architectures=(), frameworks=(pair[1],), sources=())


def main() -> None:
    folder = files.BUILT_IN / LEFT_OUT
    for name, calibration in calibrations(all_cases()):
        table = name.split(".")[0]
        comment = f"# Written by 'python benchmarks/accuracy/left_out.py --write'. No row of {table} is in it."
        print(name, calibration.fitted_on, flush=True)
        if "--write" in sys.argv:
            text = records.toml(calibration, comment, "matmul")
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.toml").write_text(text)


if __name__ == "__main__":
    main()
