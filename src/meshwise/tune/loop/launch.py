"""Start the script of a run with the user's command, once; and see when it has ended, and how.

Everything is told by files in the run's folder, so that a loop that was killed finds out on its next start, here or on another host:

launch.sh     runs the user's command, if it is the first to create launch.pid
launch.log    what the command printed; launch.code: its exit code
output.log    the log of the run itself: its script redirects its output
started       the script has begun; ended: it has ended, with this exit code
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run.children import descendants, running
from meshwise.run.train.submit import LOOKS_UNTIL_GONE, WAITING, job_state

How = Literal["exit", "launch", "timeout", "lost"]
LAST_LINES_SHOWN = 5  # lines of output that an error shows
GRACE_SECONDS = 5.0  # seconds between asking processes to end and killing them
LOG = "output.log"
KILLED: dict[str, How] = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "OUT_OF_MEMORY": "exit", "FAILED": "exit"}
"""How a job ended that Slurm killed, by its state; every other state (CANCELLED, NODE_FAIL, PREEMPTED) says nothing about its layout."""
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)

WRAPPER = """#!/bin/bash
# Starts this run once: whoever creates launch.pid first.
cd -- {folder} || exit 1
set -o noclobber
{{ echo "$$ $(hostname)" > launch.pid; }} 2> /dev/null || exit 0
set +o noclobber
(
{command}
) > launch.log 2>&1 < /dev/null
code=$?
{follow}echo "$code" > launch.code.new
mv launch.code.new launch.code
"""
FOLLOW = """if [ "$code" = 0 ]; then
(
{command}
) > output.log 2>&1 < /dev/null
fi
"""
MARKERS = """
# Added by 'meshwise tune': the log of this run, and files that tell its start and its end.
TUNE_RUN={folder}
if [ "${{NODE_RANK:-0}}" = 0 ]; then
  rm -f "$TUNE_RUN/ended"
  trap 'code=$?; echo "$code" > "$TUNE_RUN/ended.new"; mv "$TUNE_RUN/ended.new" "$TUNE_RUN/ended"' EXIT
  : > "$TUNE_RUN/started"
