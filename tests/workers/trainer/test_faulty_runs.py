"""Runs that are killed, stopped, hung, or without disk or memory resume from their checkpoints with the same losses.

Runs here are endless until they are asked to stop, so that the learning rate is the same in all.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwise.workers.trainer.checkpoint import find_damage
from meshwise.workers.trainer.contract.marker import complete_steps
from meshwise.workers.trainer.contract.settings import Layout
from support.nursery import Nursery
from support.tiny_runs import WHOLE, losses
from support.trainer_process import Training, alive, descendants

ENDLESS = ("--steps", "1000000", "--warmup", "100", "--checkpoint-every", "5", "--timeout", "10s")
LAST = 24


def stop(run: Training) -> int:
    """Ask a run to stop; return the number of steps it has done, all saved."""
    family = [run.process.pid, *descendants(run.process.pid)]
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 0, run.printed()[-4000:]
    assert alive(family) == []
    done = len(run.losses())
    assert f"stopped by a signal after step {done}, which is saved" in run.printed()
    assert "predicted and measured" in run.printed()
    assert complete_steps(run.out / "checkpoints")[0] == done
    return done


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of an undisturbed run, until it was asked to stop."""
    run = Training(tmp_path_factory.mktemp("unbroken") / "run", "--dp-shard", "2", *ENDLESS)
    run.after(LAST)
    stop(run)
    kept = complete_steps(run.out / "checkpoints")
    assert len(kept) == 3
    assert [find_damage(run.out / "checkpoints" / f"step-{step}") for step in kept] == ["", "", ""]
    return run.losses()


