"""Compare predictions with the runs of `loop_h200.py` before a probe, after it, and after `calibrate`: docs/reports/loop.md's table.

python benchmarks/accuracy/loop_report.py FOLDER        (the $OUT of loop_h200.py: probe.jsonl, fit.jsonl, test.jsonl)
"""

import sys
from pathlib import Path

import numpy as np

from meshwise.calibrate.train import intervals
from meshwise.calibrate.train import probe as probed
from meshwise.calibrate.train.make import data_of, make
from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.levels import composed
from meshwise.cost import interval
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import Batch, predict
from meshwise.runs.train.settle import read_cases

MUST = {"time": 0.07, "memory": 0.05}


def shape_of(case: Case) -> str:
    """Return the batch of a run in words: '16 x 1024 in 2, full recompute'."""
    batch, mbs = int(case.work.batch), case.layout["mbs"]
    words = f"{batch} x {case.work.seq}" + (f" in {batch // mbs}" if mbs != batch else "")
    return words + (", full recompute" if case.layout["recompute"] == 2 else "")


def errors(cases: list[Case], c: Calibration) -> dict[str, np.ndarray]:
    """Return the relative error of every run, by kind."""
    predicted = predict(cases, c)
    seconds, memory = np.array([case.seconds for case in cases]), np.array([case.memory for case in cases])
    return {"time": predicted.seconds / seconds - 1, "memory": predicted.memory / memory - 1}


def covered(cases: list[Case], c: Calibration) -> float:
    """Return the share of runs inside their 90% interval."""
    seconds = predict(cases, c).seconds
    low, high = interval.factors(c, interval.waiting(Batch.of(cases).shares(c)), np.ones(len(cases)))
    return intervals.coverage(cases, seconds * low, seconds * high) or 0.0


def main() -> None:
    folder = Path(sys.argv[1])
    probe, fit, test = (str(folder / f"{name}.jsonl") for name in ("probe", "fit", "test"))
    made = make([probe, fit], date="")
    cases = data_of([probe, test]).cases
    plain = read_cases(Path(test))[0]
    prior = composed(
        plain[0].chip, plain[0].work.framework, ""
    )  # the calibration shipped for this framework was fitted to such runs
    machine = probed.machine(probed.read(Path(probe)))
    stages = {
        "before": (plain, prior),
        "after the probe": (cases, machine.calibration),
        "calibrated": (cases, made.calibration),
    }
    errors_at = {name: errors(*inputs) for name, inputs in stages.items()}
    print("| model | batch | measured | " + " | ".join(f"{name}" for name in stages) + " | memory | " + " | ".join(stages) + " |")
    print("| --- " * (4 + 2 * len(stages)) + "|")
    for i, case in enumerate(cases):
        time, memory = ([f"{100 * errors_at[name][kind][i]:+.1f}%" for name in stages] for kind in ("time", "memory"))
        name = case.row_id.removesuffix("-full").partition("-")[2].rpartition("-")[0]
        cells = [name, shape_of(case), f"{1000 * case.seconds:.2f} ms", *time, f"{case.memory / 2**30:.2f} GiB", *memory]
        print("| " + " | ".join(cells) + " |")
    for kind, must in MUST.items():
        for name in stages:
            size = np.abs(errors_at[name][kind])
            verdict = "met" if size.max() <= must else "NOT met"
            print(
                f"{kind}, {name}: mean {100 * size.mean():.1f}%, worst {100 * size.max():.1f}% (must {must:.0%} each: {verdict})"
            )
    print(f"in their 90% interval: {', '.join(f'{name} {covered(*inputs):.0%}' for name, inputs in stages.items())}")
    names = [name for name in made.widths if name not in made.kept]
    print(
        "fitted:",
        ", ".join(f"{name} {getattr(machine.calibration, name):.4g} -> {getattr(made.calibration, name):.4g}" for name in names),
    )
    print("kept at their prior:", ", ".join(made.kept))


if __name__ == "__main__":
    main()
