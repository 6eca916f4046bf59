"""vLLM's own server on one H200 (`h200_vllm_server`, `h200_vllm_bench`): open and closed loops of five models, each predicted by a fit to
the others.

python benchmarks/accuracy/serving_server.py             every model left out in turn, and without any of these rows
python benchmarks/accuracy/serving_server.py --fit       the coefficients of this machine, fitted to all rows"""

import math
import sys
from collections.abc import Sequence

import numpy as np

from accuracy import Target
from meshwise.calibrate.serve.fit import fit
from meshwise.catalogue.calibrations import SERVE_COEFFICIENTS, ServeCalibration, serve_prior
from meshwise.cost.serve.load.estimate import estimate
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.table import find_table

TABLES = ("h200_vllm_server", "h200_vllm_bench")
PARTS = {"decode": "output tokens/s", "tpot": "time per token", "ttft": "TTFT", "ttft_p95": "TTFT, p95"}
BARS = {"decode": (0.08, 0.05), "tpot": (0.10, 0.06), "ttft_p95": (0.30, 0.20)}


def errors(case: ServeCase, calibration: ServeCalibration) -> dict[str, float]:
    """Return predicted over measured, less 1, of each part that the row states."""
    cost = PassCost(case.demand, lambda _: calibration)
    if case.load is None:
        step, first = sum(cost.decode(case.work).values()), sum(cost.prefill(case.work).values()) + cost.request
        seconds = first + (case.work.output - 1) * step
        found = {"decode": case.work.users * case.work.output / seconds, "tpot": step, "ttft": first, "ttft_p95": first}
    else:
        report = estimate(cost, case.load, case.limits)
        if report is None:
            return {}
        found = {"decode": report.output_rate, "tpot": report.tpot.mean, "ttft": report.ttft.mean, "ttft_p95": report.ttft.p95}
    return {name: value / seen - 1 for name, value in found.items() if (seen := getattr(case, name)) > 0}


def summary(cases: Sequence[ServeCase], found: Sequence[dict[str, float]], name: str) -> float:
    """Return the mean size of the errors of one part."""
    values = [abs(one[name]) for _, one in zip(cases, found, strict=True) if name in one and math.isfinite(one[name])]
    return float(np.mean(values)) if values else math.nan


def main() -> None:
    cases = [case for name in TABLES for case in read_cases(find_table(name))[0]]
    prior = serve_prior(cases[0].chip, cases[0].runtime.key)
    if "--fit" in sys.argv:
        made = fit(cases, prior)
        print({name: float(f"{getattr(made, name):.4g}") for name in SERVE_COEFFICIENTS})
        return
    before = [errors(case, prior) for case in cases]
    after: list[dict[str, float]] = [{}] * len(cases)
    for name in dict.fromkeys(case.model.name for case in cases):
        made = fit([case for case in cases if case.model.name != name], prior)
        inside = [i for i, case in enumerate(cases) if case.model.name == name]
        for i in inside:
            after[i] = errors(cases[i], made)
        for words, rows in (("no row seen", before), ("left out", after)):
            line = "  ".join(
                f"{word} {summary([cases[i] for i in inside], [rows[i] for i in inside], part):.1%}"
                for part, word in PARTS.items()
            )
            print(f"{name:16} {words:12} {line}", flush=True)
    for part, word in PARTS.items():
        print(f"no row seen: {word}, mean {summary(cases, before, part):.1%}")
    for part, (must, aim) in BARS.items():
        print(
            Target(
                f"vLLM's server on an H200, a model left out: {PARTS[part]}, mean", summary(cases, after, part), must, aim
            ).line()
        )
    opened = [i for i, case in enumerate(cases) if case.load and case.load.rate]
    for part in BARS:
        value = summary([cases[i] for i in opened], [after[i] for i in opened], part)
        print(Target(f"the same, open loops alone: {PARTS[part]}, mean", value, *BARS[part]).line())


if __name__ == "__main__":
    main()
