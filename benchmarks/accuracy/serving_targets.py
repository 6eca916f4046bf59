"""Every figure that serving must reach, each predicted by a fit without its model, chip or source, beside what is required.
Takes half an hour.

python benchmarks/accuracy/serving_targets.py                  all parts
python benchmarks/accuracy/serving_targets.py llamacpp amd     some of them"""

import csv
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np

import serving
import serving_engines
import serving_server
from accuracy import Target
from meshwise.calibrate.serve import intervals
from meshwise.calibrate.serve.fit import WIDTHS, fit
from meshwise.calibrate.serve.score import score
from meshwise.catalogue.calibrations import ServeCalibration, serve_prior
from meshwise.cost.serve.load.pools import PromptPool, pooled, transfer_seconds
from meshwise.cost.serve.load.requests import Load
from meshwise.cost.serve.memory.cache import cached_rows
from meshwise.cost.serve.passes.speed import PassCost
from meshwise.runs.serve.case import ServeCase, case_of, read_cases
from meshwise.runs.serve.doubts import doubts
from meshwise.runs.serve.predict import Prediction, predict
from meshwise.runs.table import find_table, run_of

LLAMACPP = ServeCalibration(
    stream=0.93, reach=7, flash_cache=0.93, cache_reach=9, layer=0.0, expert=0.0, cycles=95e3, expert_cycles=27e3, sequence=3e-4,
    sample=2e-9, step=1e-4, product=0.75, narrow=0.9, quantized=550, vector=80, expert_product=0.51, exposed=0.5, touch=1.5, flash=0.4,
)  # fmt: skip
"""llama.cpp's kernels on CUDA before any fit, by SMs and clocks."""
STRENGTHS = (0.15, 0.3, 1.0)
"""Shares of the usual width of priors; each chip's is the best on the other chips, each of them left out in its turn."""
ROWS_OF_A_CHIP = 12
"""Rows of each other chip in a fit, about: a chip with many rows is not the one that all others are like."""
OF_THE_HOST = ("sequence", "sample")
"""Coefficients of a server's host, which rows of one user do not tell from those of the chip: not fitted to other chips."""
MOST_FITTED = 70
"""Rows of a fit; of more, every n-th is taken."""


def cases_of(*tables: str) -> list[ServeCase]:
    return [case for table in tables for case in read_cases(find_table(table))[0] if case.ran]


