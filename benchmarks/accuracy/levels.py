"""Fit data/levels.toml to all built-in tables of training runs, and score it on sources left out. Takes about five minutes.

python benchmarks/accuracy/levels.py            print the scores
python benchmarks/accuracy/levels.py --write    renew src/meshwise/data/levels.toml
"""

import sys
import time
from collections.abc import Iterator, Mapping

import numpy as np

from meshwise.catalogue import files
from meshwise.catalogue.levels import Levels
from meshwise.runs.table import find_table
from meshwise.runs.train.case import Case
from meshwise.runs.train.settle import read_cases
from sources import Fits, LeftOut, spread

TABLES = (
    "bloom_prequel",
    "vtrain_a100_single_node",
    "megatron2021_table1",
    "korthikanti2022_iteration",
    "nanotron_h100_small",
    "nanotron_h100_128",
    "torchtitan_2024",
    "nemo_h100",
    "maxtext_tpu",
    "megatron_bridge_to_2602",
    "mlperf_training",
    "mlperf_training_lora",
    "dgxc_benchmarking",
    "internevo_a100",
    "llm_foundry_a100",
    "mindspeed_llm_ascend",
    "neuron_trn1_training",
)


def all_cases() -> list[Case]:
    return [case for name in TABLES for case in read_cases(find_table(name))[0]]


def toml(known: Levels, errors: Mapping[str, object]) -> str:
    """Return the text of data/levels.toml."""
    return "\n".join(_lines(known, errors)) + "\n"


def _lines(known: Levels, errors: Mapping[str, object]) -> Iterator[str]:
    yield "# Written by 'python benchmarks/accuracy/levels.py --write': coefficients of architectures, frameworks, networks, fitted as one."
    yield f'fitted_on = "{", ".join(TABLES)}"'
    yield "\n# Errors on sources left out of the fit; between: standard deviation of the median error of a source."
    yield "[spread]"
    for name, value in errors.items():
        numbers = ", ".join(f"{number:.4g}" for number in value) if isinstance(value, tuple) else ""
        yield f"{name} = [{numbers}]" if numbers else f"{name} = {value:.4g}"
    for level in ("chip", "framework", "fabric"):
        for key, values in sorted(getattr(known, level).items()):
            yield f'\n[{level}."{key}"]'
            yield from (f"{name} = {value:.4g}" for name, value in values.items())


def report(left: list[LeftOut], errors: Mapping[str, object]) -> Iterator[str]:
    """Yield a line per source, and the figures over sources."""
    scored = [source for source in left if len(source.timed)]
    covered = [source.coverage(dict(errors)) for source in scored]
    for source, share in zip(scored, covered, strict=True):
        memory = f"{np.mean(np.abs(np.expm1(source.memory_errors))):6.1%}" if len(source.memory_errors) else "     -"
        bias = float(np.exp(-np.median(source.errors)))
        name, rows = " / ".join(source.source), len(source.timed)
        yield f"{name:<72} {rows:>5} {source.error:7.1%} {bias:6.2f} {share:6.0%} {memory} {source.refused:4}"
    each = [source.error for source in scored]
    yield f"median over {len(each)} sources {np.median(each):.1%}, mean {np.mean(each):.1%}, worst {max(each):.1%}"
    yield f"coverage: mean {np.mean(covered):.1%}, worst {min(covered):.1%}"
    ran = sum(case.ran for source in left for case in source.cases)
    yield f"refused although they ran: {sum(source.refused for source in left)} of {ran}"


def main() -> None:
    start = time.perf_counter()
    cases = all_cases()
    fits = Fits.of(cases)
    left = fits.leave_out(cases, [case.source for case in cases])
    tables = fits.leave_out(cases, [case.table for case in cases])
    errors = spread(tables)  # a new machine is a new table, of which nothing was seen
    print(
        f"{'table / chip / framework / precision':<72} {'rows':>5} {'error':>7} {'ratio':>6} {'inside':>6} {'memory':>6} refused"
    )
    print("\n".join(report(left, errors)))
    print("whole tables left out:", *list(report(tables, errors))[-3:], sep="\n")
    print(f"{errors}\n{time.perf_counter() - start:.0f} s")
    if "--write" in sys.argv:
        (files.BUILT_IN / "levels.toml").write_text(toml(fits.levels, errors))


if __name__ == "__main__":
    main()