@pytest.mark.slow
def test_a_killed_and_a_hung_rank_and_a_damaged_checkpoint_leave_the_losses_as_they_were(
    unbroken: list[float], tmp_path: Path
) -> None:
    run = Training(tmp_path / "run", "--dp-shard", "2", *ENDLESS)
    run.until(lambda: "saved after step 5" in run.printed())
    run.hurt(1, signal.SIGKILL)
    run.until(lambda: "resuming after step" in run.printed())
    run.after(11)
    run.hurt(0, signal.SIGSTOP)
    run.until(lambda: run.printed().count("resuming after step") == 2)
    run.after(14)
    done = stop(run)
    assert re.search(r"rank 1 was killed by SIGKILL in step ([6-9]|1\d); restart 1 of 3", run.printed())
    assert "rank 0 on " in run.printed()
    assert "does not respond; restart 2 of 3" in run.printed()
    assert "Traceback" not in run.printed()
    both = min(done, len(unbroken))
    assert run.losses()[:both] == unbroken[:both]  # to the last bit

    newest = tmp_path / "run" / "checkpoints" / f"step-{done}"
    part = next(newest.glob("__1_*"))
    part.write_bytes(part.read_bytes()[:-100])
    again = Training(tmp_path / "run", "--tp", "2", *ENDLESS)
    again.until(lambda: "resuming after step" in again.printed())
    again.after(done + 3)
    family = descendants(again.process.pid)
    again.process.kill()  # without a chance to signal its workers
    again.until_gone(family)
    assert f"the checkpoint after step {done} is damaged ({part.name} has " in again.printed()
    both = min(len(again.losses()), len(unbroken))
    assert again.losses()[:both] == pytest.approx(unbroken[:both], rel=1e-5)


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two hosts in network namespaces, joined by a virtual cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    names = (f"mw{os.getpid()}a", f"mw{os.getpid()}b")
    wire = [["link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1]]]
    for number, name in enumerate(names, 1):
        wire += [["-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable"], ["-n", name, "link", "set", "cable", "up"]]
        wire.append(["-n", name, "link", "set", "lo", "up"])
    try:
        for words in [["netns", "add", name] for name in names] + wire:
            done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.slow
def test_two_hosts_train_as_one_and_a_lost_one_is_named_and_may_come_back(
    two_hosts: tuple[str, str], unbroken: list[float], tmp_path: Path
) -> None:
    def node(rank: int) -> Training:
        where = ("--nodes", "2", "--node-rank", str(rank), "--rendezvous", "10.77.0.1:29500")
        return Training(tmp_path / "run", "--dp-shard", "2", *ENDLESS, *where, before=("ip", "netns", "exec", two_hosts[rank]))

    second, first = node(1), node(0)
    first.until(lambda: "saved after step 5" in first.printed())
    lost = subprocess.run(["ip", "netns", "pids", two_hosts[1]], capture_output=True, text=True, check=True).stdout.split()
    for pid in lost:
        os.kill(int(pid), signal.SIGKILL)
    assert second.end() < 0
    first.until(lambda: "died without a message; restart 1 of 3, as soon as all 2 nodes have joined" in first.printed())
    assert "rank 1 on node 1 (" in first.printed()
    second = node(1)
    first.until(lambda: "resuming after step" in first.printed())
    first.after(12)
    second.process.send_signal(signal.SIGTERM)  # sent to one of them, and both stop
    assert (first.end(), second.end()) == (0, 0), first.printed()[-4000:]
    done = len(first.losses())
    assert f"stopped by a signal after step {done}, which is saved" in first.printed()
    assert "step" not in second.printed().replace("after the current step", "")  # node 0 alone reports
    both = min(done, len(unbroken))
    assert first.losses()[:both] == unbroken[:both]


@pytest.mark.slow
def test_slurm_tasks_one_per_device_are_the_workers(unbroken: list[float], tmp_path: Path) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "2"}

    def task(rank: int) -> Training:
        here: dict[str, Any] = step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NODELIST": "localhost"}
        return Training(tmp_path / "run", "--dp-shard", "2", "--steps", "4", "--warmup", "100", "--checkpoint-every", "2", **here)

    tasks = [task(rank) for rank in range(2)]
    assert [one.end() for one in tasks] == [0, 0], tasks[0].printed()
    assert tasks[0].losses() == unbroken[:4]  # still in warm-up


@pytest.mark.parametrize(("processes", "after", "most"), [(1, 3, 3), (2, 3, 4), (2, 0, 0)])
def test_a_run_that_is_asked_to_stop_does_at_most_the_step_that_another_rank_is_in(
    nursery: Nursery, tmp_path: Path, processes: int, after: int, most: int
) -> None:
    settings = replace(WHOLE, layout=Layout(dp_shard=processes), steps=10_000, checkpoint_every=5000, out=str(tmp_path))
    settings.write(tmp_path / "config.json")
    worker, stop = str(Path(__file__).with_name("stopped_worker.py")), str(tmp_path / "stop")
    printed = nursery.run(worker, str(tmp_path / "config.json"), str(after), processes=processes, MESHWISE_STOP=stop)
    done = len((tmp_path / "steps.jsonl").read_text().splitlines())
    assert after <= done <= most
    assert ("before the first step" if after == 0 else f"after step {done}, which is saved") in printed
    assert complete_steps(tmp_path / "checkpoints") == ([done] if done else [])


@pytest.mark.slow
def test_a_run_whose_terminal_is_lost_saves_and_ends(tmp_path: Path) -> None:
    """As when ssh is cut: everything that is printed fails, and SIGHUP arrives."""
    ours, theirs = os.openpty()
    run = Training(tmp_path / "run", *ENDLESS, output=theirs)
    os.close(theirs)
    run.after(3)
    os.close(ours)
    run.after(6)
    family = [run.process.pid, *descendants(run.process.pid)]
    run.process.send_signal(signal.SIGHUP)
    assert run.end() == 0
    run.until_gone(family)
    assert complete_steps(tmp_path / "run" / "checkpoints")[0] == len(run.losses()) >= 6
    assert "tokens/s" in (tmp_path / "run" / "report.md").read_text()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk that is soon full."""
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mount = subprocess.run(asked, capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"no small disk can be mounted here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    # a checkpoint of the tiny model has 0.9 MB: one fits, a second does not
    with small_disk(tmp_path / "full", "1m") as full:
        run = Training(full, "--steps", "5", "--checkpoint-every", "2")
        assert run.end() == 1  # the last state could not be saved
        words = "(No space left on device, rank 0) and was removed; the one after step 2 is kept"
        assert f"the checkpoint after step 4 could not be written {words}; training continues" in run.printed()
        assert f"the checkpoint after step 5 could not be written {words}; trying once more" in run.printed()
        assert run.printed().count("training continues") == 1
        reason = "meshwise: the state after step 5 could not be saved (No space left on device, rank 0)"
        assert run.printed().splitlines()[-1].startswith(reason)
        assert len(run.losses()) == 5
        assert find_damage(full / "checkpoints" / "step-2") == ""
        assert [path.name for path in (full / "checkpoints").iterdir()] == ["step-2"]
        reported(run)


def reported(run: Training) -> None:
    """Check that the measurements are written and reported, although something else could not be written."""
    rows = [json.loads(line) for line in (run.out / "measurement.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["ok"]
    assert len(json.loads((run.out / "ranks.json").read_text())) == rows[0]["n_gpus"]
    assert "tokens/s" in (run.out / "report.md").read_text()
    assert f"saved in {run.out}: " in run.printed()
    assert "Traceback" not in run.printed()


@pytest.mark.slow
def test_weights_that_the_disk_does_not_take_cost_neither_the_report_nor_a_good_file(tmp_path: Path) -> None:
    # two parts of 107 and 74 kB, and the run's own files: of 160 kB one part has room, and not both
    with small_disk(tmp_path / "full", "160k") as full:
        (tmp_path / "tmp").mkdir()
        run = Training(full, "--pp", "2", "--steps", "3", "--save", TMPDIR=str(tmp_path / "tmp"))
        assert run.end() == 1
        # neither torchrun nor we leave anything behind; the cache of compiled kernels is torch's, shared by all runs
        assert [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor_")] == []
        last = run.printed().splitlines()[-1]
        assert last.startswith(f"meshwise: the weights could not be written in {full / 'weights'}: No space left on device (0.")
        assert " MB needed, 0." in last
        assert [*(full / "weights").iterdir()] == []
        reported(run)


@pytest.mark.slow
def test_running_out_of_memory_is_reported_by_part_with_the_nearest_layout_that_needs_less(tmp_path: Path) -> None:
    # 4 GB of addresses, of which torch takes about half: the activations of half a million tokens do not fit
    limit = (
        sys.executable,
        "-c",
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9, 4 * 10**9)); os.execvp(sys.argv[1], sys.argv[1:])",
    )
    run = Training(tmp_path / "run", "--batch", "1024", "--seq", "512", "--checkpoint-every", "1", before=limit)
    assert run.end() == 1
    assert "ran out of memory in step 1: " in run.printed()
    assert "restart" not in run.printed()  # it would run out again
    assert "Traceback" not in run.printed()
    parts = next(
        line for line in run.printed().splitlines() if line.startswith("predicted per device: weights 0.00, gradients 0.00")
    )
    assert float(parts.split("activations ")[1].split(",")[0]) > 1  # GiB: the largest part
    assert parts.endswith("GiB of 3.73 GiB")  # 4e9 / 2^30
    near = next(line for line in run.printed().splitlines() if line.startswith("nearest layout that needs less: --mbs "))
    assert int(near.split("--mbs ")[1].split(":")[0]) < 1024
    assert json.loads((tmp_path / "run" / "failure.json").read_text())["kind"] == "oom"


def test_a_step_with_a_nan_gradient_on_one_rank_is_skipped_by_all(nursery: Nursery, tmp_path: Path) -> None:
    settings = replace(WHOLE, layout=Layout(dp_shard=2), on_nan="skip", steps=5, checkpoint_every=4, out=str(tmp_path))
    settings.write(tmp_path / "config.json")
    printed = nursery.run(str(Path(__file__).with_name("poisoned_worker.py")), str(tmp_path / "config.json"), processes=2)
    assert "step 3: loss " in printed
    assert "gradient norm nan: skipped (1 so far)" in printed
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert json.loads((tmp_path / "checkpoints" / "step-4" / "complete").read_text())["skipped"] == 1
    # the third step left the weights alone: later losses are finite, and a resumed run repeats them
    shutil.rmtree(tmp_path / "checkpoints" / "step-5")
    again = losses(nursery, replace(settings, layout=Layout()), tmp_path, "resuming after step 4")
    assert again[4] == pytest.approx(rows[4]["loss"], rel=1e-5)
