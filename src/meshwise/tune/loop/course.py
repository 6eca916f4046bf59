"""The loop: finish the runs of the journal, learn from all of them, choose the next, start it, wait; stop when more would not pay."""

import json
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run.callbacks import Say
from meshwise.tune.ask import TuneAsk
from meshwise.tune.belief.choice import Pick, gain_left, next_runs
from meshwise.tune.belief.posterior import Posterior
from meshwise.tune.loop import by_hand, ending
from meshwise.tune.loop.by_hand import Prompt
from meshwise.tune.loop.history import History, shown
from meshwise.tune.loop.journal import FORMAT_VERSION, Journal, Run, opened
from meshwise.tune.loop.launch import LOG, End, Job, launch_failed
from meshwise.tune.loop.reading import Outcome
from meshwise.tune.loop.result import Tuned
from meshwise.tune.loop.subject import SetupError, Subject

POLL_SECONDS = 0.25  # seconds between looks at the files of running runs
QUEUE_POLL_SECONDS = 5.0  # seconds between questions to a queue
MAX_FAILED_FIRST_RUNS = 3
"""Runs in a row without a measurement, where none was ever measured, after which the loop stops: the setup is wrong, not the layout."""
MAX_REFUSED = 100  # candidates that a program refuses, after which the loop stops
NOT_FOUND_EXIT_CODES = (126, 127)  # exit codes of a shell that could not find or execute a command
SETUP_FAILURES = ("crash", "hang", "timeout")  # failures that a wrong setup may explain as well as a layout


@dataclass
class Flight:
    """A run that was started and has not ended."""

    run: Run
    job: Job
    gone: int = 0  # how often in a row its queue did not know it


