"""Workers: start the processes of a run and pass on what they print; on a terminal with a bar of the time left."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

from meshwise import launch
from meshwise.errors import UserError
from meshwise.launch import Launch

STEP = re.compile(r"step +(\d+)/\d+ ")


def write(ready: Launch, out: Path) -> Path:
    """The settings that the workers read, in the folder of the run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        ready.settings.write(out / "config.json")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
    return out / "config.json"


def environment(ready: Launch) -> dict[str, str]:
    # passive: where other programs want the cores, threads that spin while they wait take them from the ones that compute
    return {"OMP_NUM_THREADS": launch.threads(ready.settings), "OMP_WAIT_POLICY": "passive"} | dict(os.environ)


def follow(command: Sequence[str], environment: Mapping[str, str], steps: int) -> int:
    """Run to the end, and give the exit code. What workers print goes where ours does, at once."""
    if not sys.stdout.isatty():
        return subprocess.run(command, env=environment, check=False).returncode
    return _with_bar(command, environment, steps)


def quietly(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Run to the end with all that is printed in a file."""
    with log.open("w", encoding="utf-8") as file:
        return subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False).returncode


def _with_bar(command: Sequence[str], environment: Mapping[str, str], steps: int) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(markup=False, emoji=False, highlight=False)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"))
    errors = subprocess.PIPE if sys.stderr.isatty() else None  # else it is kept apart, as whoever sent it elsewhere wants
    with (
        Progress(*columns, console=console, transient=True) as bar,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace") as workers,
    ):
        task = bar.add_task(
            "training", total=steps, start=False
        )  # the time left is told from steps, not from the start of PyTorch

        def pass_on(stream: IO[str]) -> None:
            for line in stream:
                console.print(line.rstrip("\n"), soft_wrap=True)
                if found := STEP.match(line):
                    bar.start_task(task)
                    bar.update(task, completed=int(found[1]))

        readers = [Thread(target=pass_on, args=(stream,), daemon=True) for stream in (workers.stdout, workers.stderr) if stream]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return workers.wait()
