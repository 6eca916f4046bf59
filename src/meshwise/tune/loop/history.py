"""The runs of one question in a journal: as observations, and in sentences."""

from dataclasses import dataclass

from meshwise import units
from meshwise.tune.belief.choice import gain_left
from meshwise.tune.belief.observation import Observation
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.loop.journal import Journal, Run
from meshwise.tune.loop.subject import Subject
from meshwise.units import GIB


@dataclass(frozen=True)
class History:
    """A journal as one subject sees it: runs of other questions are left out."""

    subject: Subject
    journal: Journal

    @property
    def runs(self) -> list[Run]:
        """The runs of this question."""
        return [run for run in self.journal.runs.values() if run.setting == self.subject.setting]

    @property
    def others(self) -> list[Run]:
        """The runs of other questions in the same folder."""
        return [run for run in self.journal.runs.values() if run.setting != self.subject.setting]

    @property
    def timed(self) -> list[Run]:
        """The runs that were measured."""
        return [run for run in self.runs if run.ran and run.seconds]

    def observations(self) -> list[Observation]:
        """Return the runs that were measured, or failed in a way that teaches something. A candidate whose run is in a mode of slow runs
        for a second time counts: here that is its time."""
        found: list[Observation] = []
        faulty: set[int] = set()
        for run in self.runs:
            row = self.subject.find(run.candidate) if run.state == "measured" else None
            if row is not None:
                slow = row not in faulty and bool(run.ran and run.seconds and self.subject.mode(row, run.seconds))
                faulty |= {row} if slow else set()
                found.append(Observation(row, None if run.failure else run.seconds, run.memory, run.failure, slow))
        return found

    def posterior(self) -> Posterior:
        return Posterior.of(self.subject.space, self.observations())

    def sentence(self, run: Run, runs: int) -> str:
        """Return a run's result beside its prediction, the time it lost, and the expected gain of one more run."""
        head, posterior = f"run {run.number}/{runs}  {run.name}: ", self.posterior()
        more = f"one more run may save {gain_left(posterior):.2%}" if self.timed else "nothing measured yet"
        if run.failure:
            return f"{head}{run.failure} ({run.note}); {more}"
        best = min(self.timed, key=lambda one: one.seconds or 0.0)
        lost = (run.seconds or 0.0) / (best.seconds or 1.0) - 1
        place = "the best so far" if best.number == run.number else f"{lost:.1%} slower than the best so far, run {best.number}"
        row = self.subject.find(run.candidate)
        mode = self.subject.mode(row, run.seconds) if row is not None and run.seconds else ""
        if mode:
            place += f", in a known mode of slow runs ({mode}): a first such run of a layout does not count, and may be repeated"
        elif row in posterior.outliers:
            place += ", far slower than runs like it (a slow mode, which counts against what it shares with others)"
        memory = f", {run.memory / GIB:.2f} GiB" if run.memory else ""
        expected = f" ({run.predicted_memory / GIB:.2f} expected)" if memory and run.predicted_memory else ""
        return f"{head}{shown(run.seconds)} measured, {shown(run.predicted)} expected{memory}{expected}; {place}; {more}"


def shown(seconds: float | None) -> str:
    return units.show(seconds, "seconds", digits=4) if seconds else "?"