@dataclass
class Loop:
    """A tuning in progress. Everything that must survive it is in the journal."""

    subject: Subject
    ask: TuneAsk
    journal: Journal
    say: Say
    answer: Prompt
    flights: list[Flight] = field(default_factory=list[Flight])
    refused: int = 0  # candidates that the program cannot run
    lines: list[str] = field(default_factory=list[str])
    begun: float = field(default_factory=time.monotonic)
    in_vain: int = 0  # runs in a row without a measurement
    asked: float = 0.0

    @cached_property
    def history(self) -> History:
        return History(self.subject, self.journal)

    @property
    def runs(self) -> list[Run]:
        """The runs of this question."""
        return self.history.runs

    @property
    def last(self) -> int:
        """The number of the last run that the budget allows: runs that do not count have numbers too."""
        return self.ask.runs + len(self.journal.runs) - sum(run.counts for run in self.runs)

    # The course of a tuning.

    def go(self) -> Tuned:
        """Tune until the budget is used up, or more runs would not pay."""
        self.begin()
        stopped = ""
        try:
            self.resume()
            self.in_vain = min(
                self.in_vain_so_far(), MAX_FAILED_FIRST_RUNS - 1
            )  # what was wrong may have been mended: one run tells
            while True:
                stopped = self.fill()
                if not self.flights:
                    break
                self.wait()
        except EOFError:
            waiting = self.flights[0].run if self.flights else self.runs[-1]
            stopped = f"run {waiting.number} waits for its log: the same command asks for it again"
        except KeyboardInterrupt:
            for flight in self.flights:
                self.say(f"run {flight.run.number} goes on in {flight.job.folder}; the same command waits for it")
            raise
        self.write_table()  # again: an earlier loop may have been killed before it did
        return ending.result(self.history, stopped, self.lines)

    def begin(self) -> None:
        """Note the question in the journal. Runs of another question stay in it, and out of the fit."""
        known, now, others = self.journal.settings(), self.subject.setting, self.history.others
        if others:
            count = f"{len(others)} earlier run{'s' * (len(others) > 1)} in {self.journal.folder}"
            self.tell(
                f"{count} {'are' if len(others) > 1 else 'is'} of another model, cluster, batch or program: kept out of the fit"
            )
        if now not in known:
            self.journal.add("setting", id=now, format=FORMAT_VERSION, title=self.subject.title, command=self.ask.command())

    def in_vain_so_far(self) -> int:
        """Return how many runs in a row, up to the last one, gave no measurement."""
        ended = [run for run in self.runs if run.counts and run.state in ("measured", "rejected")]
        gave = [run.ran or run.failure == "oom" for run in ended]
        return gave[::-1].index(True) if True in gave else len(gave)

    def tell(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)

    def resume(self) -> None:
        """Take up the runs that an earlier loop left: started, ended and not read, or only chosen."""
        for run in list(self.runs):
            row = self.subject.find(run.candidate)
            if run.state == "rejected" and run.counts and row is not None:
                self.reread(run, row)
            if run.state in ("measured", "rejected"):
                continue
            if run.end.get("how") == "launch":  # the earlier loop was killed before it could say so
                self.journal.add("rejected", run=run.number, note="its launch command failed")
                continue
            if row is None:
                self.journal.add("rejected", run=run.number, note="its layout is not among the candidates any more")
                continue
            self.say(f"run {run.number} of an earlier start: {run.name}")
            folder = self.folder(run)
            told = self.ask.by_hand and not (folder / LOG).exists()  # by a person, who is asked again
            if run.state == "ended" and not told:
                self.finished(run, folder, End(**run.end))
            else:
                job = (self.subject.prepare if run.state == "chosen" else self.subject.job)(row, run.number, folder)
                self.start(run, job)

    def reread(self, run: Run, row: int) -> None:
        """Read a run again whose log could not be read, perhaps with another --format. What stays left out is no candidate."""
        outcome = self.subject.read(row, self.folder(run), End(**run.end)) if run.unread else Outcome(rejected=run.note)
        if not outcome.rejected:
            self.record(run, outcome)
        elif len(self.subject.space) > 1:
            self.subject.drop(row)

    def folder(self, run: Run) -> Path:
        return (self.journal.folder / run.folder).absolute()

    # Choosing and starting.

    def spent(self) -> str:
        """Return which part of the budget is used up; '' where none is."""
        counted = sum(run.counts for run in self.runs)
        hours = sum(run.devices * run.wall for run in self.runs) / 3600
        if counted >= self.ask.runs:
            return f"{counted} of {self.ask.runs} runs are done"
        if self.ask.minutes and time.monotonic() - self.begun >= 60 * self.ask.minutes:
            return f"the {self.ask.minutes:g} minutes are over"
        if self.ask.device_hours and hours >= self.ask.device_hours:
            return f"the runs have used {hours:.3g} of {self.ask.device_hours:g} device-hours"
        return ""

    def fill(self) -> str:
        """Start runs until as many run side by side as may. Return why no further one is started; '' where it is full."""
        while len(self.flights) < self.ask.side_by_side:
            stopped = self.spent()
            if stopped:
                return stopped
            posterior, seen = self.history.posterior(), self.history.observations()
            gain = gain_left(posterior)
            if any(not one.failure for one in seen) and gain < self.ask.gain:
                return f"one more run is expected to save {gain:.2%} of the time, less than {self.ask.gain:.2%}"
            running = [self.subject.find(flight.run.candidate) for flight in self.flights]
            picks = next_runs(self.subject.space, posterior, seen, count=1, taken={row for row in running if row is not None})
            if not picks:
                return "no candidate is left"
            self.choose(picks[0], posterior)
        return ""

    def choose(self, pick: Pick, posterior: Posterior) -> None:
        """Note a choice in the journal, write its files and start it; or note that its program refuses it."""
        row, number = pick.row, self.journal.next_number
        folder = (self.journal.folder / f"run-{number:03d}").absolute()
        try:
            job = self.subject.prepare(row, number, folder)
        except SetupError:
            raise
        except UserError as error:
            self.refused += 1
            if self.refused >= MAX_REFUSED or len(self.subject.space) == 1:
                raise UserError(f"{self.refused} candidates cannot be run, the last one for this reason: {error}") from None
            self.subject.drop(row)
            return
        self.journal.add(
            "chosen", run=number, setting=self.subject.setting, candidate=self.subject.describe(row),
            name=self.subject.space.words(row), devices=self.subject.devices(row),
            predicted=float(np.exp(posterior.mean[row])), predicted_memory=self.subject.predicted_memory(row),
            expected_gain=pick.gain, why=pick.why,
        )  # fmt: skip
        run = self.journal.runs[number]
        self.say(f"run {number}/{self.last}  {run.name}: {shown(run.predicted)} expected; {run.why}")
        self.start(run, job)

    def start(self, run: Run, job: Job) -> None:
        """Start a run, once: the journal has it before its command runs, and its folder admits one start."""
        if run.state == "chosen":
            self.journal.add("started", run=run.number)
            run = self.journal.runs[run.number]
        if not self.ask.by_hand and not job.begun:
            job.start()
        self.flights.append(Flight(run, job))

    # Waiting and reading.

    def wait(self) -> None:
        """Wait until at least one run has ended, and record it."""
        if self.ask.by_hand:
            flight = self.flights[0]
            outcome = by_hand.ask(self.subject, self.row(flight.run), flight.run, flight.job.folder, self.say, self.answer)
            self.flights.remove(flight)
            self.journal.add("ended", run=flight.run.number, end=asdict(End("exit")))
            self.record(flight.run, outcome)
            return
        while True:
            self.ask_queue()
            done = [(flight, end) for flight in self.flights if (end := flight.job.look(self.ask.timeout, flight.gone))]
            for flight, end in done:
                self.landed(flight, end)
            if done:
                return
            time.sleep(POLL_SECONDS)

    def ask_queue(self) -> None:
        if time.monotonic() - self.asked < QUEUE_POLL_SECONDS:
            return
        self.asked = time.monotonic()
        for flight in self.flights:
            flight.gone = flight.gone + 1 if flight.job.is_gone else 0

    def landed(self, flight: Flight, end: End) -> None:
        """Record a run that has ended."""
        self.flights.remove(flight)
        run = flight.run
        self.journal.add("ended", run=run.number, end=asdict(end), wall=end.seconds)
        if end.how == "launch":
            error = launch_failed(flight.job, end.code)
            self.journal.add("rejected", run=run.number, note=str(error))
            raise error
        self.finished(run, flight.job.folder, end)

    def finished(self, run: Run, folder: Path, end: End) -> None:
        """Read a run that has ended, and record it. A script whose command is not there says nothing about the layout."""
        outcome = self.subject.read(self.row(run), folder, end)
        if outcome.failure == "crash" and end.code in NOT_FOUND_EXIT_CODES:
            error = UserError(
                f"run {run.number}: its script could not execute a command, so nothing was measured: {outcome.note}"
            )
            self.journal.add("rejected", run=run.number, note=str(error), end={"how": "launch"})
            raise error
        self.record(run, outcome)

    def row(self, run: Run) -> int:
        """Return the row of a run that was started: it is among the candidates until it is recorded."""
        row = self.subject.find(run.candidate)
        assert row is not None, run.name
        return row

    def record(self, run: Run, outcome: Outcome) -> None:
        """Note the result of a run, and say what it means."""
        row = self.row(run)
        if outcome.rejected:
            self.journal.add("rejected", run=run.number, note=outcome.rejected, unread=outcome.unread)
            self.tell(f"run {run.number} is left out: {outcome.rejected}")
            if len(self.subject.space) > 1:
                self.subject.drop(row)
        else:
            table_row = dict(self.subject.table_row(row, run.number, outcome))
            self.journal.add(
                "measured", run=run.number, seconds=outcome.seconds, memory=outcome.memory, failure=outcome.failure, note=outcome.note,
                row=table_row,
            )  # fmt: skip
            self.write_table()
            self.say(self.history.sentence(self.journal.runs[run.number], self.last))
        vain = bool(outcome.rejected) or outcome.failure in SETUP_FAILURES
        self.in_vain = self.in_vain + 1 if vain else 0
        if self.in_vain >= MAX_FAILED_FIRST_RUNS and not any(one.ran for one in self.runs):
            self.give_up(outcome)

    def give_up(self, outcome: Outcome) -> None:
        """Leave out runs that failed before any succeeded: what they have in common is not their layout."""
        failed = [run for run in self.runs if run.state == "measured" and run.failure in SETUP_FAILURES]
        for run in failed:
            self.journal.add("rejected", run=run.number, note=f"{run.failure}, before any run succeeded", end={"how": "launch"})
        raise UserError(
            f"{self.in_vain} runs in a row gave no measurement, so no further one is started: {outcome.rejected or outcome.note}"
        )

    def write_table(self) -> None:
        """Write measurement.jsonl: every measured run of the folder."""
        left = {run.number for run in self.journal.runs.values() if run.state == "measured"}
        rows = [event["row"] for event in self.journal.events if event.get("event") == "measured" and event["run"] in left]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        files.write(self.journal.folder / "measurement.jsonl", text)


def tune(subject: Subject, ask: TuneAsk, *, say: Say, answer: Prompt) -> Tuned:
    """Tune a subject in its folder, which no other process may tune in meanwhile."""
    with opened(Path(ask.folder)) as journal:
        return Loop(subject, ask, journal, say, answer).go()
