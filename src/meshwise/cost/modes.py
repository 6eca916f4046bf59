"""Modes of slow runs: what they count in a layout, how long a step takes in one, which one explains a run, and their words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise import units
from meshwise.catalogue.modes import Counted, Effect, Mode, Stages
from meshwise.cost.interval import COVERAGE_STDS
from meshwise.cost.layout import Floats

MIN_LOG_SLOWDOWN = 0.6
"""Least ln(seconds in a mode / normal seconds) that is told from an error of the prediction, which rarely is 1.8 times."""
NORMAL_STD = 0.07  # standard deviation of ln(measured / predicted) of a normal run, in addition to the spread of a mode

_BOUNDS: dict[Stages, tuple[float, float]] = {
    "any": (1, np.inf),
    "one": (1, 1),
    "two": (2, 2),
    "several": (2, np.inf),
    "more than two": (3, np.inf),
}
_EACH: dict[Counted, str] = {
    "step": "step",
    "micro-batch": "micro-batch",
    "layer and tensor rank": "micro-batch, layer and tensor rank",
}


@dataclass(frozen=True)
class Sizes:
    """Stages, micro-batches and other numbers of each run, which modes count."""

    stages: Floats
    micro_batches: Floats  # of one pipeline in a step; 0 where not known
    layers: Floats  # of the whole model
    tp: Floats

    @staticmethod
    def of(layers: Floats, batch: Floats, dp: Floats, mbs: Floats, pp: Floats, tp: Floats) -> "Sizes":
        """Return the sizes of layouts; `mbs` is 0 where the micro-batch is not known."""
        known = np.ceil(batch / np.maximum(dp * mbs, 1.0))
        return Sizes(pp, np.where(mbs > 0, known, 0.0), layers, tp)

    def counts(self, per: Counted, stages: Stages) -> Floats:
        """Return how many of `per` each run has; 0 for runs with other stages."""
        least, most = _BOUNDS[stages]
        turns = np.where(self.micro_batches > 0, self.micro_batches + self.stages - 1, 0.0)  # of a stage, until the last is done
        known = {
            "step": np.ones(len(self.stages)),
            "micro-batch": self.micro_batches,
            "layer and tensor rank": turns * self.layers / self.stages * self.tp,
        }
        return np.where((self.stages >= least) & (self.stages <= most), known[per], 0.0)


def with_effect(effect: Effect, normal: Floats, excess: Floats) -> Floats:
    """Return the seconds of steps that would take `normal` otherwise."""
    return normal + excess if effect == "adds" else np.maximum(normal, excess)


def seconds_in(mode: Mode, normal: Floats, sizes: Sizes) -> Floats:
    """Return the seconds of steps in this mode."""
    return with_effect(mode.effect, normal, mode.seconds * sizes.counts(mode.per, mode.stages))


def upper_end(modes: Sequence[Mode], high: Floats, normal: Floats, sizes: Sizes) -> Floats:
    """Return the high end of the interval of steps, `high` for normal runs: raised to that of a mode that most runs are in."""
    for mode in modes:
        if mode.usual:
            inside = seconds_in(mode, normal, sizes) * np.exp(COVERAGE_STDS * mode.spread)
            high = np.where(sizes.counts(mode.per, mode.stages) > 0, np.maximum(high, inside), high)
    return high


def explaining(modes: Sequence[Mode], seconds: float, normal: float, sizes: Sizes) -> tuple[Mode, float] | None:
    """Return the mode that explains why one run took `seconds` and not `normal`, and the seconds in it; None where none does."""
    tried = [
        (mode, time) for mode, time in _alone_and_together(modes, normal, sizes) if np.log(time / normal) >= MIN_LOG_SLOWDOWN
    ]
    if not tried:
        return None
    mode, time = min(tried, key=lambda each: abs(np.log(seconds / each[1])))
    close = abs(np.log(seconds / time)) <= COVERAGE_STDS * np.hypot(mode.spread, NORMAL_STD)
    return (mode, time) if close else None


def _alone_and_together(modes: Sequence[Mode], normal: float, sizes: Sizes) -> Iterator[tuple[Mode, float]]:
    """Yield each mode with the seconds in it, alone and on top of one that sets a least time."""
    least = [mode for mode in modes if mode.effect == "at least"]
    floors = [(mode, float(seconds_in(mode, np.array([normal]), sizes)[0])) for mode in least]
    yield from floors
    for mode in modes:
        if mode.effect == "adds":
            for base in (normal, *(time for _, time in floors)):
                yield mode, float(seconds_in(mode, np.array([base]), sizes)[0])


def runs_of(mode: Mode) -> str:
    """Return the runs that can be in the mode, in words."""
    return "runs" if mode.stages == "any" else f"runs with {mode.stages} stage{'s' * (mode.stages != 'one')}"


def time_of(mode: Mode) -> str:
    """Return how long a run in the mode takes, in words that follow 'take'."""
    each = f"for each {_EACH[mode.per]}"
    time = units.show(mode.seconds, "seconds", digits=2)
    return f"{time} longer {each}" if mode.effect == "adds" else f"at least {time} {each}"


def share_of(mode: Mode, calibration: str) -> str:
    """Return how many runs of a calibration were in the mode, as a sentence."""
    return f"{mode.share:.0%} of the {runs_of(mode)} behind the calibration {calibration} took {time_of(mode)}"
