"""A fork server: programs on torch as forks of one process that has imported it. Importing takes seconds, and three times that under
torchrun with two ranks.

torchrun itself is tested by runs that start as users start them.
"""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 300.0
SUPPORT = Path(__file__).parent
PROGRAM = SUPPORT / "nursery_worker.py"


class Nursery:
    """One process that has imported these modules, and forks programs."""

    def __init__(self, folder: Path, *modules: str, **environment: str) -> None:
        self.folder, self.count = folder, 0
        self.log = (folder / "nursery.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )  # fmt: skip

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(PATIENCE)
        self.log.close()

    def measure(self, worker: Path, cases: dict[str, Any], folder: Path, processes: int) -> dict[str, Any]:
        """Return what a worker, run with the files of cases and of what it sees, writes into the latter."""
        (folder / "cases.json").write_text(json.dumps(cases))
        self.run(str(worker), str(folder / "cases.json"), str(folder / "seen.json"), processes=processes)
        return json.loads((folder / "seen.json").read_text())

    def run(self, *command: str, processes: int = 1, **environment: str) -> str:
        """Run `python command` as this many ranks, all of which must exit with 0; return their output."""
        self.count += 1
        log = self.folder / f"{self.count}.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
        }
        job = {"command": command, "processes": processes, "environment": place | environment, "log": str(log)}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        printed = log.read_text() if log.exists() else (self.folder / "nursery.log").read_text()
        if not ready:
            self.process.kill()
            raise AssertionError(f"waited {PATIENCE:g} s: {printed[-6000:]}")
        codes = self.process.stdout.readline()
        printed = log.read_text() if log.exists() else (self.folder / "nursery.log").read_text()
        assert codes and json.loads(codes) == [0] * processes, f"exit codes {codes}{printed[-6000:]}"  # noqa: PT018
        return printed
