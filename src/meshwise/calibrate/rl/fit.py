"""Fit the coefficients of steps on generated answers: least squares of logarithms, held near what is known without these steps."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwise.calibrate.rl.table import Case
from meshwise.calibrate.rl.validate import phase_of, predict
from meshwise.catalogue.rl_programs import Overheads
from meshwise.cost.layout import Floats

PRIORS = {"engine_layer": (1.6e-4, 0.4), "training": (1.8, 0.35), "phase": (1.0, 0.7), "switch": (3.0, 0.7), "adapter_launch": (5e-5, 0.7)}
"""What is known of each coefficient without the steps, and the standard deviation of its logarithm: the launch of a layer by the host
(data/serving/vllm.toml, prompt_launch, from 1,391 rows of servers); an MFU of 10 to 27% in published updates where the same layout
pretrains at 30 to 50%; about a second between the phases of a program that is driven by Ray; 2 to 6 s in which an engine wakes and gets
weights; a Triton kernel that Python launches."""
STEP_NOISE, PHASE_NOISE = 0.2, 0.35
"""Standard deviation of the logarithm of a measured step and of a measured phase."""
ROUNDS, NUDGE = 3, 0.1


def fit(cases: Sequence[Case], start: Overheads) -> Overheads:
    """Return the coefficients that fit these steps and their phases."""
    names = list(PRIORS)
    prior = np.array([math.log(value) for value, _ in PRIORS.values()])
    width = np.array([spread for _, spread in PRIORS.values()])
    at = prior.copy()
    for _ in range(ROUNDS):
        base = _residuals(cases, _with(start, names, at))
        slopes = np.stack(
            [(_residuals(cases, _with(start, names, at + NUDGE * (np.arange(len(names)) == i))) - base) / NUDGE for i in range(len(names))]
        ).T
        left = np.vstack([slopes, np.diag(1 / width)])
        right = np.concatenate([-base, (prior - at) / width])
        move = np.linalg.lstsq(left, right, rcond=None)[0]
        at = at + np.clip(move, -0.5, 0.5)
        if float(np.abs(move).max()) < 1e-3:
            break
    programs = tuple(sorted({case.program for case in cases}))
    return replace(_with(start, names, at), rows=len(cases), programs=programs)


def _with(start: Overheads, names: Sequence[str], at: Floats) -> Overheads:
    return replace(start, **{name: float(math.exp(value)) for name, value in zip(names, at, strict=True)})


def _residuals(cases: Sequence[Case], o: Overheads) -> Floats:
    kept, found, _ = predict(cases, [o] * len(cases))
    errors: list[float] = []
    for case, split in zip(kept, found, strict=True):
        errors.append(math.log(split.step / case.seconds) / STEP_NOISE)
        errors += [math.log(phase_of(split, name) / seconds) / PHASE_NOISE for name, seconds in case.phases.items()]
    return np.array(errors)


def spread_of(cases: Sequence[Case], o: Overheads, *, least: float) -> float:
    """Return the standard deviation that the errors of steps which were not fitted show, and at least `least`: 90% lie within 1.645."""
    kept, found, _ = predict(cases, [o] * len(cases))
    errors = sorted(abs(math.log(split.step / case.seconds)) for case, split in zip(kept, found, strict=True))
    return max(least, errors[min(len(errors) - 1, math.ceil(0.9 * (len(errors) + 1)) - 1)] / 1.645)
