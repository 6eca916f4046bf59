"""Modes: states of a campaign in which runs are slower by a time that a simple count explains, whatever the model."""

from dataclasses import dataclass
from typing import Literal

from meshwise.units import Count, Seconds

Effect = Literal["adds", "at least"]
"""Whether each counted thing adds its seconds to the step, or the step takes at least the sum of them."""
Counted = Literal["step", "micro-batch", "layer and tensor rank"]
"""What is counted: the step, its micro-batches, or micro-batches x layers of a stage x tensor-parallel ranks."""
Stages = Literal["any", "one", "two", "several", "more than two"]  # the pipeline stages of the runs that can be in the mode


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A state of a machine or program in which a share of the runs was found."""

    effect: Effect
    per: Counted
    stages: Stages = "any"
    seconds: Seconds  # for each counted thing
    spread: Count  # standard deviation of ln(measured / predicted) of runs in the mode, where the prediction includes it
    share: Count  # runs in the mode, over the runs that would show it
    rows: Count  # runs that it was found in

    @property
    def usual(self) -> bool:
        """Whether most runs that would show it are in it, so that a prediction must allow for it."""
        return self.share > 0.5
