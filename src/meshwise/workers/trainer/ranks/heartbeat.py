"""A thread of each worker: it shows that the worker is alive, agrees with the others when to stop, and names the stragglers of a hang.

It uses its own connection to the store, so that it keeps running while collectives wait. It adds nothing to the time of a step.
"""

# pyright: reportUnknownMemberType=false
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from meshwise.output import say
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.process.lease import share
from meshwise.workers.trainer.contract.process.parent import orphaned
from meshwise.workers.trainer.contract.process.stop import reason, requested, stop_file, stop_signals
from meshwise.workers.trainer.contract.rows import UNSHARED_PHASES
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.ranks.faults import Failure, TrainingError, exit_now, failure_of
from meshwise.workers.trainer.ranks.pace import LOOK_SECONDS, Recent, Straggler, find_slow
from meshwise.workers.trainer.ranks.process_group import Worker, connect, init_process_group, store_address
from meshwise.workers.trainer.ranks.signed import SignedStore

STOP_GRACE_SECONDS = 1.5
"""Seconds in which the launcher's stop file turns a SIGTERM into a request to stop; without it, torchrun is ending the worker."""


@dataclass(frozen=True)
class Beat:
    """A heartbeat of one rank."""

    count: int
    done: int  # steps done
    node: int
    host: str
    pid: int
    where: str = ""  # the line that the main thread is at, if it has made no progress for long
    pace: dict[str, float] = field(default_factory=dict[str, float])  # seconds of recent steps by phase