fi
exec >> "$TUNE_RUN/output.log" 2>&1
"""


@dataclass(frozen=True)
class End:
    """How a run ended."""

    how: How
    """exit: its script, or its command; launch: its command failed before the script began; timeout: it was ended; lost: it is gone
    without an exit code."""
    code: int = 0
    seconds: float = 0.0  # from the start of its script to its end
    state: str = ""  # the last state that Slurm told, where the script did not tell its end itself


@dataclass(frozen=True)
class Job:
    """A run to start: its folder, the user's command, and the command that prints its log, if it cannot write into the folder."""

    folder: Path
    command: str
    follow: str = ""
    environment: Mapping[str, str] | None = None

    # Starting.

    def start(self) -> None:
        """Run the command, unless it was run before. It outlives this process."""
        follow = FOLLOW.format(command=self.follow) if self.follow else ""
        text = WRAPPER.format(folder=shlex.quote(str(self.folder)), command=self.command, follow=follow)
        files.write(self.folder / "launch.sh", text)
        # bash ends at once and leaves its child to the system: no process of ours must wait for it
        words = ["bash", "-c", "bash launch.sh > /dev/null 2>&1 &"]
        subprocess.run(words, cwd=self.folder, env={**os.environ, **(self.environment or {})}, start_new_session=True, check=True)

    @property
    def begun(self) -> bool:
        """Whether the command was run."""
        return (self.folder / "launch.pid").exists()

    # Looking.

    def look(self, timeout: float, gone: int = 0) -> End | None:
        """Return how the run ended; None while it waits or runs. `gone`: how often in a row a queue did not know it."""
        end = self._exit_code("ended")
        if end is not None:
            requeued = end >= 128 and self.state in WAITING  # preempted, and put back into the queue
            return None if requeued else End("exit", end, self._wall("ended"))
        code = self._exit_code("launch.code")
        if code is not None:
            return self._after_launch(code, gone) or self._overdue(timeout)
        if self.begun and not self._wrapper_lives():
            # it may have ended, and the wrapper as well, since the files were looked at
            code = self._exit_code("launch.code")
            return self._after_launch(code, gone) if code is not None else End("lost", -1, self._wall("launch.log"))
        return self._overdue(timeout)

    def _after_launch(self, code: int, gone: int) -> End | None:
        """Return the end of a run whose command has returned: it may only have submitted the run."""
        started = (self.folder / "started").exists()
        if self.follow and not code:
            return End("exit", 0, self._wall("launch.code"))
        if code:
            return End("exit" if started else "launch", code, self._wall("launch.code") if started else 0.0)
        return self._killed() if self.job and gone >= LOOKS_UNTIL_GONE else None

    def _killed(self) -> End:
        """Return the end of a job whose script could not tell it: Slurm killed it, or lost it."""
        state = self.state
        return End(KILLED.get(state, "lost"), -1, self._wall(LOG), state)

    def _overdue(self, timeout: float) -> End | None:
        begun = self._time("launch.pid" if self.follow else "started")
        if begun is None or time.time() - begun < timeout:
            return None
        self.cancel()
        return End("timeout", -1, timeout)

    @property
    def state(self) -> str:
        """The state of a submitted Slurm job; '' where there is none, or Slurm does not know it (any more)."""
        return job_state(self.job) if self.job and shutil.which("squeue") else ""

    @property
    def is_gone(self) -> bool:
        """Whether the run is a job that Slurm has ended or forgotten."""
        return bool(self.job) and shutil.which("squeue") is not None and self.state not in ("RUNNING", "COMPLETING", *WAITING)

    @property
    def job(self) -> str:
        """The number of a submitted Slurm job; '' where the command submitted none."""
        if "sbatch" not in self.command or not (self.folder / "launch.code").exists():
            return ""
        match = _SUBMITTED.search(tail(self.folder / "launch.log"))
        return match[1] if match else ""

    def _wrapper_lives(self) -> bool:
        """Return whether the wrapper still runs. On another host nobody can say: it counts as running."""
        pid, host = self._pid()
        return host != socket.gethostname() or (pid > 0 and bool(running([pid])) and self._is_wrapper(pid))

    def _pid(self) -> tuple[int, str]:
        words = tail(self.folder / "launch.pid").split()
        return (int(words[0]), words[1]) if len(words) == 2 and words[0].isdecimal() else (0, socket.gethostname())

    def _is_wrapper(self, pid: int) -> bool:
        """Return whether a process is a launch.sh, and not another one with the same number."""
        try:
            return b"launch.sh" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return True  # a system without /proc

    def _exit_code(self, name: str) -> int | None:
        text = tail(self.folder / name).strip()
        return int(text) if text.isdecimal() else None

    def _time(self, name: str) -> float | None:
        try:
            return (self.folder / name).stat().st_mtime
        except OSError:
            return None

    def _wall(self, last: str) -> float:
        begun, ended = self._time("started") or self._time("launch.pid"), self._time(last)
        return max(0.0, ended - begun) if begun and ended else 0.0

    # Ending.

    def cancel(self) -> None:
        """End the run: its job in the queue, or its processes on this host."""
        if self.job and shutil.which("scancel"):
            subprocess.run(["scancel", self.job], capture_output=True, check=False)
        words = shlex.split(self.command)
        if words and words[0] == "kubectl" and "-f" in words:
            manifest = words[words.index("-f") + 1]
            subprocess.run(["kubectl", "delete", "--wait=false", "-f", manifest], capture_output=True, check=False)
        pid, host = self._pid()
        if pid and host == socket.gethostname() and self._is_wrapper(pid):
            _end([pid, *descendants(pid)])


def _end(pids: list[int]) -> None:
    """Ask processes to end, and kill those that still run after a while."""
    for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        for pid in running(pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + patience
        while running(pids) and time.monotonic() < until:
            time.sleep(0.05)


def with_markers(script: str, folder: Path) -> str:
    """Return a script that logs into a folder and tells its start and its end there; its header, with #SBATCH lines, stays on top."""
    lines = script.splitlines(keepends=True)
    header = next((number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return "".join([*lines[:header], MARKERS.format(folder=shlex.quote(str(folder))).lstrip("\n"), *lines[header:]])


def filled(command: str, values: Mapping[str, str]) -> str:
    """Return a command with its placeholders filled in, as single words of a shell."""
    for name, value in values.items():
        command = command.replace(f"{{{name}}}", shlex.quote(value))
    return command


def tail(path: Path, size: int = 1 << 16) -> str:
    """Return the last bytes of a file as text; '' where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def last_lines(path: Path, count: int = LAST_LINES_SHOWN) -> str:
    """Return the last lines of a file in one line; 'it printed nothing' where there are none."""
    lines = [line.strip() for line in tail(path).splitlines() if line.strip()]
    return " | ".join(line[:300] for line in lines[-count:]) or "it printed nothing"


def launch_failed(job: Job, code: int) -> UserError:
    """Return the error for a command that failed before its run began."""
    return UserError(
        f"--launch: the command ended with exit code {code} before the run began, so nothing was measured: "
        f"{last_lines(job.folder / 'launch.log')}"
    )
