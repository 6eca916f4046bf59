"""Fit the coefficients of data/rl to the steps of rl_steps, with and without each program, and write the files: rl_steps.py [--write]."""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from meshwise.calibrate.rl.table import read
from meshwise.catalogue.rl_programs import Overheads
from meshwise.runs.table import find_table
from rl_fit import PRIORS, fit, linear, spread_of

FOLDER = Path(__file__).parents[2] / "src/meshwise/data/rl"
RELOAD = 0.1
LEAST_SPREAD = 0.25
"""Spread of a step at the least: two programs are few to learn from."""
PHASE_SPREADS = {"rollout": 0.45, "reading": 0.5, "update": 0.5, "weights": 0.8, "switch": 0.8}
"""Spread of phases, by hand: four phases of one step are measured."""


def main() -> None:
    steps = linear(read(find_table("rl_steps"))[0], RELOAD)
    fits = {"all": fit(steps)}
    spreads: list[float] = []
    for program in sorted({one.case.program for one in steps}):
        inside = [one for one in steps if one.case.program != program]
        outside = [one for one in steps if one.case.program == program]
        fits[f"without-{program}"] = found = fit(inside)
        spreads.append(spread_of(outside, found, least=LEAST_SPREAD))
    for name, found in fits.items():
        what = f"{found.rows} published step{'s' if found.rows > 1 else ''} of {' and '.join(found.programs)}"
        done = replace(found, fitted_on=what, spread=max(spreads), date=datetime.now(UTC).date().isoformat())
        text = _file(done)
        print(f"# {name}\n{text}")
        if "--write" in sys.argv:
            (FOLDER / f"{name}.toml").write_text(text)


def _file(o: Overheads) -> str:
    lines = ["# Written by benchmarks/accuracy/rl_steps.py; priors and their widths are in rl_fit.py beside it."]
    lines += [
        f'fitted_on = "{o.fitted_on}"',
        f"rows = {o.rows}",
        f'date = "{o.date}"',
        f"programs = {list(o.programs)}".replace("'", '"'),
    ]
    for name in PRIORS:
        value = getattr(o, name)
        lines.append(
            f"{name} = {value:.3g}"
            if name == "training"
            else f'{name} = "{value:.3g}s"'
            if value > 0.1
            else f'{name} = "{value * 1e6:.4g}us"'
        )
    lines += [
        f"reload = {o.reload:g}    # by hand: 2 to 6 s for weights in published logs, with `switch`",
        f"spread = {o.spread:.3g}",
        "",
    ]
    lines += ["[spreads]", *(f"{name} = {value}" for name, value in PHASE_SPREADS.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
