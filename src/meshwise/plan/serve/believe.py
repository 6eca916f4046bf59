"""Why believe a serving plan: what its speed rests on, how far predictions were off near it, and what would narrow its interval most."""

import math
from statistics import median

from meshwise.catalogue import calibrations, evidence
from meshwise.catalogue.evidence import NEAR_RATIO, Served
from meshwise.cost.serve.question import ServeQuestion
from meshwise.plan.serve.choice import INTERVAL_STDS, interval, spreads
from meshwise.plan.serve.search import Option
from meshwise.units import figure

SHOWN_RUNS = 5  # nearest runs that are listed
NEAR_USERS_RATIO = 4.0  # loads of a run and of a question are near within this ratio
NARROWER_SHARE = 0.9  # an interval that is not below this share of another is not called narrower


def reasons(q: ServeQuestion, best: Option) -> list[str]:
    """Return the lines of --why-believe."""
    chip = q.cards[best.layout.cards[0]].chip
    c = calibrations.choose_serve(chip, q.runtime.key or q.runtime.engine)
    own = "" if chip.key in c.chips else f"; not to {chip.name} alone"
    dated = f" of {c.date}" if c.date else ""
    lines = [f"Calibration {c.name}{dated}, fitted on: {c.fitted_on or 'no run, a prior'}{own}."]
    runs = sorted((run for run in evidence.served() if run.engine == q.runtime.engine), key=lambda run: _distance(q, best, run))
    near = [run for run in runs if _near(q, best, run)]
    lines.append(_counted(q, near))
    return [*lines, *(f"  {_words(run)}" for run in (near or runs)[:SHOWN_RUNS]), *_width(q, best)]


def _counted(q: ServeQuestion, near: list[Served]) -> str:
    """Return how many measured runs are near, and how far predictions were off."""
    if not near:
        return f"Evidence: no measured run of {q.engine.name} is near this one; it is extrapolated. The nearest:"
    runs = f"{len(near):,} measured run{'s' * (len(near) != 1)}"
    return f"Evidence: {runs} of {q.engine.name} near it, predicted within {median(abs(run.error) for run in near):.0%} (median)."


def _ratio(a: float, b: float) -> float:
    return max(a, 1) / max(b, 1) if a > b else max(b, 1) / max(a, 1)


def _near(q: ServeQuestion, best: Option, run: Served) -> bool:
    """Return whether a run is of such a model, on such a chip, on about as many devices, under about this load."""
    alike = _ratio(run.params, float(q.model.params)) <= NEAR_RATIO and run.experts == q.experts
    placed = (
        run.chip in {q.cards[i].chip.key for i in best.layout.cards} and _ratio(run.devices, best.layout.devices) <= NEAR_RATIO
    )
    return alike and placed and _ratio(run.users, q.work.users) <= NEAR_USERS_RATIO


def _distance(q: ServeQuestion, best: Option, run: Served) -> float:
    """Return how unlike a run is, in doublings of the model's size; a load counts half, another chip as much as a doubling."""
    size, devices = _ratio(run.params, float(q.model.params)), _ratio(run.devices, best.layout.devices)
    prompt = _ratio(run.prompt, q.work.prompt) if run.prompt else 1.0  # decode steps alone have no prompt
    load = math.log2(_ratio(run.users, q.work.users)) / 2 + math.log2(prompt) / 4
    other = run.chip not in {q.cards[i].chip.key for i in best.layout.cards}
    built = (run.experts != q.experts) + (run.model != q.model.name) / 2 + (run.format != q.weights.format) / 2
    return math.log2(size * devices) + load + other + built


def _words(run: Served) -> str:
    """Return a run in words, with its measured and its predicted speed."""
    where = f"{run.model} {run.format} on {run.devices:,} {run.chip}, {run.users:,} user{'s' * (run.users != 1)} ({run.table})"
    seen = "without it" if run.left_out else "with a calibration that has seen its table"
    return f"{where}: {figure(run.measured, 4)} tokens/s measured, {figure(run.predicted, 4)} predicted {seen} ({run.error:+.0%})"


def _width(q: ServeQuestion, best: Option) -> list[str]:
    """Return the causes of the interval, the largest first, and what would narrow it most."""
    low, high = interval(q, best)
    causes = {name: share for name, share in spreads(q, best).items() if share}
    named = [f"{name} {_percent(share)}" for name, share in sorted(causes.items(), key=lambda each: -each[1])]
    lines = [f"Interval: {low:.4g} to {high:.4g} tokens/s of one request hold 90% of runs: {', '.join(named)}."]
    own, now = _own_spread(), math.hypot(*causes.values())
    if own < NARROWER_SHARE * now:
        left = f"about {_percent(now)} becomes {_percent(own)}, the median of fits to one chip"
        return [*lines, f"What would narrow it most: 'meshwise bench' of this layout, then 'meshwise calibrate': {left}."]
    return [*lines, "What would narrow it most: runs of more models and loads here; it is as narrow as fits to one chip are."]


def _own_spread() -> float:
    """Return the usual standard deviation of a fit to the runs of one chip."""
    return median(c.spread for c in calibrations.serve_calibrations() if len(c.chips) == 1)


def _percent(spread: float) -> str:
    """Return half the 90% interval of a standard deviation of logarithms."""
    return f"+-{math.expm1(INTERVAL_STDS * spread):.0%}"
