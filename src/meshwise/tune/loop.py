"""The loop: finish the runs of the journal, learn from all of them, choose the next, start it, wait; stop when more would not pay."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from meshwise import units
from meshwise.catalogue import files
from meshwise.errors import UserError, quoted
from meshwise.run.callbacks import Say
from meshwise.tune.ask import TuneAsk
from meshwise.tune.choice import Pick, gain_left, next_runs
from meshwise.tune.journal import FORMAT, Journal, Run, opened
from meshwise.tune.launch import End, Job, launch_failed
from meshwise.tune.observation import Observation
from meshwise.tune.posterior import Posterior
from meshwise.tune.reading import Outcome
from meshwise.tune.result import Best, Tuned, TunedRun, with_regret
from meshwise.tune.subject import SetupError, Subject, Verdict
from meshwise.units import GIB

POLL = 0.25
"""Seconds between looks at the files of running runs."""
ASKED_EVERY = 5.0
"""Seconds between questions to a queue."""
HOPELESS = 3
"""Runs in a row without a measurement, where none was ever measured, after which the loop stops: the setup is wrong, not the layout."""
REFUSED = 100
"""Candidates that a program refuses, after which the loop stops."""
FAILURES = ("oom", "crash", "hang", "timeout")
SKIP = "skip"

Prompt = Callable[[str], str]
"""Asks a person, and returns what was typed; EOFError where nobody answers."""


@dataclass
class Flight:
    """A run that was started and has not ended."""

    run: Run
    job: Job
    gone: int = 0
    """How often in a row its queue did not know it."""


@dataclass
class Loop:
    """A tuning in progress. Everything that must survive it is in the journal."""

    subject: Subject
    ask: TuneAsk
    journal: Journal
    say: Say
    answer: Prompt
    flights: list[Flight] = field(default_factory=list[Flight])
    refused: int = 0
    """Candidates that the program cannot run."""
    lines: list[str] = field(default_factory=list[str])
    begun: float = field(default_factory=time.monotonic)
    in_vain: int = 0
    """Runs in a row without a measurement."""
    asked: float = 0.0

    # The runs so far.

    @property
    def runs(self) -> list[Run]:
        """The runs of this question."""
        return [run for run in self.journal.runs.values() if run.setting == self.subject.setting]

    def observations(self) -> list[Observation]:
        """Return the runs that were measured, or failed in a way that teaches something."""
        found: list[Observation] = []
        for run in self.runs:
            row = self.subject.find(run.candidate) if run.state == "measured" else None
            if row is not None:
                found.append(Observation(row, None if run.failure else run.seconds, run.memory, run.failure))  # pyright: ignore[reportArgumentType]
        return found

    def posterior(self) -> Posterior:
        return Posterior.of(self.subject.space, self.observations())

    # The course of a tuning.

    def go(self) -> Tuned:
        """Tune until the budget is used up, or more runs would not pay."""
        self.begin()
        stopped = ""
        try:
            self.resume()
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
        return self.result(stopped)

    def begin(self) -> None:
        """Note the question in the journal. Runs of another question stay in it, and out of the fit."""
        known, now = self.journal.settings(), self.subject.setting
        others = [run for run in self.journal.runs.values() if run.setting != now]
        if others:
            count = f"{len(others)} earlier run{'s' * (len(others) > 1)} in {self.journal.folder}"
            self.tell(
                f"{count} {'are' if len(others) > 1 else 'is'} of another model, cluster, batch or program: kept out of the fit"
            )
        if now not in known:
            self.journal.add("setting", id=now, format=FORMAT, title=self.subject.title, command=self.ask.command())

    def tell(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)

    def resume(self) -> None:
        """Take up the runs that an earlier loop left: started, ended and not read, or only chosen."""
        for run in list(self.runs):
            row = self.subject.find(run.candidate)
            if run.state == "rejected" and run.counts and row is not None:
                self.subject.drop(row)
            if run.state in ("measured", "rejected"):
                continue
            if row is None:
                self.journal.add("rejected", run=run.number, note="its layout is not among the candidates any more")
                continue
            self.say(f"run {run.number} of an earlier start: {run.name}")
            folder = self.folder(run)
            if run.state == "ended":
                self.record(run, self.subject.read(row, folder, End(**run.end)))
            else:
                job = (self.subject.prepare if run.state == "chosen" else self.subject.job)(row, run.number, folder)
                self.start(run, job)

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
            posterior, seen = self.posterior(), self.observations()
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
            if self.refused >= REFUSED or len(self.subject.space) == 1:
                raise UserError(f"{self.refused} candidates cannot be run, the last one for this reason: {error}") from None
            self.subject.drop(row)
            return
        self.journal.add(
            "chosen",
            run=number,
            setting=self.subject.setting,
            candidate=self.subject.describe(row),
            name=self.subject.space.words(row),
            devices=self.subject.devices(row),
            predicted=float(np.exp(posterior.mean[row])),
            predicted_memory=self.subject.predicted_memory(row),
            expected_gain=pick.gain,
            why=pick.why,
        )
        run = self.journal.runs[number]
        self.say(f"run {number}/{self.ask.runs}  {run.name}: {_time(run.predicted)} expected; {run.why}")
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
            self.record_answer(self.flights[0])
            return
        while True:
            self.ask_queue()
            done = [(flight, end) for flight in self.flights if (end := flight.job.look(self.ask.timeout, flight.gone))]
            for flight, end in done:
                self.landed(flight, end)
            if done:
                return
            time.sleep(POLL)

    def ask_queue(self) -> None:
        if time.monotonic() - self.asked < ASKED_EVERY:
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
        self.record(run, self.subject.read(self.row(run), flight.job.folder, end))

    def row(self, run: Run) -> int:
        """Return the row of a run that was started: it is among the candidates until it is recorded."""
        row = self.subject.find(run.candidate)
        assert row is not None, run.name
        return row

    def record(self, run: Run, outcome: Outcome) -> None:
        """Note the result of a run, and say what it means."""
        row = self.row(run)
        if outcome.rejected:
            self.journal.add("rejected", run=run.number, note=outcome.rejected)
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
            self.say(self.sentence(self.journal.runs[run.number]))
        vain = bool(outcome.rejected) or outcome.failure in ("crash", "hang", "timeout")
        self.in_vain = self.in_vain + 1 if vain else 0
        if self.in_vain >= HOPELESS and not any(one.ran for one in self.runs):
            self.give_up(outcome)

    def give_up(self, outcome: Outcome) -> None:
        """Leave out runs that failed before any succeeded: what they have in common is not their layout."""
        failed = [run for run in self.runs if run.state == "measured" and run.failure in ("crash", "hang", "timeout")]
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

    def sentence(self, run: Run) -> str:
        """Return a run's result beside its prediction, the time it lost, and the expected gain of one more run."""
        head = f"run {run.number}/{self.ask.runs}  {run.name}: "
        ran, posterior = [one for one in self.runs if one.ran and one.seconds], self.posterior()
        more = f"one more run may save {gain_left(posterior):.2%}" if ran else "nothing measured yet"
        if run.failure:
            return f"{head}{run.failure} ({run.note}); {more}"
        best = min(ran, key=lambda one: one.seconds or 0.0)
        lost = (run.seconds or 0.0) / (best.seconds or 1.0) - 1
        place = "the best so far" if best.number == run.number else f"{lost:.1%} slower than the best so far, run {best.number}"
        if self.subject.find(run.candidate) in posterior.outliers:
            place += ", far slower than runs like it (a slow mode, which counts against what it shares with others)"
        memory = f", {run.memory / GIB:.2f} GiB" if run.memory else ""
        expected = f" ({run.predicted_memory / GIB:.2f} expected)" if memory and run.predicted_memory else ""
        return f"{head}{_time(run.seconds)} measured, {_time(run.predicted)} expected{memory}{expected}; {place}; {more}"

    # By hand.

    def record_answer(self, flight: Flight) -> None:
        """Ask for the log of a run, until the answer can be used."""
        run, folder = flight.run, flight.job.folder
        for line in (*self.subject.words(self.row(run)), f"its files are in {folder}"):
            self.say(f"  {line}")
        while True:
            text = self.answer(f"run {run.number}: its log, its time ('3.2s'), {', '.join(FAILURES)}, or {SKIP}: ").strip()
            try:
                outcome = self.understood(flight, text)
                break
            except UserError as error:
                self.say(f"{error}")
        self.flights.remove(flight)
        self.journal.add("ended", run=run.number, end=asdict(End("exit")))
        self.record(run, outcome)

    def understood(self, flight: Flight, text: str) -> Outcome:
        """Return the result that a person typed. UserError where it cannot be understood."""
        if text == SKIP:
            return Outcome(rejected="skipped")
        if text in FAILURES:
            return Outcome(failure=text, note="as told")  # pyright: ignore[reportArgumentType]
        if Path(text).expanduser().is_file():
            return self.subject.read_log(self.row(flight.run), Path(text).expanduser())
        try:
            return Outcome(seconds=units.parse(text, "seconds"), note="as told")
        except UserError:
            raise UserError(
                f"{quoted(text)} is no file, no time such as 3.2s, and none of {', '.join(FAILURES)}, {SKIP}"
            ) from None

    # The end.

    def result(self, stopped: str) -> Tuned:
        """Write the plan and the calibration, and return everything."""
        posterior, ran = self.posterior(), [run for run in self.runs if run.ran and run.seconds]
        verdict = self.verdict(posterior, ran) if ran else None
        if verdict:
            order = [int(row) for row in np.argsort(posterior.mean)[: 1 + REFUSED]]
            self.lines += self.subject.finish(self.journal.folder, verdict, order)
        return Tuned(
            title=self.subject.title,
            unit=self.subject.unit,
            folder=self.journal.folder,
            runs=with_regret([_shown(run) for run in self.runs]),
            best=self.best(verdict) if verdict else None,
            gain=gain_left(posterior),
            candidates=len(self.subject.space),
            stopped=stopped,
            lines=tuple(self.lines),
        )

    def verdict(self, posterior: Posterior, ran: list[Run]) -> Verdict | None:
        """Return the fastest candidate that was measured; None where none of them is a candidate any more."""
        if not posterior.measured:
            return None
        row = posterior.best()
        low, high = posterior.interval(row, 0.9)
        return Verdict(row, math.exp(posterior.measured[row]), low, high, gain_left(posterior), len(ran))

    def best(self, verdict: Verdict) -> Best:
        space = self.subject.space
        return Best(
            name=space.words(verdict.row),
            candidate=self.subject.describe(verdict.row),
            seconds=verdict.seconds,
            low=verdict.low,
            high=verdict.high,
            predicted=float(space.seconds[verdict.row]),
        )


def _shown(run: Run) -> TunedRun:
    outcome = {"measured": run.failure or "ok", "rejected": "left out"}.get(run.state, run.state)
    measured = run.seconds if run.ran else None
    return TunedRun(
        run.number,
        run.name,
        run.devices,
        run.predicted,
        measured,
        run.predicted_memory,
        run.memory,
        outcome,
        None,
        None,
        run.note,
    )


def _time(seconds: float | None) -> str:
    return units.show(seconds, "seconds", digits=4) if seconds else "?"


def tune(subject: Subject, ask: TuneAsk, *, say: Say, answer: Prompt) -> Tuned:
    """Tune a subject in its folder, which no other process may tune in meanwhile."""
    with opened(Path(ask.folder)) as journal:
        return Loop(subject, ask, journal, say, answer).go()
