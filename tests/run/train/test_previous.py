"""`run` in a folder of an earlier run, or of one that is still running."""

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.run.train import launch, previous
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.hosts import Hosts
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.lock import lock
from meshwise.workers.trainer.contract.files.expected import config_json
from meshwise.workers.trainer.contract.marker import DESCRIPTION, Marker, Trained
from meshwise.workers.trainer.models.base import Span, build
from meshwise.workers.trainer.weights import init_random, save
from support.command import Run, one_line, refused

WAIT = "import time; print('held', flush=True); time.sleep(600)"
HOLD = """
import os, sys
from pathlib import Path
from meshwise.run.train.lock import lock
with lock(Path(sys.argv[1])):
"""
HOLDERS = {"a launcher": f"{HOLD}    {WAIT}", "a worker": f"{HOLD}    os.execv(sys.executable, [sys.executable, '-c', {WAIT!r}])"}
"""Where others start the workers, the process that took the lock becomes one of them."""


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for starter in ("run", "Popen"):
        monkeypatch.setattr(subprocess, starter, lambda *_, **__: pytest.fail("a process was started"))


def ready(out: Path, **changes: Any) -> Launch:
    return prepare(TrainRun(device="cpu", checkpoint_every=3, out=str(out), **changes))


def checkpoint(out: Path, step: int, name: str = "step", **changes: Any) -> Path:
    """Write the marker that a run of these settings leaves after this many steps."""
    settings = ready(out, **changes).settings
    target = out / "checkpoints" / f"{name}-{step}"
    target.mkdir(parents=True)
    trained = Trained.of(settings, step * settings.batch)
    described = b"{}"
    (target / DESCRIPTION).write_bytes(described)
    files = {DESCRIPTION: (len(described), zlib.crc32(described))}
    (target / "complete").write_text(Marker(step=step, skipped=0, trained=trained, files=files).text())
    return target


def asked(run: Run, out: Path, *more: str) -> str:
    return refused(run("run", "--device", "cpu", "--out", str(out), *more))


@pytest.mark.usefixtures("nothing_starts")
def test_another_order_of_samples_is_refused_and_the_folder_left_as_it_was(run: Run, tmp_path: Path) -> None:
    checkpoint(tmp_path, 6, seq=64)
    (tmp_path / "config.json").write_text("as it was")
    told = asked(run, tmp_path, "--checkpoint-every", "3", "--seed", "1", "--seq", "32", "--tokenizer", "bpe:300")
    words = "seed 0 (now 1), sequences of 64 (now 32) and the embedded text (now the embedded text, tokenizer bpe:300)"
    assert f"{tmp_path / 'checkpoints'} holds a run with {words}, which orders samples differently" in told
    assert "repeat its settings to resume, or choose another --out" in told
    assert (tmp_path / "config.json").read_text() == "as it was"
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("change", [{"batch": 4}, {"lr": 1e-3}, {"steps": 99}, {"dp_shard": 2}])
def test_settings_that_keep_the_order_of_samples_may_change(tmp_path: Path, change: dict[str, Any]) -> None:
    checkpoint(tmp_path, 6)
    previous.check(ready(tmp_path, **change), tmp_path)


def test_weights_beside_a_checkpoint_are_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "check_weights", lambda *_: None)  # whether they fit the model is another question
    checkpoint(tmp_path, 6)
    previous.check(ready(tmp_path, weights="theirs"), tmp_path)


