"""Fit the coefficients of steps on generated answers: least squares of logarithms, held near what is known without these steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.calibrate.rl.table import Case
from meshwise.calibrate.rl.validate import predict
from meshwise.catalogue.rl_programs import Overheads
from meshwise.cost.layout import Floats
from meshwise.plan.rl.splits import Split

PRIORS = {
    "engine_layer": (1.6e-4, 0.4),
    "training": (1.8, 0.35),
    "phase": (1.0, 0.7),
    "switch": (3.0, 0.7),
    "adapter_launch": (5e-5, 0.7),
}
"""What is known of each coefficient without the steps, and the standard deviation of its logarithm: the launch of a layer by the host
(data/serving/vllm.toml, prompt_launch, from 1,391 rows of servers); an MFU of 10 to 27% in published updates where the same layout
pretrains at 30 to 50%; about a second between the phases of a program that is driven by Ray; 2 to 6 s in which an engine wakes and gets
weights; a Triton kernel that Python launches."""
STEP_NOISE, PHASE_NOISE = 0.2, 0.35
"""Standard deviation of the logarithm of a measured step and of a measured phase."""
ROUNDS, NUDGE = 12, 0.01
STRETCH = 1.5
"""Factor by which a coefficient of the engine is changed to see how generation depends on it."""
OF_ENGINE = ("engine_layer", "adapter_launch")


@dataclass(frozen=True)
class Linear:
    """A predicted step as a function of the coefficients, with the layouts of the first prediction: generation is linear in those of the
    engine, and training phases are in theirs."""

    case: Case
    split: Split
    at: Overheads
    slopes: dict[str, float]
    """Seconds of generation by each coefficient of the engine."""

    def phases(self, o: Overheads) -> dict[str, float]:
        """Return the seconds of each phase as logs measure it: the engine's wake-up and new weights count as generation."""
        split, at = self.split, self.at
        more = sum(slope * (getattr(o, name) - getattr(at, name)) for name, slope in self.slopes.items())
        alone = split.rollout_seconds + more
        found = {
            name: o.phase + o.training * max(0.0, seconds - at.phase) / at.training
            for name, seconds in split.phases.items()
            if name not in ("rollout", "weights", "switch")
        }
        waits = alone if split.together else max(0.0, alone - sum(found.values()))
        return found | {"rollout": waits + split.phases["weights"] + split.phases["switch"] - at.switch + o.switch}

    def residuals(self, o: Overheads) -> list[float]:
        """Return errors over their standard deviation, of the step and of the phases that were measured."""
        phases = self.phases(o)
        errors = [math.log(sum(phases.values()) / self.case.seconds) / STEP_NOISE]
        return errors + [math.log(phases[name] / seconds) / PHASE_NOISE for name, seconds in self.case.phases.items()]


def linear(cases: Sequence[Case], reload: float) -> list[Linear]:
    """Return every step as a function of the coefficients, around what is known of them."""
    known = replace(Overheads(fitted_on="", reload=reload), **{name: value for name, (value, _) in PRIORS.items()})
    kept, found, _ = predict(cases, [known] * len(cases))
    slopes: list[dict[str, float]] = [{} for _ in kept]
    for name in OF_ENGINE:
        value = getattr(known, name)
        changed = replace(known, **{name: value * STRETCH})
        for i, split in enumerate(predict(kept, [changed] * len(kept))[1]):
            slopes[i][name] = (split.rollout_seconds - found[i].rollout_seconds) / (value * (STRETCH - 1))
    return [Linear(case, split, known, slope) for case, split, slope in zip(kept, found, slopes, strict=True)]


def fit(steps: Sequence[Linear]) -> Overheads:
    """Return the coefficients that fit these steps and their phases."""
    names = list(PRIORS)
    prior = np.array([math.log(value) for value, _ in PRIORS.values()])
    width = np.array([spread for _, spread in PRIORS.values()])
    at = prior.copy()
    for _ in range(ROUNDS):
        base = _residuals(steps, names, at)
        nudged = [_residuals(steps, names, at + NUDGE * (np.arange(len(names)) == i)) for i in range(len(names))]
        left = np.vstack([(np.stack(nudged) - base).T / NUDGE, np.diag(1 / width)])
        move = np.linalg.lstsq(left, np.concatenate([-base, (prior - at) / width]), rcond=None)[0]
        at = at + np.clip(move, -0.5, 0.5)
    programs = tuple(sorted({one.case.program for one in steps}))
    return replace(_with(steps[0].at, names, at), rows=len(steps), programs=programs)


def _with(start: Overheads, names: Sequence[str], at: Floats) -> Overheads:
    return replace(start, **{name: float(math.exp(value)) for name, value in zip(names, at, strict=True)})


def _residuals(steps: Sequence[Linear], names: Sequence[str], at: Floats) -> Floats:
    o = _with(steps[0].at, names, at)
    return np.array([error for one in steps for error in one.residuals(o)])


def spread_of(steps: Sequence[Linear], o: Overheads, *, least: float) -> float:
    """Return the standard deviation that the errors of steps which were not fitted show, and at least `least`: 90% lie within 1.645."""
    errors = sorted(abs(one.residuals(o)[0]) * STEP_NOISE for one in steps)
    return max(least, errors[min(len(errors), math.ceil(0.9 * (len(errors) + 1))) - 1] / 1.645)
