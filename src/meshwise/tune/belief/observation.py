"""Observation: what one run of a candidate told."""

from dataclasses import dataclass
from typing import Literal

Failure = Literal["", "oom", "crash", "hang", "timeout"]


@dataclass(frozen=True)
class Observation:
    """One run of a candidate: its seconds per step and bytes per device where it ran, or how it failed."""

    candidate: int
    seconds: float | None = None
    memory: float | None = None
    failure: Failure = ""
    faulty: bool = False
    """Whether it was in a known mode of slow runs: its time says nothing about its layout, which may run again."""

    @property
    def ran(self) -> bool:
        return not self.failure and self.seconds is not None
