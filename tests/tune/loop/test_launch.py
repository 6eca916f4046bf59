"""Starting a run: once, whatever happens; and knowing how it ended. Commands are real, run by bash."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from meshwise.run.children import running
from meshwise.tune.loop.launch import LOG, LOOKS_UNTIL_GONE, End, Job, filled, last_lines, with_markers

PATIENCE = 60.0


def job_of(folder: Path, body: str, command: str = "bash {script}", follow: str = "") -> Job:
    """Return a run of a script with markers."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.sh"
    script.write_text(with_markers(f"#!/bin/bash\n# a header\n{body}\n", folder))
    values = {"script": str(script), "folder": str(folder)}
    return Job(folder, filled(command, values), filled(follow, values))


def ended(job: Job, timeout: float = 600.0) -> End:
    """Wait for the end of a run."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        end = job.look(timeout)
        if end is not None:
            return end
        time.sleep(0.05)
    raise AssertionError(f"still running: {sorted(path.name for path in job.folder.iterdir())}")


def test_a_run_is_started_once_however_often_it_is_asked_to(tmp_path: Path) -> None:
    job = job_of(tmp_path / "a b'c", "echo started >> count; echo working")
    for _ in range(3):
        job.start()
    assert ended(job).code == 0
    for _ in range(2):
        job.start()
    time.sleep(0.3)
    assert (job.folder / "count").read_text() == "started\n"
    assert (job.folder / LOG).read_text() == "working\n"


def test_starts_at_the_same_moment_run_it_once(tmp_path: Path) -> None:
    job = job_of(tmp_path, "echo started >> count")
    job.start()
    racing = [subprocess.Popen(["bash", "launch.sh"], cwd=tmp_path) for _ in range(5)]
    for process in racing:
        process.wait()
    assert ended(job).code == 0
    assert (tmp_path / "count").read_text() == "started\n"


@pytest.mark.parametrize(
    ("body", "command", "how", "code"),
    [
        ("exit 3", "bash {script}", "exit", 3),
        ("true", "bash {script}", "exit", 0),
        ("kill -KILL $$", "bash {script}", "exit", 137),
        ("true", "echo no such partition >&2; false {script}", "launch", 1),
        ("true", "no-such-command {script}", "launch", 127),
        ("true", "bash {script} & sleep 0.1", "exit", 0),
    ],
)
def test_how_a_run_ended_is_known(tmp_path: Path, body: str, command: str, how: str, code: int) -> None:
    job = job_of(tmp_path, body, command)
    job.start()
    end = ended(job)
    assert (end.how, end.code) == (how, code)


def test_a_command_that_only_submits_is_waited_for(tmp_path: Path) -> None:
    submits = "setsid bash {script} > /dev/null 2>&1 < /dev/null &"
    job = job_of(tmp_path, "sleep 1; echo done", submits)
    job.start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "launch.code").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert job.look(600) is None, "the command has returned, the run has not"
    assert ended(job).code == 0
    assert (tmp_path / LOG).read_text() == "done\n"


def test_a_run_over_its_time_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    job = job_of(tmp_path, "sleep 600 & echo $! > child; wait")
    job.start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "child").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert job.look(3600) is None
    time.sleep(0.2)
    assert job.look(0.1) == End("timeout", -1, 0.1)
    assert running([int((tmp_path / "child").read_text())]) == []


def test_a_run_that_was_killed_with_its_command_is_lost_not_waited_for(tmp_path: Path) -> None:
    job = job_of(tmp_path, "echo working; sleep 600")
    job.start()
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.02)
    shell = int((tmp_path / "launch.pid").read_text().split()[0])
    pids = [shell, *(int(pid) for pid in subprocess.check_output(["pgrep", "-P", str(shell)], text=True).split())]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert ended(job).how in ("lost", "exit")


@pytest.mark.parametrize(
    ("state", "how"), [("OUT_OF_MEMORY", "exit"), ("TIMEOUT", "timeout"), ("NODE_FAIL", "lost"), ("", "lost"), ("RUNNING", None)]
)
def test_a_job_that_slurm_killed_has_ended_once_the_queue_says_so_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, how: str | None
) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in (("sbatch", "echo Submitted batch job 7"), ("squeue", f'[ "$5" = 7 ] && echo {state}')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    job = job_of(tmp_path / "run", "true", "sbatch {script}")
    job.start()
    until = time.monotonic() + PATIENCE
    while not job.job and time.monotonic() < until:
        time.sleep(0.02)
    assert job.job == "7"
    assert job.is_gone == (state != "RUNNING")
    assert job.look(600, gone=1) is None, "a controller may be restarted"
    end = job.look(600, gone=LOOKS_UNTIL_GONE if job.is_gone else 0)
    assert (end.how if end else None) == how


def test_a_log_that_only_a_command_can_read_is_followed_to_its_end(tmp_path: Path) -> None:
    job = job_of(tmp_path, "", "true {script}", "echo step 1; sleep 0.2; echo step 2")
    job.start()
    assert ended(job).code == 0
    assert (tmp_path / LOG).read_text() == "step 1\nstep 2\n"


def test_the_markers_follow_the_header_of_a_batch_script(tmp_path: Path) -> None:
    script = "#!/bin/bash\n# Made by meshwise\n#SBATCH --nodes=2\n#SBATCH --exclusive\n\nset -euo pipefail\nsrun true\n"
    lines = with_markers(script, tmp_path).splitlines()
    assert lines[:5] == script.splitlines()[:5]
    assert lines[-2:] == ["set -euo pipefail", "srun true"]


def test_placeholders_are_single_words_of_the_shell() -> None:
    assert (
        filled("sbatch --job-name {name} {script}", {"script": "/a b/x.sh", "name": "run;1"})
        == "sbatch --job-name 'run;1' '/a b/x.sh'"
    )


def test_last_lines_are_one_line(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("a\n\nb\nc\n")
    assert last_lines(tmp_path / LOG, 2) == "b | c"
    assert last_lines(tmp_path / "missing") == "it printed nothing"
