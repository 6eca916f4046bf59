"""Why believe a plan: what its answer rests on, how far predictions were off near it, and what would narrow its interval most."""

import math
from dataclasses import replace

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.evidence import AXES
from meshwise.cost import interval
from meshwise.cost.train.question import Question
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.evidence import Evidence, nearest_runs, words

SHOWN_RUNS = 5  # nearest runs that are listed


def reasons(q: Question, best: Choice, known: Evidence) -> list[str]:
    """Return the lines of --why-believe."""
    c = q.calibration
    rows = f"{c.rows:,.0f} rows of " if c.rows else ""
    own = "" if q.chip.key in c.chips else f", none of them on {q.chip.name}"
    lines = [f"Calibration {c.name}: fitted on {rows}{c.fitted_on}{f' ({c.date})' if c.date else ''}{own}." if c.fitted_on else
             f"Calibration {c.name}: a prior, fitted to no run."]  # fmt: skip
    lines += [f"{known.sentence[0].upper()}{known.sentence[1:]}."]
    axes = {axis: int(best.layout[axis]) for axis in AXES}
    for run in nearest_runs(q, best, axes)[:SHOWN_RUNS]:
        seconds = f"{run.measured:.4g} s measured, {run.predicted:.4g} predicted without its table ({run.error:+.0%})"
        lines.append(f"  {words(run)} ({run.table}): {seconds}")
    return [*lines, *_width(q, best)]


def _width(q: Question, best: Choice) -> list[str]:
    """Return the sources of the interval, and what would narrow it most."""
    c, mixed = q.calibration, any(op.expert for op in q.model.ops)
    now = _half(c, best, mixed)
    beyond = replace(c, devices=float(max(c.devices, best.devices)))
    trials = {
        "one run here and 'meshwise calibrate' (machines of one kind differ)": replace(beyond, between=0.0),
        "one run with experts here and 'meshwise calibrate'": replace(beyond, between=0.0, expert_spread=0.0),
        "runs on as many devices": beyond,
    }
    halves = {name: _half(trial, best, mixed) for name, trial in trials.items()}
    if not mixed:
        halves.pop("one run with experts here and 'meshwise calibrate'")
    best_name = min(halves, key=lambda name: halves[name])
    lines = [
        f"Interval: -{1 - best.low / best.step:.0%} to +{best.high / best.step - 1:.0%} of {best.step:.3g} s holds 90% of runs."
    ]
    if halves[best_name] < 0.98 * now:
        lines.append(f"What would narrow it most: {best_name}: about +-{now:.0%} becomes +-{halves[best_name]:.0%}.")
    else:
        lines.append(
            "What would narrow it most: several runs of layouts near this one; differences between machines are the smaller part."
        )
    if q.chip.key not in c.chips:
        lines.append(f"'meshwise probe' on {q.chip.name} replaces rates of other chips by measured ones in a minute.")
    return lines


def _half(c: Calibration, best: Choice, mixed: bool) -> float:
    """Return half the width of the interval, as a share of the step."""
    low, high = interval.step(c, best.time, best.devices, mixed)
    return math.sqrt(high / low) - 1