def test_a_text_is_recognized_by_its_content(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("The river turns, and Ada counts. " * 9000)
    checkpoint(tmp_path, 6, data=str(book))
    os.utime(book, (1, 1))
    moved = book.rename(tmp_path / "moved.txt")
    previous.check(ready(tmp_path, data=str(moved)), tmp_path)
    with pytest.raises(UserError, match=rf"{book}, tokenizer bytes \(now {moved}, tokenizer bpe:300\)"):
        previous.check(ready(tmp_path, data=str(moved), tokenizer="bpe:300"), tmp_path)
    moved.rename(book)
    text = book.read_text()
    for changed in (text + "x", "x" + text[1:], text[:-1] + "x"):
        book.write_text(changed)
        with pytest.raises(UserError, match=f"different content in {book}, tokenizer bytes, which orders samples differently"):
            previous.check(ready(tmp_path, data=str(book)), tmp_path)


@pytest.mark.usefixtures("nothing_starts")
def test_a_run_without_checkpoints_does_not_write_over_one_that_has_them(run: Run, tmp_path: Path) -> None:
    checkpoint(tmp_path, 6)
    (tmp_path / "steps.jsonl").write_text("its steps")
    words = "holds checkpoints of an earlier run, up to step 6: resume it with --checkpoint-every, or choose another --out"
    assert words in asked(run, tmp_path, "--steps", "2")
    assert words in asked(run, tmp_path, "--steps", "2", "--report")
    assert (tmp_path / "steps.jsonl").read_text() == "its steps"


def test_runs_that_leave_no_checkpoints_may_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("")
    (tmp_path / "checkpoints" / "step-3").mkdir(parents=True)  # cut off: nothing was said to be saved
    one = prepare(TrainRun(device="cpu"))
    for _ in range(2):
        with lock(tmp_path, one):
            previous.check(one, tmp_path)


@pytest.mark.usefixtures("nothing_starts")
def test_a_run_of_which_every_checkpoint_is_damaged_is_not_started_over(run: Run, tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, "damaged-step")
    told = asked(run, tmp_path, "--checkpoint-every", "3")
    assert "is damaged (damaged-step-3): remove them to start from step 1, or choose another --out" in told
    checkpoint(tmp_path, 2)
    previous.check(ready(tmp_path), tmp_path)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("more", [(), ("--report",), ("--sweep", "mbs=1,2")])
def test_a_second_run_in_a_folder_is_refused_with_the_first_one_s_name(run: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    with lock(tmp_path):
        told = asked(run, tmp_path, *more)
        assert f"--out {tmp_path}: process {os.getpid()} on " in told
        assert "is running in it; wait for it to end, or choose another --out" in told
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_one_node_or_worker_locks_the_folder_for_the_whole_run(tmp_path: Path) -> None:
    one = ready(tmp_path)
    second = Launch(one.settings, one.model, one.on, hosts=Hosts(2, 1, "node-a:29500"))
    worker = Launch(one.settings, one.model, one.on, hosts=Hosts(worker={"RANK": "1"}))
    first = Launch(one.settings, one.model, one.on, hosts=Hosts(worker={"RANK": "0"}))
    with lock(tmp_path, one):
        with lock(tmp_path, second), lock(tmp_path, worker):
            pass
        with pytest.raises(UserError) as error, lock(tmp_path, first):
            pass
        assert "is running in it" in one_line(error.value)


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_run_locks_its_folder_until_it_is_killed(tmp_path: Path, kind: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDERS[kind], str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} on "), lock(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with lock(tmp_path):
        pass


@pytest.mark.usefixtures("nothing_starts")
def test_adapters_of_other_weights_or_of_another_rank_are_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    values, _ = launch.buildable("llama-debug")
    models: dict[int, Path] = {}
    for seed in (1, 2):
        model: Any = build(values, Span(0, values["num_hidden_layers"], values["num_hidden_layers"]))
        init_random([model], seed, 0.02)
        models[seed] = tmp_path / f"weights-{seed}"
        assert save([model], models[seed], extra={"config.json": config_json(values, "float32")}) == ""
    out = tmp_path / "run"
    checkpoint(out, 6, finetune="lora:4", weights=str(models[1]))
    kept = sorted(path.name for path in out.rglob("*"))
    given = ("--checkpoint-every", "3", "--finetune", "lora:4", "--weights", str(models[1]))
    assert "now lora:8 with alpha 16" in asked(run, out, *given[:3], "lora:8", *given[4:])
    assert "now lora:4 with alpha 32" in asked(run, out, *given, "--lora-alpha", "32")
    assert "on 4 layers (q_proj)" in asked(run, out, *given[:3], "lora:4:q_proj", *given[4:])
    assert f"not of {models[2]}: repeat its --weights" in asked(run, out, *given[:5], str(models[2]))
    assert sorted(path.name for path in out.rglob("*") if path.name != ".lock") == kept
    moved = models[1].rename(tmp_path / "moved")
    previous.check(ready(out, finetune="lora:4", weights=str(moved)), out)
