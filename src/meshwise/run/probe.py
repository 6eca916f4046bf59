"""Run the probe's program on this machine, and file what it found in the user's folder."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from meshwise.calibrate.train import probe
from meshwise.calibrate.train.probe import Machine, Row
from meshwise.catalogue import files, records
from meshwise.catalogue import files as catalogue
from meshwise.catalogue.calibrations import COEFFICIENTS
from meshwise.catalogue.chips import HERE, part_of_here
from meshwise.errors import DoesNotFit, UserError

KEPT = "probes"
"""The sub-folder of the user's folder that keeps the rows."""
TOGETHER = 0.35
"""Share of the time for several processes, where a first part measures one alone (on a CPU they share its cores)."""
LONGER = 4.0
"""A worker that takes so many times as long as it was given hangs."""


@dataclass(frozen=True)
class Session:
    """One start of the probe's program."""

    key: str
    ranks: int
    seconds: float


def sessions(device: str, ranks: int, seconds: float) -> list[Session]:
    """On GPUs one, of all of them. On a CPU one process with all cores, and then several that share them."""
    if device == "cuda" or ranks == 1:
        return [Session(HERE, ranks, seconds)]
    return [Session(HERE, 1, seconds * (1 - TOGETHER)), Session(part_of_here(ranks), ranks, seconds * TOGETHER)]


def usual_ranks(device: str, gpus: int) -> int:
    return gpus if device == "cuda" else 2 if (os.cpu_count() or 1) > 1 else 1


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "'meshwise probe' needs PyTorch, which is not installed: pip install '.[train]' in the folder of meshwise"
        )


def measure(session: Session, device: str, say: Callable[[str, int], None]) -> list[Row]:
    """Start the program and read its rows; `say` hears what is measured, and the percentage that is done."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows.jsonl")
        words = ["-m", "meshwise.workers.probe", str(file), f"{session.seconds:g}", device]
        if session.ranks > 1:
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(session.ranks), *words]
        lines: list[str] = []
        with _started([sys.executable, *words], session, device) as worker:
            watch = Timer(LONGER * session.seconds + 120, worker.kill)  # a driver or a network that hangs must not hang us
            watch.start()
            for line in _lines(worker):
                done, _, what = line.strip().partition("%  ")
                if what and done.isdecimal():
                    say(what, int(done))
                else:
                    lines.append(line.rstrip())
            watch.cancel()
            code = worker.wait()
        if code or not file.is_file():
            reason = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no reason given")
            raise DoesNotFit(f"the probe stopped with exit code {code}: {reason.strip()}")
        return probe.read(file)


def _started(command: list[str], session: Session, device: str) -> subprocess.Popen[str]:
    threads = max(1, (os.cpu_count() or 1) // session.ranks) if device == "cpu" else 8
    # passive, as `meshwise run` has it: threads that spin while they wait take cores from the ones that compute
    own = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own | dict(os.environ))


def _lines(worker: subprocess.Popen[str]) -> Iterator[str]:
    assert worker.stdout is not None
    yield from worker.stdout


def file_away(rows: list[Row], key: str) -> Machine:
    """Fit the rows, and write the chip, its calibration and the rows themselves to the user's folder."""
    home = catalogue.user_folder()
    for old in (*home.glob(f"chips/{HERE}*.toml"), *home.glob("calibration/probe*.toml")) if key == HERE else ():
        old.unlink(missing_ok=True)  # of another version, or another machine
    found = probe.machine(rows, key)
    for kind in ("chips", "calibration", KEPT):
        try:
            (home / kind).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {home / kind}: {error.strerror}; MESHWISE_HOME names another") from None
    head = f"# Written by 'meshwise probe' on {rows[0]['date']}."
    files.write(home / KEPT / f"{key}.jsonl", lines_of(rows))
    files.write(home / "chips" / f"{key}.toml", records.toml(found.chip, head))
    files.write(home / "calibration" / f"{calibration_key(key)}.toml", records.toml(found.calibration, head, COEFFICIENTS[0]))
    return found


def lines_of(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def calibration_key(key: str) -> str:
    """'here' is filed as 'probe', so that `plan --on 1xh200 --calibration probe` says what it means."""
    return "probe" + key.removeprefix(HERE)


def kept() -> dict[str, list[Row]]:
    """The rows of the probes that were filed, by chip."""
    found = catalogue.files(KEPT, ".jsonl")
    if not found:
        raise UserError("this machine was not measured yet: run 'meshwise probe'")
    return {key: probe.read(path) for key, path in found.items()}
