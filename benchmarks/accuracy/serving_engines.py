"""vLLM, SGLang and TensorRT-LLM at a load: coefficients of kernels that the three share and of the program around them, fitted together to
`engines_at_load`; and the errors on each model, predicted by a fit without it. Takes some minutes.

    python benchmarks/accuracy/serving_engines.py            every model left out in turn
    python benchmarks/accuracy/serving_engines.py --fit      the coefficients of the shipped files"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from accuracy import Target
from meshwise.calibrate.score import spearman
from meshwise.calibrate.serve import intervals
from meshwise.calibrate.serve.fit import row_errors, softened
from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.cost.layout import Floats
from meshwise.cost.serve.distance import distance
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.serve.predict import Prediction, predict
from meshwise.runs.table import find_table

ENGINES = ("vllm", "sglang", "tensorrt-llm")
START = ServeCalibration(
    stream=0.92, reach=40, flash_cache=0.9, layer=4e-5, expert=2.5e-5, grouped=0.95, step=2e-4, sequence=5e-6, request=0.02,
    request_layer=4e-4, prompt_launch=2e-4, hop=5e-5, remote=1e-4, graph=0.0, reduce=5e-6, link=0.7, product=0.63, narrow=0.95,
    expert_product=0.3, expert_gain=0.7, tile=0.03, exposed=0.3, touch=1.0, flash=0.5, pipelined=0.8, host=0.6,
)  # fmt: skip
"""Before the fit: kernels as those of TensorRT-LLM on Hopper in `tensorrt_llm_hopper`."""
SHARED = {
    "expert_product": 0.7, "expert_gain": 0.5, "exposed": 0.5, "grouped": 0.15, "product": 0.06, "narrow": 0.05, "stream": 0.05,
    "flash": 0.15, "touch": 0.2,
}  # fmt: skip
OWN = {
    "layer": 0.25, "expert": 0.5, "step": 0.6, "sequence": 0.7, "request": 0.7, "prompt_launch": 0.6, "request_layer": 0.7, "reduce": 0.4,
}  # fmt: skip
"""Coefficients of kernels, and of each engine, with the width of their priors in logarithms."""
LAUNCHES = ("layer", "expert", "step", "sequence", "prompt_launch", "request_layer")
NEWER, NEWER_SHARE, NEWER_WIDTH = "Blackwell", 0.8, 0.3
"""An architecture whose kernels start before those that they depend on have ended: launches over those on others, fitted too."""
OLDER, OLDER_FACTOR, OLDER_WIDTH = "2025-12", 1.15, 0.2
"""Builds of 2025: launches over those of today's, whose graphs and fusions leave fewer kernels; fitted too."""
MOST = {"exposed": 1.0, "expert_gain": 1.0, "stream": 0.97, "flash": 0.8, "grouped": 1.1}
LATE_SECONDS = 6.0
"""A first token later than this waited for a place in the cache, which the memory decides."""
ROW_WEIGHT = 0.2
"""Weight of a row's error: those of one model, chip and build are off together, so that many of them say little more than one does. Without
it the fit follows the models that it has, and errs by 15.8% instead of 12% on one that it lacks."""
STEP, DAMPING, ROUNDS, TRIES = 0.02, 0.3, 4, 3


@dataclass(frozen=True)
class Joint:
    """A point of the fit: the logarithm of every coefficient."""

    logs: Floats
    names = (
        *(("newer", engine) for engine in ENGINES),
        *(("older", engine) for engine in ENGINES),
        *SHARED,
        *((engine, name) for engine in ENGINES for name in OWN),
    )

    def of(self, engine: str, newer: bool, older: bool) -> ServeCalibration:
        """Return the coefficients of an engine, on the newer architecture or on others, and of its builds of 2025 or of today's."""
        values = dict(zip(self.names, map(float, np.exp(self.logs)), strict=True))
        own = {name: values[engine, name] for name in OWN}
        for word in [*(["newer"] if newer else []), *(["older"] if older else [])]:
            own |= {name: own[name] * values[word, engine] for name in LAUNCHES}
        return replace(START, **{name: values[name] for name in SHARED}, **own)


