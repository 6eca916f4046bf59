"""Runs of meshwise's trainer that a server forks: for benchmarks of `tune`, in which starting Python and torch takes longer than the steps.

A subject hands a run to the server through a pipe, as `sbatch` does, and waits for the run's files. The server has imported torch, and
forks a worker for each rank of a run.
"""

import multiprocessing
import os
import shlex
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from meshwise.run.train import launch
from meshwise.tune.loop.launch import LOG, Job
from meshwise.tune.loop.training import Training
from meshwise.workers.trainer.contract.process.parent import die_with
from meshwise.workers.trainer.contract.settings import Settings

LONGEST = 90.0
"""Seconds of a run, at most."""
TRAINER = "meshwise.workers.trainer.loop"
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.triton")
"""Modules that compiled runs import."""


class Forked(Training):
    """A training plan whose candidates run in processes that the server forks, and not under `meshwise run`."""

    queue = Path("queue")

    def prepare(self, row: int, number: int, folder: Path) -> Job:
        super().prepare(row, number, folder)
        (folder / "out").mkdir(exist_ok=True)
        launch.prepare(self.own_run(row, folder)).settings.write(folder / "settings.json")
        return self.job(row, number, folder)

    def job(self, row: int, number: int, folder: Path) -> Job:
        return Job(folder, f"echo {shlex.quote(str(folder))} > {shlex.quote(str(self.queue))}")


def seconds_of(subject: Training, row: int, folder: Path) -> float | None:
    """Run one candidate as `tune` does, and return the seconds of its step; None where it fails."""
    job = subject.prepare(row, 1, folder)
    job.start()
    while (end := job.look(LONGEST)) is None:
        time.sleep(0.05)
    return subject.read(row, folder, end).seconds


def run_all(folders: Sequence[Path]) -> list[Path]:
    """Run the settings in these folders side by side, and return the folders whose runs failed."""
    Forked.queue.write_text("\t".join(map(str, folders)) + "\n")
    while not all((folder / "ended").exists() for folder in folders):
        time.sleep(0.1)
    return [folder for folder in folders if (folder / "ended").read_text().strip() != "0"]


@contextmanager
def server(folder: Path, imported: Sequence[str] = ()) -> Generator[None]:
    """Serve runs until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as `meshwise run` sets it
    Forked.queue = folder.absolute() / "queue"
    Forked.queue.unlink(missing_ok=True)
    os.mkfifo(Forked.queue)
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(Forked.queue, (*imported, TRAINER)))
    process.start()
    try:
        yield
    finally:
        process.kill()


def _serve(queue: Path, imported: Sequence[str]) -> None:
    """Run the folders that are written into a pipe: those of one line side by side, line after line."""
    for name in imported:
        import_module(name)
    die_with(os.getppid())
    # a process that has opened a GPU cannot hand it on
    opened = any(os.readlink(f"/proc/self/fd/{name}").startswith("/dev/nvidia") for name in _open_files())
    method = "spawn" if opened else "fork"
    print(f"workers start by {method}", flush=True)
    while True:
        with queue.open() as lines:
            asked = [[Path(folder) for folder in line.split("\t")] for line in lines.read().splitlines()]
        for folders in asked:
            _run(folders, method)


def _open_files() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


def _run(folders: Sequence[Path], method: str) -> None:
    """Run some folders side by side, each with as many processes as its layout has devices."""
    context: Any = multiprocessing.get_context(method)
    runs = [(folder, Settings.read(folder / "settings.json").layout.devices, free_port()) for folder in folders]
    workers = {
        folder: [context.Process(target=_work, args=(folder, rank, ranks, port)) for rank in range(ranks)]
        for folder, ranks, port in runs
    }
    for folder, processes in workers.items():
        (folder / "started").touch()
        for process in processes:
            process.start()
    until = time.monotonic() + LONGEST
    for folder, processes in workers.items():
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        (folder / "ended").write_text(f"{max(abs(process.exitcode or 0) for process in processes)}\n")


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _work(folder: Path, rank: int, ranks: int, port: int) -> None:
    """Train as one rank with the settings in a folder, in this process."""
    import torch

    from meshwise.workers.trainer.loop import train

    sizes = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    os.environ.update({name: str(value) for name, value in sizes.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    with (folder / LOG).open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        train(Settings.read(folder / "settings.json"))