def thinned(cases: Sequence[ServeCase]) -> list[ServeCase]:
    return list(cases[:: max(1, len(cases) // MOST_FITTED)])


def left_out(
    cases: Sequence[ServeCase], key: Callable[[ServeCase], object], prior: ServeCalibration, wide: float = 1.0
) -> list[Prediction]:
    """Predict every row by a fit to a sample of the rows that do not share its key; self-reported rows are predicted, not fitted."""
    keys = [key(case) for case in cases]
    made: dict[object, ServeCalibration] = {}
    for name in dict.fromkeys(keys):
        others = [case for case, own in zip(cases, keys, strict=True) if own != name and case.table != "localmaxxing_community"]
        made[name] = fit(thinned(others), prior, wide)
    return [predict([case], made[name])[0] for case, name in zip(cases, keys, strict=True)]


def scored(
    words: str, cases: Sequence[ServeCase], found: Sequence[Prediction], bars: dict[str, tuple[float, float]]
) -> Iterator[Target]:
    """Yield the mean errors of these parts, over the rows that state them, with the median in words."""
    for part, (must, aim) in bars.items():
        errors = [abs(math.expm1(-error)) for error in intervals.errors(cases, found, part) if math.isfinite(error)]
        if errors:
            middle = f"median {np.median(errors):.1%}"
            yield Target(f"{words}: {part}, mean of {len(errors)} ({middle})", float(np.mean(errors)), must, aim)


def engines() -> Iterator[Target]:
    cases = [case for case in cases_of("engines_at_load") if case.load]
    points = serving_engines.left_out(cases)
    every = [serving_engines.predicted([case], points[serving_engines.family(case)])[0] for case in cases]
    yield from serving_engines.targets(cases, every)
    yield from disaggregated(points)


def disaggregated(points: dict[str, serving_engines.Joint]) -> Iterator[Target]:
    """Rows that state the numbers of their workers, priced by fits to other models' rows without disaggregation."""
    errors: dict[str, list[float]] = defaultdict(list)
    with Path(__file__).with_name("disaggregated.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for part, error in pooled_errors(row, points).items():
                errors[part].append(abs(error))
    for part, (must, aim) in {"decode": (0.25, 0.15), "tpot": (0.25, 0.15), "ttft": (0.5, 0.3)}.items():
        name = f"disaggregated rows, a model left out: {part}, median of {len(errors[part])}"
        yield Target(name, float(np.median(errors[part])), must, aim)


def pooled_errors(row: dict[str, str], points: dict[str, serving_engines.Joint]) -> dict[str, float]:
    """Return predicted over measured, less 1, of a row with pools of its own for prompts and outputs."""
    sides: dict[str, ServeCase] = {}
    for side in ("prefill", "decode"):
        cells = row | {"n_gpus": row[f"{side}_gpus"], "split": row[f"{side}_split"]}
        sides[side] = case_of(
            run_of({k: v for k, v in cells.items() if "_gpus" not in k or k == "n_gpus"}, row["row_id"]), row["row_id"]
        )
    outputs, prompts = sides["decode"], sides["prefill"]
    if outputs.load is None:  # one request alone
        return {}
    point = points[serving_engines.family(outputs)]
    costs = {side: _cost(case, point) for side, case in sides.items()}
    number, workers = int(row["prefill_workers"]), int(row["decode_workers"])
    link = outputs.chip.network or outputs.chip.link
    size = float(sum(cache.kv for cache in cached_rows(outputs.model, outputs.runtime, outputs.held)))
    moved = transfer_seconds(size / outputs.held.context, outputs.work.prompt, link.bandwidth * 0.7 if link else 0.0, 1e-5, 4)
    pool = PromptPool(costs["prefill"], prompts.limits, number / workers, moved)
    load: Load = replace(outputs.load, users=math.ceil(outputs.work.users / workers), requests=0)
    found = pooled(costs["decode"], load, outputs.limits, pool, detailed=False)
    if found is None:
        return {}
    share = outputs.work.users / (load.users * workers)
    seen = {"decode": found.output_rate * workers * share, "ttft": found.ttft.mean, "tpot": found.tpot.mean}
    return {part: value / getattr(outputs, part) - 1 for part, value in seen.items() if getattr(outputs, part) > 0}


def _cost(case: ServeCase, point: serving_engines.Joint) -> PassCost:
    fitted = point.of(case.runtime.engine, serving_engines.is_newer(case), serving_engines.is_older(case))
    return PassCost(case.demand, lambda _: fitted)


def without_chip(groups: dict[str, list[ServeCase]], *names: str) -> Callable[[float], ServeCalibration]:
    """Return the fit to all chips but these, by strength."""
    others = [case for name, cases in groups.items() if name not in names for case in cases]
    return lambda wide: fit(others, LLAMACPP, wide)


def mean_error(cases: Sequence[ServeCase], calibration: ServeCalibration) -> float:
    """Return the mean error over decode and prefill."""
    found = predict(cases, calibration)
    errors = [error for part in ("decode", "prefill") for error in intervals.errors(cases, found, part) if math.isfinite(error)]
    return float(np.mean(np.abs(np.expm1(errors))))


def chips_left_out(every: Sequence[ServeCase], doubted: Sequence[dict[str, str]]) -> dict[str, ServeCalibration]:
    """Return coefficients for each chip from the rows of all others, with the strength that is best among those."""
    groups: dict[str, list[ServeCase]] = defaultdict(list)
    for case, doubt in zip(every, doubted, strict=True):
        if case.demand.host.idle and not doubt:
            groups[case.chip.key].append(case)
    groups = {name: cases[:: max(1, len(cases) // ROWS_OF_A_CHIP)] for name, cases in groups.items()}
    large = [name for name, cases in groups.items() if len(cases) >= ROWS_OF_A_CHIP]
    pairs = {
        (a, b, wide): without_chip(groups, a, b)(wide) for i, a in enumerate(large) for b in large[i + 1 :] for wide in STRENGTHS
    }
    made: dict[str, ServeCalibration] = {}
    for name in {case.chip.key: None for case in every}:
        inner = [other for other in large if other != name]

        def nested(wide: float, name: str = name, inner: list[str] = inner) -> float:
            tries = [
                pairs.get((name, b, wide)) or pairs.get((b, name, wide)) or without_chip(groups, name, b)(wide) for b in inner
            ]
            return float(np.mean([mean_error(groups[b], one) for b, one in zip(inner, tries, strict=True)]))

        best = min(STRENGTHS, key=nested)
        print(f"  {name}: {best} of the usual width, by its errors on {', '.join(inner)}", file=sys.stderr)
        made[name] = without_chip(groups, name)(best)
    return made


def llamacpp() -> Iterator[Target]:
    """llama.cpp's programs on chips of which no row was fitted."""
    bars = {"decode": (0.12, 0.08), "prefill": (0.20, 0.12)}
    every = [
        replace(case, backend="cuda")
        for case in cases_of("h200_llamacpp", "llamacpp_gb10", "localmaxxing_community")
        if case.runtime.engine == "llama.cpp"
        and case.chip.kind == "gpu"
        and case.chip.vendor == "NVIDIA"
        and len(case.rig.chips) == 1
    ]
    doubted = doubts(every)
    widths = {name: WIDTHS.pop(name) for name in OF_THE_HOST}
    made = chips_left_out(every, doubted)
    WIDTHS.update(widths)
    found = [predict([case], made[case.chip.key])[0] for case in every]
    for words, chosen in (
        ("H200", lambda case: case.chip.key == "h200" and not case.work.sampled),
        ("GB10", lambda case: case.chip.key == "gb10"),
        ("GeForce", lambda case: case.chip.key.startswith("rtx")),
        ("RTX 3060", lambda case: case.chip.key == "rtx3060-12gb"),
        ("RTX 3090", lambda case: case.chip.key == "rtx3090"),
    ):
        rows = [one for one in zip(every, found, doubted, strict=True) if chosen(one[0])]
        name = f"llama.cpp, chip left out: {words}"
        yield from scored(name, [case for case, _, _ in rows], [one for _, one, _ in rows], bars)
        for part, bar in bars.items():
            kept = [(case, one) for case, one, doubt in rows if part not in doubt]
            yield from scored(f"{name}, not doubted", [case for case, _ in kept], [one for _, one in kept], {part: bar})
    apple = [case for case in cases_of("xiongjiedai_llama3_bench", "localmaxxing_community") if case.chip.kind == "apple"]
    ones = left_out(apple, lambda case: case.chip.key, serve_prior(apple[0].chip, "llama.cpp"))
    yield from scored("llama.cpp, chip left out: Apple", apple, ones, bars)
    users = [
        (case, one)
        for case, one in zip(every, found, strict=True)
        if case.work.sampled and case.table == "h200_llamacpp" and case.work.users in (8, 32)
    ]
    cases, ones = [case for case, _ in users], [one for _, one in users]
    yield from scored("llama-server, 8 and 32 users, H200 left out", cases, ones, {"decode": (0.25, 0.15)})


def amd() -> Iterator[Target]:
    bars = {"decode": (0.15, 0.10), "prefill": (0.30, 0.20)}
    both: list[tuple[ServeCase, Prediction]] = []
    for backend in ("rocm", "rocm-wmma"):  # two machines over RPC in every row, from coefficients that have seen no AMD chip
        strix = [case for case in cases_of("strix_halo_rpc") if case.backend == backend]
        found = serving.left_out(strix, lambda case: case.model.name)
        yield from scored(f"Strix Halo, {backend}, a model left out", strix, found, bars)
        both += zip(strix, found, strict=True)
    yield from scored("Strix Halo, all builds, a model left out", [case for case, _ in both], [one for _, one in both], bars)
    mi300x = cases_of("rocm_vllm_mi300x")
    found = left_out(mi300x, lambda case: (case.runtime.key, case.model.name), serving.HAND)
    yield from scored("MI300X, a model and build left out", mi300x, found, bars)


def old() -> Iterator[Target]:
    cases = [case for case in cases_of("alcf_vllm_trt") if case.runtime.engine == "vllm"]
    found = left_out(cases, lambda case: case.model.name, serving.HAND)
    yield from scored("vLLM 0.5-0.6, a model left out", cases, found, {"decode": (0.25, 0.15)})


def server() -> Iterator[Target]:
    serving_server.main()
    yield from ()


def memory() -> Iterator[Target]:
    for table in ("llamacpp_fit_dryrun", "xiongjiedai_memory_buffers"):
        rows = read_cases(find_table(table))[0]
        yield Target(
            f"GGUF memory, {table}: largest error, MiB", score(rows, [], predict(rows))["memory"]["max_mib"], 1, 1, percent=False
        )


def seconds() -> Iterator[Target]:
    """CPU seconds of whole commands, with bytecode as an installed package has it."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    asked = {
        "serve": ("serve llama-3.1-70b --on 8xh100-sxm --users 64", 0.6),
        "serve with targets": ("serve qwen3-32b --on 8xh100-sxm --users 200 --ttft 1s", 1.5),
        "serve --cheapest": ("serve llama-3.1-70b --cheapest --users 64 --ttft 1s", 3.0),
    }
    for words, (line, must) in asked.items():
        used = [used_seconds()]
        for _ in range(4):  # the least: the first compiles, and the others share the machine
            subprocess.run([sys.executable, "-m", "meshwise", *line.split()], capture_output=True, check=False, env=compiled)
            used.append(used_seconds())
        yield Target(f"{words}, CPU seconds", min(b - a for a, b in pairwise(used)), must, must, percent=False)


def used_seconds() -> float:
    """Return CPU seconds of all commands so far, the system's included."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


PARTS = {
    "memory": memory, "seconds": seconds, "llamacpp": llamacpp, "amd": amd, "old": old, "server": server, "formula": serving.formula,
    "engines": engines,
}  # fmt: skip


def main() -> None:
    print(f"{'':<76} {'reached':>8} {'must':>8} {'aim':>8}")
    for name in sys.argv[1:] or PARTS:
        for target in PARTS[name]():
            print(target.line(), flush=True)


if __name__ == "__main__":
    main()
