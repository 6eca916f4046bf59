"""Errors of a worker become failures: a kind, one line, and whether a restart helps."""

import errno
import json
import random
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwise.workers.trainer.checkpoint import checksum, find_damage
from meshwise.workers.trainer.contract.files.grammar import sentence
from meshwise.workers.trainer.contract.marker import Marker, Trained, complete_steps
from meshwise.workers.trainer.ranks.agent import current_step
from meshwise.workers.trainer.ranks.faults import Failure, SkippedSteps, TrainingError, failure_of, is_finite, kind_of
from meshwise.workers.trainer.ranks.heartbeat import Beat, _where, find_stragglers
from support.tiny_runs import PLAIN, WHOLE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "oom"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "lost"),
        (TrainingError("nan", "no number"), "nan"),
        (ValueError("x"), "error"),
    ],
)
def test_an_error_has_a_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_running_out_of_memory_in_the_first_step_does_not_cause_a_restart() -> None:
    first = failure_of(MemoryError(), 1, "host", done=40, first=40)
    assert first.final
    assert first.message == "rank 1 on host ran out of memory in step 41: MemoryError"
    assert first.step == 41  # the one in the message
    assert not failure_of(MemoryError(), 1, "host", done=41, first=40).final
    assert not failure_of(ValueError("x"), 1, "host", done=0, first=0).final


def test_the_step_of_a_killed_rank_is_the_one_after_the_last_written(tmp_path: Path) -> None:
    assert current_step(tmp_path, 0.0, 40) == 1
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(21)) + '{"st')
    written = path.stat().st_mtime
    assert current_step(tmp_path, written - 1, 40) == 22
    assert current_step(tmp_path, written - 1, 21) == 21
    assert current_step(tmp_path, written + 1, 40) == 1  # written by an earlier run


def test_a_failure_is_kept_whole(tmp_path: Path) -> None:
    failure = Failure("oom", 3, "host", 7, "words", True)
    assert failure.write(tmp_path)
    assert Failure(**json.loads((tmp_path / "failure.json").read_text())) == failure
    assert [path.name for path in tmp_path.iterdir()] == ["failure.json"]
    assert not failure.write(tmp_path / "nowhere")


@given(st.floats(), st.floats())
def test_a_step_is_applied_only_if_loss_and_norm_are_numbers(loss: float, norm: float) -> None:
    numbers = abs(loss) < float("inf") and abs(norm) < float("inf")
    assert bool(is_finite(torch.tensor(loss, dtype=torch.float64), torch.tensor(norm, dtype=torch.float64))) == numbers


def test_steps_with_nan_stop_a_run_or_are_skipped_up_to_ten_in_a_row() -> None:
    with pytest.raises(TrainingError, match=r"step 3: loss nan, .* stopped without applying the step") as error:
        SkippedSteps(PLAIN).check(2, float("nan"), 1.0)
    # on a GPU the next step is under way when the loss of one is read
    assert failure_of(error.value, 0, "host", done=3, first=0).step == 3
    skips = SkippedSteps(replace(PLAIN, on_nan="skip"), before=5)
    assert "skipped (6 so far)" in skips.check(0, 1.0, float("inf"))
    assert skips.check(1, 1.0, 1.0) == ""
    for step in range(9):
        skips.check(step, float("nan"), 1.0)
    with pytest.raises(TrainingError, match="stopped after 10 such steps in a row"):
        skips.check(9, float("nan"), 1.0)


def beats(*rows: tuple[int, int, str]) -> dict[int, Beat]:
    return {rank: Beat(count, done, 0, "host", 100 + rank, where) for rank, (count, done, where) in enumerate(rows)}


def test_stragglers_are_silent_ranks_or_have_done_fewer_steps_or_wait_elsewhere() -> None:
    before = beats((5, 3, ""), (5, 3, ""), (5, 3, ""))
    assert find_stragglers(before, beats((9, 3, "a"), (5, 3, ""), (9, 3, "a")), 3)[0] == (1,)
    assert find_stragglers(before, {0: before[0], 2: Beat(9, 3, 0, "host", 1)}, 3)[0] == (0, 1)
    assert find_stragglers(before, beats((9, 4, "a"), (9, 4, "a"), (9, 3, "a")), 3)[0] == (2,)
    ranks, why = find_stragglers(
        before, beats((9, 3, "passes.py:73 run"), (9, 3, "samples.py:66 local_batch"), (9, 3, "passes.py:73 run")), 3
    )
    assert ranks == (1,)
    assert why == ": no progress in samples.py:66 local_batch, the others wait in passes.py:73 run"
    assert find_stragglers(before, beats((9, 3, "a"), (9, 3, "a"), (9, 3, "a")), 3)[0] == (0, 1, 2)


def test_a_thread_that_hangs_is_named_by_its_innermost_line_of_the_trainer() -> None:
    reached, done = threading.Event(), threading.Event()

    class Hanging(random.Random):
        def choice(self, seq: Any) -> Any:
            reached.set()
            done.wait()
            return super().choice(seq)

    thread = threading.Thread(target=sentence, args=(Hanging(0),))
    thread.start()
    reached.wait()
    where = _where(thread.ident or 0)
    done.set()
    thread.join()
    assert re.fullmatch(r"grammar\.py:\d+ sentence", where)


def test_any_change_of_a_checkpoint_is_detected(tmp_path: Path) -> None:
    target = tmp_path / "step-5"
    target.mkdir()
    part = target / "__0_0.distcp"
    part.write_bytes(b"moments")
    (target / "tensors.json").write_text('{"tensors": {}}')
    assert complete_steps(tmp_path) == []
    files = {path.name: checksum(path) for path in target.iterdir()}
    marker = Marker(step=5, skipped=0, trained=Trained.of(WHOLE, 40), files=files)
    (target / "complete").write_text(marker.text())
    assert complete_steps(tmp_path) == [5]
    assert find_damage(target) == ""
    part.write_bytes(b"momentS")
    assert find_damage(target) == "__0_0.distcp has changed since it was written"
    assert find_damage(target, part=1, parts=2) == ""  # another rank reads it
    part.write_bytes(b"mom")
    assert find_damage(target) == "__0_0.distcp has 3 of 7 bytes"
    part.unlink()
    assert find_damage(target) == "__0_0.distcp is missing"
    (target / "complete").write_text('{"step": 5')
    assert find_damage(target) == "its marker cannot be read, or has changed since it was written"
