"""Rivals: other ways to choose the next run, for comparison with `tune` on measured tables."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwise.tune.replay.groups import Group, Order, Strategy, drawn

STARTUP_RUNS = 3  # random runs before optuna's samplers learn; their own default of 10 would make them random order here
SHARE = {"optuna TPE": 0.25, "optuna GP": 0.05}
"""Seeds of optuna's samplers, over those of random order: a choice of theirs takes milliseconds, or several tenths of a second."""
FAILURE_TIME_FACTOR = 2.0  # a run that fails counts for an optimizer as this many times the slowest run so far


def strategies(
    groups: Sequence[Group], runs: int, seeds: int, tell: Callable[[str], object]
) -> tuple[tuple[Strategy, ...], tuple[str, ...]]:
    """Return every rival, and a note where optuna is not installed."""
    found: list[Strategy] = []
    for name, fixed in (("planner's order", planner), ("rule of thumb", rule_of_thumb)):
        tell(name)
        found.append(Strategy(name, tuple(group.regret(fixed(group), runs) for group in groups)))
    tell("random order")
    found.append(Strategy("random order", tuple(drawn(groups, runs, seeds, random_order))))
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        return tuple(found), ("optuna is not installed, so its samplers are left out: pip install optuna",)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: dict[str, Callable[[int], Any]] = {
        "optuna TPE": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_RUNS),
        "optuna GP": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_RUNS),
    }
    for name, sampler in samplers.items():
        tell(name)

        def order(group: Group, seed: int, sampler: Callable[[int], Any] = sampler) -> Order:
            return optimizer_order(optuna, sampler(seed), group, runs)

        found.append(Strategy(name, tuple(drawn(groups, runs, max(1, round(SHARE[name] * seeds)), order))))
    return tuple(found), (f"optuna's samplers learn after {STARTUP_RUNS} random runs; a run out of memory counts as slow",)


def planner(group: Group) -> Order:
    """Return the rows by predicted time, those that are predicted to fit first: what a planner tries that does not learn."""
    space = group.space
    return np.lexsort((space.seconds, space.memory > space.capacity)).tolist()


def rule_of_thumb(group: Group) -> Order:
    """Return the rows by the smallest tp x pp x cp, then ZeRO, then the largest micro-batch, those that are predicted to fit first."""
    space, a = group.space, group.space.layouts
    assert a is not None
    return np.lexsort((-a.mbs, a.zero == 0, a.tp * a.pp * a.cp, space.memory > space.capacity)).tolist()


def random_order(group: Group, seed: int) -> Order:
    return np.random.default_rng(seed).permutation(len(group.cases)).tolist()


def optimizer_order(optuna: Any, sampler: Any, group: Group, runs: int) -> Order:
    """Return the rows in the order of an optuna sampler: the row nearest to its suggestion that has not run takes its place."""
    axes = {name: np.unique(axis.values, return_inverse=True) for name, axis in group.space.axes.items() if np.ptp(axis.values)}
    places = np.stack([index for _, index in axes.values()], axis=1)
    spaces = {name: optuna.distributions.IntDistribution(0, len(values) - 1) for name, (values, _) in axes.items()}
    study: Any = optuna.create_study(sampler=sampler)
    order: Order = []
    slowest = 0.0
    while len(order) < min(runs, len(group.cases)):
        trial = study.ask(spaces)
        wanted = np.array([trial.params[name] for name in axes])
        far = np.abs(places - wanted).sum(axis=1).astype(np.float64)
        far[order] = math.inf
        row = int(np.argmin(far))
        seconds = float(group.seconds[row])
        slowest = max(slowest, seconds) if math.isfinite(seconds) else slowest
        value = math.log(seconds) if math.isfinite(seconds) else math.log(FAILURE_TIME_FACTOR * (slowest or 1.0))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        params = {name: int(place) for name, place in zip(axes, places[row], strict=True)}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=value))
        order.append(row)
    return order
