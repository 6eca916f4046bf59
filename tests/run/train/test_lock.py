"""One run at a time in a folder, also where workers outlive their launcher and where locks do not reach other hosts."""

import errno
import fcntl
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.run.train import lock
from meshwise.workers.trainer.contract.process import lease
from meshwise.workers.trainer.contract.process.stop import LOST_TERMINAL, STOPS, stop_signals
from support.command import one_line

WORKER = """
import sys, time
from pathlib import Path
from meshwise.workers.trainer.contract.process.lease import share
share(Path(sys.argv[1]))
print("works", flush=True)
time.sleep(600)
"""


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks."""

    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_run_waits_for_workers_that_outlive_their_launcher_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE) for _ in range(2)]
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == b"works\n"
    monkeypatch.setattr(lock, "ENDING_SECONDS", 0.3)
    with pytest.raises(UserError) as refused, lock.lock(tmp_path):
        pass
    assert "workers of an earlier run, such as process " in one_line(refused.value)
    monkeypatch.setattr(lock, "ENDING_SECONDS", 60)
    monkeypatch.setattr(lock, "QUIET_SECONDS", 0.0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        for worker in workers:
            worker.kill()

    with lock.lock(tmp_path, say=say):
        pass
    assert [line.split(" to end")[0] for line in said] == [f"waiting for the workers of an earlier run in {tmp_path}"]
    for worker in workers:
        worker.communicate()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_heartbeat_of_another_host_tells_whether_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.4)
    file, over = tmp_path / lease.LOCK, threading.Event()

    def elsewhere(beat: int) -> None:
        file.write_text(json.dumps({"process": 7, "host": "node-b", "beat": beat}))

    def beats() -> None:
        beat = 0
        while not over.wait(0.05):
            beat += 1
            elsewhere(beat)

    elsewhere(0)
    alive = threading.Thread(target=beats)
    alive.start()
    said: list[str] = []
    with pytest.raises(UserError) as refused, lock.lock(tmp_path, say=said.append):
        pass
    over.set()
    alive.join()
    assert f"--out {tmp_path}: process 7 on node-b is running in it" in one_line(refused.value)
    assert "waiting 0.4 s to see whether process 7 on node-b still runs in it" in said[0]
    with lock.lock(tmp_path):  # it is silent now
        held, until = json.loads(file.read_text())["beat"], time.monotonic() + 60
        while json.loads(file.read_text() or '{"beat": 0}')["beat"] == held:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert file.read_text() == ""  # released: the next run does not wait


def test_a_lost_terminal_stops_a_run_unless_it_was_started_with_nohup() -> None:
    program = "from meshwise.workers.trainer.contract.process.stop import stop_signals; print(*map(int, stop_signals()))"
    start = "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    usual = "import os, signal, sys; [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGHUP, signal.SIGQUIT)]"
    nohup = f"{usual}; signal.signal(signal.SIGHUP, signal.SIG_IGN)"  # whatever this process inherited
    assert set(STOPS) <= set(stop_signals())
    answers = [
        subprocess.run([sys.executable, *words, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        for words in (["-c", f"{usual}; {start}"], ["-c", f"{nohup}; {start}"])
    ]
    assert [set(map(int, answer)) for answer in answers] == [{*STOPS, *LOST_TERMINAL}, {*STOPS, LOST_TERMINAL[1]}]


@pytest.mark.parametrize(
    "name",
    [".lock", ".workers", "environment.json", "ranks.json", "measurement.jsonl", "steps.jsonl", "config.json", "report.md"],
)
def test_a_link_in_a_run_s_folder_is_not_written_through(name: str, tmp_path: Path) -> None:
    notes, out = tmp_path / "notes", tmp_path / "run"
    notes.write_text("mine")
    out.mkdir()
    (out / name).symlink_to(notes)
    with pytest.raises(UserError, match=f"{name} is a link"), lock.lock(out):
        pass
    assert notes.read_text() == "mine"