class Heartbeat:
    """The heartbeat thread of this rank, and the methods that the training loop calls."""

    def __init__(self, settings: Settings, worker: Worker) -> None:
        self.settings, self.worker, self.folder = settings, worker, Path(settings.out)
        self.done = self.first = self.count = 0
        self.interval = min(1.0, settings.timeout / 10)
        self.store = SignedStore(connect(worker, settings.timeout), worker.start)
        self.moved = time.monotonic()
        self.stop = ""
        self.agreed = threading.Condition()
        self.limit: int | None = None
        self.last: int | None = None
        self.before: dict[int, Beat] | None = None
        # stages of a pipeline differ in everything but their data
        self.recent = Recent(UNSHARED_PHASES if settings.layout.pp == 1 else UNSHARED_PHASES[:1])
        self.looked, self.suspected = time.monotonic(), set[Straggler]()
        self.named = set[Straggler]()
        self.main = threading.main_thread().ident or 0
        self.stop_file = stop_file()
        self.signals, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        for number in stop_signals():
            signal.signal(number, _ignore)  # the wake-up pipe gets a byte even while the main thread waits in a collective
        self.closed = self.inside = False
        """Whether the run is over, and whether a step is in progress."""
        self._beat()
        self.answered = time.monotonic()
        """When the store last answered."""
        self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.thread.start()
        threading.Thread(target=self._check_store, name="store", daemon=True).start()

    # called by the training loop

    def start_from(self, done: int) -> None:
        """Note that the run starts or resumes after `done` steps."""
        self.first = done

    def begin_step(self, done: int) -> bool:
        """Note that `done` steps are done and the next begins; return False if all ranks agreed to stop."""
        with self.agreed:
            self.done, self.moved, self.before, self.inside = done, time.monotonic(), None, False
            asked = self.stop_file is not None and self.last is None and requested(self.stop_file)
            if asked:
                os.write(self.wake, b"\0")  # the thread may sleep for a second, long enough for many small steps
            # no rank goes beyond its limit until all ranks have published theirs
            while not self.closed and self.last is None and (asked if self.limit is None else done >= self.limit):
                self.agreed.wait(1.0)
            self.inside = self.last is None or done < self.last
            return self.inside

    def progress(self) -> None:
        """Note progress other than a step."""
        self.moved, self.before = time.monotonic(), None

    def report_stopped(self, done: int, *, saved: bool) -> None:
        """Print that all ranks have stopped on request; raise if nothing was saved."""
        if not saved:
            words = f"stopped by a signal after step {done}; nothing was saved: --checkpoint-every is 0"
            raise TrainingError("stopped", words, step=done)
        if self.worker.rank == 0 and not done:
            say("stopped by a signal before the first step; run the same command to start again")
        elif self.worker.rank == 0 and self.stop not in ("", "a signal"):
            say(f"stopped after step {done}, which is saved: {self.stop}")
        elif self.worker.rank == 0:
            say(f"stopped by a signal after step {done}, which is saved; run the same command to resume")

    def close(self) -> None:
        self.closed = True
        self.thread.join(5.0)

    def fail(self, failure: Failure) -> None:
        """Report the run's first failure, once for all ranks, and exit. A rank that lost its peers finds out which one failed first."""
        try:
            cause = self._peers_lost(failure) if failure.kind == "lost" else failure
            claimed, first = self._claim(cause)
        except Exception:  # the store is gone too
            claimed, first = failure, True
        claimed.exit(self.folder, first=first)

    # run by the thread

    def _run(self) -> None:
        while not self.closed:
            agreeing = self.limit is not None and self.last is None  # the main thread may be waiting for the result
            if select.select([self.signals], [], [], 0.05 if agreeing else self.interval)[0]:
                os.read(self.signals, 64)
                self._handle_signal()
            if orphaned():
                exit_now()
            try:
                for task in (self._beat, self._agree, self._watch, self._compare):
                    task()
                self.answered = time.monotonic()
            except Exception as error:
                # the store ends with the run: another rank may have finished first
                time.sleep(5 * self.interval)
                if self.closed:
                    return
                silent = f"the run's store no longer answers rank {self.worker.rank} ({_first_line(error)})"
                self._end(self._failure("lost", silent))

    def _check_store(self) -> None:
        """End this worker when the store has not answered for the timeout: where a link is cut, a call to it does not return."""
        while not self.closed:
            time.sleep(self.interval)
            silent = time.monotonic() - self.answered
            if silent > self.settings.timeout and not self.closed:
                where = f"node {self.worker.first_label}" if self.worker.nodes > 1 else "the run's store"
                words = f"{where} at {store_address()} has not answered rank {self.worker.rank} on {self.worker.host} for {silent:.0f} s"
                self._failure("lost", words).exit(self.folder)

    def _beat(self) -> None:
        self.count += 1
        where = _where(self.main) if time.monotonic() - self.moved > self.settings.timeout / 3 else ""
        beat = Beat(self.count, self.done, self.worker.node, self.worker.host, os.getpid(), where, self.recent.mean())
        self.store.set(f"beat/{self.worker.rank}", json.dumps(asdict(beat)))

    def _handle_signal(self) -> None:
        """Handle a signal that asks to stop: if torchrun sent them because another worker died, exit at once; else stop."""
        until = time.monotonic() + STOP_GRACE_SECONDS
        while self.stop_file and not requested(self.stop_file):
            if time.monotonic() > until:
                exit_now(128 + signal.SIGTERM)
            time.sleep(0.05)
        self.stop = reason(self.stop_file) if self.stop_file else "a signal"

    def _agree(self) -> None:
        """Agree on the last step: each rank publishes the step it is in as its limit, and the largest limit is the last step for all."""
        if self.stop_file and not self.stop and requested(self.stop_file):
            self.stop = reason(self.stop_file)
        if self.last is not None:
            return
        if self.stop:
            self.store.set("stop", self.stop)
        if self.limit is None:
            if not self.store.find(["stop"]):
                return
            with self.agreed:
                self.limit = self.done + self.inside
                self.agreed.notify_all()
        self.store.set(f"limit/{self.worker.rank}", str(self.limit))
        limits = self.store.find([f"limit/{rank}" for rank in range(self.worker.world)], whole=True)
        if len(limits) == self.worker.world:
            with self.agreed:
                self.last = max(map(int, limits.values()))
                self.agreed.notify_all()

    def _watch(self) -> None:
        """Read the other ranks' beats when nothing has moved for half of the timeout, and again at its end."""
        still = time.monotonic() - self.moved
        if still < self.settings.timeout / 2 or self.done >= self.settings.steps:
            return
        before = self.before
        if before is None:
            self.before = self._beats()
        elif still >= self.settings.timeout:
            now = self._beats()
            behind, why = find_stragglers(before, now, self.worker.world)
            if time.monotonic() - self.moved >= still:  # otherwise the main thread has moved just now
                failure = self._failure("hang", _format_ranks(behind, now, self.worker.world) + why, min(behind), now)
                self._end(failure, kill=behind, beats=now)

    def _compare(self) -> None:
        """Have rank 0 name ranks that are slower than the others in two looks, with the phase, once."""
        if self.worker.rank or self.worker.world < 2 or time.monotonic() - self.looked < LOOK_SECONDS:
            return
        self.looked, beats = time.monotonic(), self._beats()
        slow = find_slow({rank: beat.pace for rank, beat in beats.items() if beat.pace})
        for rank, phase in sorted(self.suspected & set(slow) - self.named):
            say(f"rank {rank} on {beats[rank].host} is slow: {slow[rank, phase]}")
            self.named.add((rank, phase))
        self.suspected = set(slow)

    def _end(self, failure: Failure, kill: "tuple[int, ...]" = (), beats: "dict[int, Beat] | None" = None) -> None:
        try:
            claimed, first = self._claim(failure)
        except Exception:
            claimed, first = failure, True
        for rank in kill:
            beat = (beats or {}).get(rank)
            if first and beat and beat.node == self.worker.node and beat.pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)  # a stopped worker would keep torchrun waiting
        claimed.exit(self.folder, first=first)

    def _failure(self, kind: str, message: str, rank: int | None = None, beats: "Mapping[int, Beat] | None" = None) -> Failure:
        """Make a failure of this rank, or of another with the host and step of its last beat."""
        who = self.worker.rank if rank is None else rank
        beat = (beats or {}).get(who)
        host, done = (beat.host, beat.done) if beat else (self.worker.host, self.done)
        return Failure(kind, who, host, min(done + 1, self.settings.steps), message)

    def _claim(self, failure: Failure) -> tuple[Failure, bool]:
        """Return the first failure published for this start, and whether it is this one."""
        own = json.dumps(asdict(failure))
        held = self.store.claim("failure", own).decode()
        return Failure(**json.loads(held)), held == own

    def _beats(self) -> dict[int, Beat]:
        found = self.store.find([f"beat/{rank}" for rank in range(self.worker.world)])
        return {int(key.removeprefix("beat/")): Beat(**json.loads(value)) for key, value in found.items()}

    def _peers_lost(self, failure: Failure) -> Failure:
        """Find the silent ranks, unless some rank publishes why it failed."""
        before = self._beats()
        until = time.monotonic() + 4 * self.interval
        while time.monotonic() < until:
            if self.store.find(["failure"]):
                return failure
            time.sleep(self.interval / 4)
        now = self._beats()
        silent = tuple(rank for rank in range(self.worker.world) if _silent(rank, before, now))
        if not silent:
            return failure
        return self._failure("gone", _format_ranks(silent, now, self.worker.world) + " died without a message", min(silent), now)


