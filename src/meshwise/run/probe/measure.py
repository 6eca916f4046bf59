"""Start the program `meshwise.workers.probe` on this machine and read its rows."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from threading import Timer

from meshwise.calibrate.train import probe
from meshwise.calibrate.train.probe import Row
from meshwise.catalogue import here
from meshwise.catalogue.chips import PROBED_CHIP, part_of_here
from meshwise.errors import DoesNotFit, UserError
from meshwise.run.callbacks import Progress
from meshwise.run.children import end_tree, interrupt_on_stop, with_parent
from meshwise.run.meter import Meter
from meshwise.run.packages import require_torch
from meshwise.run.probe import power
from meshwise.run.probe.ask import ProbeAsk
from meshwise.run.probe.power import Phases
from meshwise.run.scratch import ScratchFile

TOGETHER_TIME_SHARE = 0.35
"""Share of the time for several processes on a CPU, which share its cores; before them, one process is measured alone."""
HANG_TIME_FACTOR = 4.0  # a worker that takes this many times its planned time is assumed to hang
GRACE_SECONDS = 1.0  # seconds that an interrupted worker has to end


@dataclass(frozen=True)
class Session:
    """One start of the probe's program."""

    key: str  # name of the chip that it measures
    ranks: int
    seconds: float


def measure_all(ask: ProbeAsk, progress: Progress) -> dict[str, list[Row]]:
    """Measure this machine; return rows by the name of the chip that they describe."""
    gpus = len(here.gpus())
    device = ask.device or here.device()
    if device == "cuda" and not gpus:
        raise UserError("--device cuda: nvidia-smi lists no GPU; --device cpu measures the CPU")
    count = ask.ranks or usual_ranks(device, gpus)
    if device == "cuda" and count > gpus:
        raise UserError(f"--ranks {count}: this machine has {gpus} GPUs")
    require_torch("probe")
    rows: dict[str, list[Row]] = {}
    starts = sessions(device, count, ask.seconds)
    for number, session in enumerate(starts):

        def update(what: str, done: int, number: int = number, key: str = session.key) -> None:
            progress(f"{key}: {what}", 100 * number + done, 100 * len(starts))

        rows[session.key] = measure(session, device, update)
    return rows


def sessions(device: str, ranks: int, seconds: float) -> list[Session]:
    """Return the starts of the program: on GPUs one with all of them; on a CPU one process with all cores, then several that share them."""
    if device == "cuda" or ranks == 1:
        return [Session(PROBED_CHIP, ranks, seconds)]
    return [
        Session(PROBED_CHIP, 1, seconds * (1 - TOGETHER_TIME_SHARE)),
        Session(part_of_here(ranks), ranks, seconds * TOGETHER_TIME_SHARE),
    ]


def usual_ranks(device: str, gpus: int) -> int:
    return gpus if device == "cuda" else 2 if (os.cpu_count() or 1) > 1 else 1


def measure(session: Session, device: str, update: Callable[[str, int], None]) -> list[Row]:
    """Run the program and read its rows, with the power of each phase. `update` gets the name of the current measurement and the percentage
    that is done."""
    phases = Phases()
    with ScratchFile() as file, Meter(devices=session.ranks) as meter:
        if meter.source:
            phases.begin(power.IDLE)
            update(power.IDLE, 0)
            time.sleep(min(power.MAX_IDLE_SECONDS, power.IDLE_TIME_SHARE * session.seconds))
            phases.begin("start")
        several = ["meshwise.workers.local", str(session.ranks)] if session.ranks > 1 else []
        words = ["-m", *several, "meshwise.workers.probe", str(file.path), f"{session.seconds:g}", device]
        lines: list[str] = []
        with _start([sys.executable, *words], session, device) as worker:
            for line in _lines(worker):
                done, _, what = line.strip().partition("%  ")
                if what and done.isdecimal():
                    phases.begin(what)
                    update(what, int(done))
                else:
                    lines.append(line.rstrip())
            code = worker.wait()
        if code or not file.path.stat().st_size:
            reason = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no reason given")
            raise DoesNotFit(f"the probe stopped with exit code {code}: {reason.strip()}")
        rows = probe.read(file.path)
    return [*rows, *phases.rows(meter, session.ranks)]


@contextlib.contextmanager
def _start(command: list[str], session: Session, device: str) -> Generator["subprocess.Popen[str]"]:
    """Start the program; it and its workers are ended with the block, also by Ctrl-C or SIGTERM."""
    threads = max(1, (os.cpu_count() or 1) // session.ranks) if device == "cpu" else 8
    # passive, as in `meshwise run`: threads that spin while they wait take cores from those that compute
    defaults = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    with (
        interrupt_on_stop(),
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=defaults | dict(os.environ),
            start_new_session=True, preexec_fn=with_parent(),
        ) as worker,
    ):  # fmt: skip
        watch = Timer(
            HANG_TIME_FACTOR * session.seconds + 120, end_tree, (worker, GRACE_SECONDS)
        )  # a driver or network that hangs must not hang us
        watch.daemon = True
        watch.start()
        try:
            yield worker
        finally:
            watch.cancel()
            end_tree(worker, GRACE_SECONDS)


def _lines(worker: "subprocess.Popen[str]") -> Iterator[str]:
    assert worker.stdout is not None
    yield from worker.stdout
