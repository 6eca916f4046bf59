"""Workers: start the processes of a run and pass on what they print; on a terminal with a bar of the time left."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import FrameType
from typing import IO, Any

from meshwise.errors import UserError
from meshwise.run.train import hosts, launch
from meshwise.run.train.launch import Launch
from meshwise.workers.trainer.ranks.output import say

STOP_FILE = "MESHWISE_STOP"
STEP = re.compile(r"step +(\d+)/\d+ ")


def write(ready: Launch, out: Path) -> Path:
    """The settings that the workers read, in the folder of the run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        ready.settings.write(out / "config.json")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    return out / "config.json"


def reading(ready: Launch, out: Path, say: Callable[[str], None]) -> Launch:
    """The same with the token files it reads made; the folder first, for tokens may take a while."""
    write(ready, out)
    return ready.reading(say)


def environment(ready: Launch) -> dict[str, str]:
    # passive: where other programs want the cores, threads that spin while they wait take them from the ones that compute
    given = {"OMP_NUM_THREADS": launch.threads(ready), "OMP_WAIT_POLICY": "passive"} | dict(os.environ)
    return given | hosts.network(ready.hosts, os.environ) | dict(ready.hosts.worker)


def follow(command: Sequence[str], environment: Mapping[str, str], steps: int) -> tuple[int, bool]:
    """Run to the end: the exit code, and whether a signal asked for it. What workers print goes where ours does, at once."""
    if not sys.stdout.isatty():
        return supervise(command, environment)
    return _with_bar(command, environment, steps)


def quietly(command: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[int, bool]:
    """Run to the end with all that is printed in a file."""
    with log.open("w", encoding="utf-8") as file:
        return supervise(command, environment, stdout=file, stderr=subprocess.STDOUT)


def _with_bar(command: Sequence[str], environment: Mapping[str, str], steps: int) -> tuple[int, bool]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(markup=False, emoji=False, highlight=False)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    errors = subprocess.PIPE if sys.stderr.isatty() else None  # else it is kept apart, as whoever sent it elsewhere wants
    with Progress(*columns, console=console, transient=True) as bar:
        # the time left is told from steps, not from the start of PyTorch
        task = bar.add_task("training", total=steps, start=False)

        def pass_on(stream: IO[str]) -> None:
            for line in stream:
                console.print(line.rstrip("\n"), soft_wrap=True)
                if found := STEP.match(line):
                    bar.start_task(task)
                    bar.update(task, completed=int(found[1]))

        def read(workers: "subprocess.Popen[str]") -> None:
            streams = [stream for stream in (workers.stdout, workers.stderr) if stream]
            readers = [Thread(target=pass_on, args=(stream,), daemon=True) for stream in streams]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()

        return supervise(command, environment, read, stdout=subprocess.PIPE, stderr=errors)


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    beside: Callable[["subprocess.Popen[str]"], None] | None = None,
    **streams: Any,
) -> tuple[int, bool]:
    """The exit code of a command, and whether it was asked to stop. It has a session of its own: a terminal's Ctrl-C reaches only us.

    `streams` say where its output goes, and `beside` reads it where it comes to us.
    """
    with TemporaryDirectory(prefix="meshwise-") as folder:
        stop = Path(folder, "stop")
        process = subprocess.Popen(
            command,
            env=dict(environment) | {STOP_FILE: str(stop)},
            start_new_session=True,
            text=True,
            errors="replace",
            **streams,
        )

        def asked(number: int, frame: FrameType | None) -> None:
            if stop.exists():
                process.kill()
                return
            stop.touch()
            say(f"meshwise: {signal.Signals(number).name}: stopping when the step is done; once more ends it at once", sys.stderr)

        before = {one: signal.signal(one, asked) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            if beside is not None:
                beside(process)
            return process.wait(), stop.exists()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
            if process.poll() is None:
                process.kill()
                process.wait()
