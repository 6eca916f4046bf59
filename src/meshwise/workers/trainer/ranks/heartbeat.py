"""A thread of each worker that tells the others it is alive, agrees with them when to stop, and names who is behind when nothing moves.

It talks through the store on a connection of its own, so that it goes on while collectives wait. A step costs it nothing.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from meshwise.workers.trainer.ranks.faults import Failure, Trouble, end, failure_of
from meshwise.workers.trainer.ranks.meeting import STOP_FILE, Place, connect, meet
from meshwise.workers.trainer.ranks.speech import say
from meshwise.workers.trainer.settings import Settings

GRACE = 1.5
"""Seconds in which the launcher says that a SIGTERM is a wish to stop; without a word from it, torchrun wants the worker gone."""


@dataclass(frozen=True)
class Beat:
    """A sign of life."""

    count: int
    done: int
    """Steps."""
    node: int
    host: str
    pid: int
    where: str = ""
    """What the main thread is at, where it has not moved for long."""


class Heartbeat:
    def __init__(self, settings: Settings, place: Place) -> None:
        self.settings, self.place, self.folder = settings, place, Path(settings.out)
        self.done = self.begun = self.count = 0
        self.interval = min(1.0, settings.timeout / 10)
        self.store = connect(place, max(settings.timeout, 60.0))
        self.moved = time.monotonic()
        self.stop = ""
        self.agreed = threading.Condition()
        self.limit: int | None = None
        self.last: int | None = None
        self.before: dict[int, Beat] | None = None
        self.main = threading.main_thread().ident or 0
        self.stop_file = Path(os.environ[STOP_FILE]) if STOP_FILE in os.environ else None
        self.signals, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, _nothing)  # the byte in the pipe says it, even while the main thread waits in a collective
        self.closed = self.inside = False
        """Whether the run is over, and whether a step is under way."""
        self._beat()
        self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.thread.start()

    # what the loop calls

    def began(self, done: int) -> None:
        """A run goes on after `done` steps."""
        self.begun = done

    def begin(self, done: int) -> bool:
        """`done` steps are done and the next begins; False where all ranks agreed to do no more."""
        with self.agreed:
            self.done, self.moved, self.before, self.inside = done, time.monotonic(), None, False
            asked = self.stop_file is not None and self.last is None and self.stop_file.exists()
            if asked:
                os.write(self.wake, b"\0")  # the thread may sleep for a second, which is many small steps
            # no rank goes further than it said until all have said how far they are
            while not self.closed and self.last is None and (asked if self.limit is None else done >= self.limit):
                self.agreed.wait(1.0)
            self.inside = self.last is None or done < self.last
            return self.inside

    def moves(self) -> None:
        """Something other than a step goes on."""
        self.moved, self.before = time.monotonic(), None

    def stopped(self, done: int, *, saved: bool) -> None:
        """All ranks have stopped, as they were asked to."""
        if not saved:
            words = f"stopped by a signal after step {done}; nothing was saved: --checkpoint-every is 0"
            raise Trouble("stopped", words, step=done)
        if self.place.rank == 0 and not done:
            say("stopped by a signal before the first step: the same command begins again")
        elif self.place.rank == 0:
            say(f"stopped by a signal after step {done}, which is saved: the same command goes on from there")

    def close(self) -> None:
        self.closed = True
        self.thread.join(5.0)

    def fail(self, failure: Failure) -> None:
        """Tell why, once for all ranks, and end. A rank that lost its peers asks who was the first."""
        try:
            found = self._peers_lost(failure) if failure.kind == "lost" else failure
            told, first = self._claim(found)
        except Exception:  # the store is gone too
            told, first = failure, True
        told.tell(self.folder, first=first)

    # the thread

    def _run(self) -> None:
        while not self.closed:
            agreeing = self.limit is not None and self.last is None  # the main thread may wait for it
            if select.select([self.signals], [], [], 0.05 if agreeing else self.interval)[0]:
                os.read(self.signals, 64)
                self._signalled()
            try:
                for each in (self._beat, self._agree, self._watch):
                    each()
            except Exception as error:
                # the store ends with a run: another rank may just have been quicker
                time.sleep(5 * self.interval)
                if self.closed:
                    return
                self._end(
                    self._failure(
                        "lost", f"the store of the run does not answer rank {self.place.rank} any more ({_first_line(error)})"
                    )
                )

    def _beat(self) -> None:
        self.count += 1
        where = _where(self.main) if time.monotonic() - self.moved > self.settings.timeout / 3 else ""
        beat = Beat(self.count, self.done, self.place.node, self.place.host, os.getpid(), where)
        self.store.set(f"beat/{self.place.rank}", json.dumps(asdict(beat)))

    def _signalled(self) -> None:
        """SIGTERM and SIGINT: from torchrun, where another worker has died, they end this one at once."""
        until = time.monotonic() + GRACE
        while self.stop_file and not self.stop_file.exists():
            if time.monotonic() > until:
                end(128 + signal.SIGTERM)
            time.sleep(0.05)
        self.stop = "a signal"

    def _agree(self) -> None:
        """Each rank promises to go no further than the step it is in, if any; the furthest of these steps is the last for all."""
        if self.stop_file and not self.stop and self.stop_file.exists():
            self.stop = "a signal"
        if self.last is not None:
            return
        if self.stop:
            self.store.set("stop", self.stop)
        if self.limit is None:
            if not self.store.check(["stop"]):
                return
            with self.agreed:
                self.limit = self.done + self.inside
                self.agreed.notify_all()
            self.store.set(f"limit/{self.place.rank}", str(self.limit))
        keys = [f"limit/{rank}" for rank in range(self.place.world)]
        if self.store.check(keys):
            with self.agreed:
                self.last = max(int(value) for value in self.store.multi_get(keys))
                self.agreed.notify_all()

    def _watch(self) -> None:
        """Look at the others when nothing has moved for half of the time-out, and again at its end."""
        still = time.monotonic() - self.moved
        if still < self.settings.timeout / 2 or self.done >= self.settings.steps:
            return
        before = self.before
        if before is None:
            self.before = self._beats()
        elif still >= self.settings.timeout:
            now = self._beats()
            behind, why = suspects(before, now, self.place.world)
            if time.monotonic() - self.moved >= still:  # else the main thread has moved just now
                found = self._failure("hang", _named(behind, now, self.place.world) + why, min(behind), now)
                self._end(found, kill=behind, beats=now)

    def _end(self, failure: Failure, kill: "tuple[int, ...]" = (), beats: "dict[int, Beat] | None" = None) -> None:
        try:
            told, first = self._claim(failure)
        except Exception:
            told, first = failure, True
        for rank in kill:
            beat = (beats or {}).get(rank)
            if first and beat and beat.node == self.place.node and beat.pid != os.getpid():
                _kill(beat.pid)  # a worker that is stopped would keep torchrun waiting
        told.tell(self.folder, first=first)

    def _failure(self, kind: str, message: str, rank: int | None = None, beats: "Mapping[int, Beat] | None" = None) -> Failure:
        """Of this rank, or of another as its last beat tells."""
        who = self.place.rank if rank is None else rank
        beat = (beats or {}).get(who)
        host, done = (beat.host, beat.done) if beat else (self.place.host, self.done)
        return Failure(kind, who, host, min(done + 1, self.settings.steps), message)

    def _claim(self, failure: Failure) -> tuple[Failure, bool]:
        """The first failure that was told of this start, and whether it is this one."""
        mine = json.dumps(asdict(failure))
        held = self.store.compare_set("failure", "", mine).decode()
        return Failure(**json.loads(held)), held == mine

    def _beats(self) -> dict[int, Beat]:
        ranks = range(self.place.world)
        if self.store.check([f"beat/{rank}" for rank in ranks]):
            found = self.store.multi_get([f"beat/{rank}" for rank in ranks])
            return {rank: Beat(**json.loads(value)) for rank, value in zip(ranks, found, strict=True)}
        present = [rank for rank in ranks if self.store.check([f"beat/{rank}"])]
        return {rank: Beat(**json.loads(self.store.get(f"beat/{rank}"))) for rank in present}

    def _peers_lost(self, failure: Failure) -> Failure:
        """Who of the others is silent, where none has said why it failed."""
        before = self._beats()
        until = time.monotonic() + 4 * self.interval
        while time.monotonic() < until:
            if self.store.check(["failure"]):
                return failure
            time.sleep(self.interval / 4)
        now = self._beats()
        silent = tuple(rank for rank in range(self.place.world) if _silent(rank, before, now))
        if not silent:
            return failure
        return self._failure("gone", _named(silent, now, self.place.world) + " died without a word", min(silent), now)


def suspects(before: dict[int, Beat], now: dict[int, Beat], world: int) -> tuple[tuple[int, ...], str]:
    """Who holds up a run, and how that shows: ranks that are silent, or have done fewer steps, or wait elsewhere than most."""
    silent = tuple(rank for rank in range(world) if _silent(rank, before, now))
    if silent:
        return silent, " does not answer" if len(silent) == 1 else " do not answer"
    fewest = min(beat.done for beat in now.values())
    slow = tuple(rank for rank, beat in now.items() if beat.done == fewest)
    if len(slow) < world:
        return slow, f": no progress in {now[slow[0]].where or 'a step'}, the others are further"
    places = Counter(beat.where for beat in now.values())
    rarest, number = places.most_common()[-1]
    if number < world / 2:
        usual = places.most_common(1)[0][0]
        return tuple(
            rank for rank, beat in now.items() if beat.where == rarest
        ), f": no progress in {rarest}, the others wait in {usual}"
    return tuple(range(world)), f": no progress in {rarest}, and none is behind the others"


def _silent(rank: int, before: dict[int, Beat], now: dict[int, Beat]) -> bool:
    return rank not in now or (rank in before and before[rank].count == now[rank].count)


def _named(ranks: tuple[int, ...], beats: dict[int, Beat], world: int) -> str:
    """'rank 3 on node-b (pid 71, last seen in step 12)'; many ranks of a host in short."""
    if len(ranks) == world > 1:
        return f"all {world} ranks, in step {1 + max(beat.done for beat in beats.values())}"
    if len(ranks) == 1:
        beat = beats.get(ranks[0])
        return f"rank {ranks[0]}" + (
            f" on {beat.host} (pid {beat.pid}, last seen in step {beat.done + 1})" if beat else ", which never began,"
        )
    hosts = sorted({beats[rank].host for rank in ranks if rank in beats})
    return f"ranks {', '.join(map(str, ranks))}" + (f" on {', '.join(hosts)}" if hosts else "")


def _where(thread: int) -> str:
    """The innermost line of this program that a thread is at, such as 'data.py:72 own_batch'."""
    frame: FrameType | None = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    own = str(Path(__file__).parent)
    while frame and not frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}" if frame else "no line of the trainer"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _nothing(number: int, frame: FrameType | None) -> None:
    return


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def guarded(settings: Settings, device: torch.device) -> Generator[Heartbeat]:
    """Around a run: its process group and heartbeat; an exception becomes a failure that is told and kept, and the end of the process."""
    place, heart = Place.here(), None
    try:
        if place.world != settings.layout.devices:
            raise Trouble("error", f"the layout has {settings.layout.devices} devices, and {place.world} workers were started")
        meet(place, device, settings.timeout)
        heart = Heartbeat(settings, place)
        yield heart
        dist.barrier()  # the store may be on rank 0: nobody leaves while another still beats
        heart.close()
        dist.destroy_process_group()
    except BaseException as error:
        done = min(heart.done, settings.steps - 1) if heart else 0  # behind the last step there is no other
        failure = failure_of(error, place.rank, place.host, done, heart.begun if heart else 0)
        if failure.kind == "error" and not isinstance(error, Trouble | SystemExit):
            say(traceback.format_exc().rstrip(), sys.stderr)
        if heart is None:
            failure.tell(Path(settings.out))
        heart.fail(failure)
