"""Subject: what is tuned, as the loop sees it: candidates, how one is started and read, and what is written at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from meshwise.errors import UserError
from meshwise.tune.belief.space import Space
from meshwise.tune.loop.launch import End, Job
from meshwise.tune.loop.reading import Outcome

Candidate = dict[str, Any]


class SetupError(UserError):
    """An error of the setup: it keeps every candidate from running, not just one."""


@dataclass(frozen=True)
class Verdict:
    """The candidate that a tuning ends with."""

    row: int
    seconds: float  # the fastest that was measured
    low: float
    high: float  # 90% of further measurements are expected between these
    gain: float  # the share of the time that one more run is expected to save
    runs: int  # runs that were measured


class Subject(Protocol):
    """A training plan or a served model."""

    space: Space
    title: str
    unit: str  # unit that a measured second is per: 'step', or 'output token'

    @property
    def setting(self) -> str:
        """Digest of everything that a measurement depends on beside the candidate."""
        ...

    def devices(self, row: int) -> int:
        """Return the devices that a candidate uses."""
        ...

    def describe(self, row: int) -> Candidate:
        """Return a candidate as JSON."""
        ...

    def find(self, candidate: Candidate) -> int | None:
        """Return the row of a candidate; None where it is not in the space (any more)."""
        ...

    def predicted_memory(self, row: int) -> float | None:
        """Return the bytes that a device is predicted to need; None where no log states them."""
        ...

    def mode(self, row: int, seconds: float) -> str:
        """Return the known mode of slow runs that explains the seconds of a run, in words; '' where none does."""
        ...

    def drop(self, row: int) -> None:
        """Take a candidate out of the space: its program refuses it, or its run cannot be used."""
        ...

    def words(self, row: int) -> Sequence[str]:
        """Return lines that tell a person how to run a candidate."""
        ...

    def prepare(self, row: int, number: int, folder: Path) -> Job:
        """Write the files of a run into its folder, and return how it is started. UserError where it cannot be run."""
        ...

    def job(self, row: int, number: int, folder: Path) -> Job:
        """Return how a run that was prepared before is started."""
        ...

    def read(self, row: int, folder: Path, end: End) -> Outcome:
        """Return the result of a run that has ended."""
        ...

    def read_log(self, row: int, log: Path) -> Outcome:
        """Return the result of a run from a log that a person names."""
        ...

    def table_row(self, row: int, number: int, outcome: Outcome) -> Mapping[str, Any]:
        """Return the run in the columns of a table of measurements."""
        ...

    def finish(self, folder: Path, verdict: Verdict, order: Sequence[int]) -> Sequence[str]:
        """Write the plan and the calibration that the runs lead to; return a line about each. `order`: candidates, the best first."""
        ...