FIRST = np.log(
    [
        *(NEWER_SHARE for _ in ENGINES),
        *(OLDER_FACTOR for _ in ENGINES),
        *(getattr(START, name) for name in SHARED),
        *(getattr(START, name) for _ in ENGINES for name in OWN),
    ]
)
WIDTHS = np.array(
    [
        *(NEWER_WIDTH for _ in ENGINES),
        *(OLDER_WIDTH for _ in ENGINES),
        *SHARED.values(),
        *(width for _ in ENGINES for width in OWN.values()),
    ]
)
HIGHEST = np.array([math.log(MOST.get(name, 1e9)) if isinstance(name, str) else math.inf for name in Joint.names])


def is_newer(case: ServeCase) -> bool:
    return case.chip.architecture == NEWER


def is_older(case: ServeCase) -> bool:
    return case.runtime.key.endswith(OLDER)


Groups = dict[tuple[str, bool, bool], list[ServeCase]]
"""Rows by engine, architecture and age, which share their coefficients."""


def errors_of(groups: Groups, logs: Floats, engine: str = "", known: Sequence[Floats] = ()) -> list[Floats]:
    """Return the errors of each group; with `engine`, other engines' as they are `known`."""
    point = Joint(logs)
    return [
        known[i] if engine and key[0] != engine else ROW_WEIGHT * softened(row_errors(rows, point.of(*key)))
        for i, (key, rows) in enumerate(groups.items())
    ]


def slopes(groups: Groups, logs: Floats, now: Sequence[Floats]) -> Floats:
    """Return the slopes of all residuals by coefficient; those of an engine move its own rows alone."""
    columns: list[Floats] = []
    for name, unit in zip(Joint.names, np.eye(len(logs)), strict=True):
        engine = next((word for word in name if word in ENGINES), "") if isinstance(name, tuple) else ""
        moved = errors_of(groups, logs + STEP * unit, engine, now)
        columns.append(np.concatenate([*((a - b) / STEP for a, b in zip(moved, now, strict=True)), unit / WIDTHS]))
    return np.array(columns).T


def residuals(found: Sequence[Floats], logs: Floats) -> Floats:
    return np.concatenate([*found, (logs - FIRST) / WIDTHS])


def fit(cases: Sequence[ServeCase]) -> Joint:
    """Fit by damped steps of Gauss and Newton."""
    groups: Groups = defaultdict(list)
    for case in cases:
        groups[case.runtime.engine, is_newer(case), is_older(case)].append(case)
    logs, damping = np.minimum(FIRST, HIGHEST - 1e-3), DAMPING
    errors = errors_of(groups, logs)
    for _ in range(ROUNDS):
        steep, now = slopes(groups, logs, errors), residuals(errors, logs)
        for _ in range(TRIES):
            step = -np.linalg.solve(steep.T @ steep + damping * np.diag(WIDTHS**-2.0), steep.T @ now)
            tried = np.minimum(logs + np.clip(step, -1, 1), HIGHEST - 1e-3)
            found = errors_of(groups, tried)
            after = residuals(found, tried)
            if after @ after < now @ now:
                logs, errors, damping = tried, found, damping / 3
                break
            damping *= 5
    return Joint(logs)


def sample(cases: Sequence[ServeCase], number: int) -> list[ServeCase]:
    """Choose rows of each build, model, chip and format: as many as the root of those that there are, so that no source decides alone."""
    rng, groups = np.random.default_rng(1), defaultdict[object, list[ServeCase]](list)
    for case in cases:
        groups[case.runtime.key, case.model.name, case.chip.key, case.weights.format].append(case)
    share = number / sum(len(rows) ** 0.5 for rows in groups.values())
    sizes = {key: min(len(rows), max(2, round(share * len(rows) ** 0.5))) for key, rows in groups.items()}
    return [rows[i] for key, rows in groups.items() for i in sorted(rng.choice(len(rows), sizes[key], replace=False))]


