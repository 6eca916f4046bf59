"""Start the workers of a run, pass on their output, and stop them on a signal."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO, Any

from meshwise.errors import UserError
from meshwise.output import ignore_broken_pipe
from meshwise.output import say as say_to
from meshwise.run.callbacks import Progress, Say, ignore
from meshwise.run.children import end_tree, handle_signals, with_parent
from meshwise.run.scratch import ScratchFile
from meshwise.run.train import hosts, launch, lock, secrets
from meshwise.run.train.launch import Launch
from meshwise.workers.secret import SECRET
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.process.stop import STOP_FILE, stop_signals

Watch = Callable[[], str]  # returns why the workers should stop after the current step, END to end them at once, or ''
END = "end"
STEP = re.compile(r"step +(\d+)/\d+ ")


def write_settings(ready: Launch, out: Path) -> Path:
    """Write config.json, which the workers read, into the run folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        ready.settings.write(out / "config.json")
        reach("launcher wrote settings")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    return out / "config.json"


def tokenize(ready: Launch, out: Path, say: Say) -> Launch:
    """Tokenize the data if needed. Creates the run folder first, since tokenizing can take minutes."""
    write_settings(ready, out)
    return ready.tokenize(say)


def environment(ready: Launch) -> dict[str, str]:
    """Return the workers' environment variables."""
    # passive: threads that spin while they wait would take cores from threads that compute
    given = {"OMP_NUM_THREADS": launch.threads(ready), "OMP_WAIT_POLICY": "passive"} | dict(os.environ)
    secret = {SECRET: secrets.of_run(Path(ready.settings.out), ready.hosts, os.environ)}
    return given | hosts.network(ready.hosts, os.environ) | dict(ready.hosts.worker) | secret


def follow(
    command: Sequence[str], environment: Mapping[str, str], steps: int, say: Say, progress: Progress | None = None,
    watch: Watch | None = None,
) -> tuple[int, bool]:  # fmt: skip
    """Run a command; return its exit code and whether a signal stopped it; with `progress` or in a notebook, its lines go to `say`."""
    if progress is None and sys.stdout is sys.__stdout__:
        return supervise(command, environment, watch=watch)
    update, say = ignore_broken_pipe(progress or ignore), ignore_broken_pipe(say)
    # standard error is kept apart where it was redirected
    errors = None if sys.stderr is sys.__stderr__ and not sys.stderr.isatty() else subprocess.PIPE

    def pass_on(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                say(line.rstrip("\n"))
                if match := STEP.match(line):
                    update("training", int(match[1]), steps)

    def read(workers: "subprocess.Popen[str]") -> None:
        streams = [stream for stream in (workers.stdout, workers.stderr) if stream]
        readers = [Thread(target=pass_on, args=(stream,), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    update("training", 0, steps)
    return supervise(command, environment, read, watch, stdout=subprocess.PIPE, stderr=errors)


def run_quietly(command: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[int, bool]:
    """Run a command to its end with all output in a file."""
    with log.open("w", encoding="utf-8") as file:
        return supervise(command, environment, stdout=file, stderr=subprocess.STDOUT)


def supervise(
    command: Sequence[str], environment: Mapping[str, str], read: Callable[["subprocess.Popen[str]"], None] | None = None,
    watch: Watch | None = None, **streams: Any,
) -> tuple[int, bool]:  # fmt: skip
    """Return the exit code of a command in its own session, and whether a signal stopped it; `watch`, called often, may end it."""
    asked = False
    with ScratchFile() as stop:
        process = subprocess.Popen(
            command, env=dict(environment) | {STOP_FILE: str(stop.path)}, start_new_session=True, preexec_fn=with_parent(),
            pass_fds=lock.descriptors(), text=True, errors="replace", **streams,
        )  # fmt: skip
        reach("launcher started agent")

        def request_stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if asked:
                process.kill()
                return
            asked = True
            stop.append(b"stop")
            name = signal.Signals(number).name
            say_to(f"meshwise: {name}: stopping after the current step; a second signal ends it at once", sys.stderr)

        with handle_signals(request_stop, *stop_signals()):
            try:
                if watch is not None:
                    Thread(target=_watch, args=(process, stop, watch), daemon=True).start()
                if read is not None:
                    read(process)
                return process.wait(), asked
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def _watch(process: "subprocess.Popen[str]", stop: ScratchFile, watch: Watch) -> None:
    """Stop or end a process when `watch` says so."""
    asked = False
    while process.poll() is None:
        reason = watch()
        if reason == END:
            end_tree(process, 0.0)
            return
        if reason and not asked:
            asked = True
            stop.append(reason.encode())
        time.sleep(0.5)