def find_stragglers(before: dict[int, Beat], now: dict[int, Beat], world: int) -> tuple[tuple[int, ...], str]:
    """Return the ranks that hold up a run, and why they are suspected: silent, fewer steps done, or waiting at another line than most."""
    silent = tuple(rank for rank in range(world) if _silent(rank, before, now))
    if silent:
        return silent, " does not respond" if len(silent) == 1 else " do not respond"
    fewest = min(beat.done for beat in now.values())
    slow = tuple(rank for rank, beat in now.items() if beat.done == fewest)
    if len(slow) < world:
        return slow, f": no progress in {now[slow[0]].where or 'a step'}, the others are ahead"
    places = Counter(beat.where for beat in now.values())
    rarest, number = places.most_common()[-1]
    if number < world / 2:
        usual = places.most_common(1)[0][0]
        there = tuple(rank for rank, beat in now.items() if beat.where == rarest)
        return there, f": no progress in {rarest}, the others wait in {usual}"
    return tuple(range(world)), f": no progress in {rarest}, and no rank is behind the others"


def _silent(rank: int, before: dict[int, Beat], now: dict[int, Beat]) -> bool:
    return rank not in now or (rank in before and before[rank].count == now[rank].count)


def _format_ranks(ranks: tuple[int, ...], beats: dict[int, Beat], world: int) -> str:
    """Return 'rank 3 on node-b (pid 71, last seen in step 12)'; several ranks in short form."""
    if len(ranks) == world > 1:
        return f"all {world} ranks, in step {1 + max(beat.done for beat in beats.values())}"
    if len(ranks) == 1:
        beat = beats.get(ranks[0])
        return f"rank {ranks[0]}" + (
            f" on {beat.host} (pid {beat.pid}, last seen in step {beat.done + 1})" if beat else ", which never started,"
        )
    hosts = sorted({beats[rank].host for rank in ranks if rank in beats})
    return f"ranks {', '.join(map(str, ranks))}" + (f" on {', '.join(hosts)}" if hosts else "")


def _where(thread: int) -> str:
    """Return the innermost line of the trainer that a thread is at, such as 'samples.py:72 local_batch'."""
    frame: FrameType | None = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    trainer = str(Path(__file__).parents[1])
    while frame and not frame.f_code.co_filename.startswith(trainer):
        frame = frame.f_back
    return (
        f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "code outside the trainer"
    )


def _ignore(number: int, frame: FrameType | None) -> None:
    return


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def guarded(settings: Settings, device: torch.device) -> Generator[Heartbeat]:
    """Set up the process group and heartbeat of a run; turn an exception into a failure that is reported and written, and exit."""
    worker, heart = Worker.here(), None
    try:
        if worker.world != settings.layout.devices:
            raise TrainingError(
                "error", f"the layout needs {settings.layout.devices} devices, but {worker.world} workers were started"
            )
        store = connect(worker, settings.timeout, serve=True)
        heart = Heartbeat(settings, worker)  # first: ranks that never meet are named too
        init_process_group(worker, store, device, settings.timeout)
        share(Path(settings.out))
        reach("worker connected")
        yield heart
        dist.barrier()  # the store may be on rank 0: no rank leaves while another still uses it
        heart.close()
        dist.destroy_process_group()
    except BaseException as error:
        done = min(heart.done, settings.steps - 1) if heart else 0  # there is no step after the last
        failure = failure_of(error, worker.rank, worker.host, done, heart.first if heart else 0)
        if failure.kind == "error" and not isinstance(error, TrainingError | SystemExit):
            say(traceback.format_exc().rstrip(), sys.stderr)
        if heart is None:
            failure.exit(Path(settings.out))
        heart.fail(failure)