def fitted_rows(cases: Sequence[ServeCase]) -> list[ServeCase]:
    """Leave out rows that wait for a place in the cache, and those of a split that the sample states wrongly (vLLM with Qwen3 235B)."""
    return [c for c in cases if c.ttft < LATE_SECONDS and (c.runtime.engine, c.model.name) != ("vllm", "qwen3-235b-a22b")]


def family(case: ServeCase) -> str:
    return case.model.name.partition("-")[0] if case.model.name.startswith("deepseek") else case.model.name


def predicted(cases: Sequence[ServeCase], point: Joint) -> list[Prediction]:
    return [predict([case], point.of(case.runtime.engine, is_newer(case), is_older(case)))[0] for case in cases]


def median_error(cases: Sequence[ServeCase], found: Sequence[Prediction], part: str) -> float:
    pairs = [(getattr(one, part), getattr(case, part)) for case, one in zip(cases, found, strict=True)]
    return float(np.median([abs(one / seen - 1) for one, seen in pairs if one > 0 and seen > 0]))


def main() -> None:
    cases = [case for case in read_cases(find_table("engines_at_load"))[0] if case.load]
    if "--fit" in sys.argv:
        point = fit(sample(fitted_rows(cases), 250))
        print({str(name): float(f"{value:.3g}") for name, value in zip(point.names, np.exp(point.logs), strict=True)})
        return
    points = left_out(cases)
    every = [predicted([case], points[family(case)])[0] for case in cases]
    for name in points:
        own = [(case, one) for case, one in zip(cases, every, strict=True) if family(case) == name]
        rows, found = [case for case, _ in own], [one for _, one in own]
        errors = (f"{part} {median_error(rows, found, part):.1%}" for part in ("decode", "ttft", "tpot"))
        print(f"{name:24} {len(own):5} rows   {'   '.join(errors)}", flush=True)
    for target in targets(cases, every):
        print(target.line())
    logs = [error for error in intervals.errors(cases, every, "decode") if math.isfinite(error)]
    print(f"spread of ln(measured / predicted) output tokens/s: {intervals.spread(logs, 0.0):.3f}")


def left_out(cases: Sequence[ServeCase]) -> dict[str, Joint]:
    """Return, for every model, the fit without it."""
    names = dict.fromkeys(map(family, cases))
    return {name: fit(sample(fitted_rows([case for case in cases if family(case) != name]), 150)) for name in names}


def targets(cases: Sequence[ServeCase], every: Sequence[Prediction]) -> Iterator[Target]:
    """Yield the figures of rows whose model was left out."""
    for part, must, aim in (("decode", 0.13, 0.10), ("ttft", 0.35, 0.20), ("tpot", 0.13, 0.10)):
        yield Target(f"engines at load, a model left out: {part}, median", median_error(cases, every, part), must, aim)
    served = [(one.decode, case.decode) for case, one in zip(cases, every, strict=True) if one.decode > 0]
    rank = spearman(*(np.array(side) for side in zip(*served, strict=True))) or 0.0
    yield Target("the same: Spearman of output tokens/s", rank, 0.97, 0.98, True, False)
    errors = intervals.errors(cases, every, "decode")
    chosen = [choose_serve(case.chip, case.runtime.key) for case in cases]
    spreads = [distance(one, case.chip, experts=case.kind == "experts") for one, case in zip(chosen, cases, strict=True)]
    yield Target("the same: coverage as shipped", intervals.coverage(errors, spreads) or 0.0, 0.85, 0.90, True)
    others = intervals.left_out(cases, errors, list(map(family, cases)), 0.0)
    yield Target("the same: coverage, spreads of the other models", intervals.coverage(errors, others) or 0.0, 0.85, 0.90, True)


if __name__ == "__main__":
    main()
