"""The pace of ranks: recent seconds of the phases before they wait for each other, and which rank is slower than the others."""

import statistics
from collections import deque
from collections.abc import Mapping

RECENT_STEPS = 8
LOOK_SECONDS = 10.0  # seconds between two looks at all ranks: a rank is named that was slow in both
SLOW, MIN_SHARE = 1.3, 0.1
"""How often the others' time a slow rank takes in a phase, and the share of their step that it loses there."""

Pace = Mapping[str, float]
Straggler = tuple[int, str]


class Recent:
    """Seconds by phase over recent steps of this rank."""

    def __init__(self, phases: tuple[str, ...]) -> None:
        self.phases = phases
        self.steps: deque[Pace] = deque(maxlen=RECENT_STEPS)

    def add(self, seconds: Pace) -> None:
        self.steps.append({name: seconds[name] for name in self.phases if name in seconds})

    def mean(self) -> dict[str, float]:
        """Return mean seconds by phase; nothing before enough steps were seen."""
        steps = list(self.steps)
        if len(steps) < RECENT_STEPS:
            return {}
        return {name: statistics.fmean(step.get(name, 0.0) for step in steps) for name in steps[-1]}


def find_slow(paces: Mapping[int, Pace]) -> dict[Straggler, str]:
    """Return ranks that are slower than the others with their phase, each in words."""
    usual = {
        name: statistics.median_low([pace.get(name, 0.0) for pace in paces.values()]) for pace in paces.values() for name in pace
    }
    least = MIN_SHARE * sum(usual.values())
    return {
        (rank, name): f"{name} takes {seconds:.3g} s a step, {usual[name]:.3g} s on the others"
        for rank, pace in paces.items() if len(paces) > 1
        for name, seconds in pace.items() if seconds > SLOW * usual[name] and seconds - usual[name] > least
    }  # fmt: skip
