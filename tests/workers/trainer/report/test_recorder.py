"""The recorder: steps on disk, each once, and TensorBoard curves."""

import json
from pathlib import Path

from meshwise.workers.trainer.report.recorder import Recorder, open_step_log, scalars
from support.tiny_runs import PLAIN as RUN
from support.tiny_runs import steps


def test_a_run_that_resumes_from_a_checkpoint_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": i, "old": True}) + "\n" for i in range(5)) + '{"step": 5', encoding="utf-8")
    with open_step_log(path, 3) as log:
        log.write(b'{"step": 3, "old": false}\n')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["old"]) for row in rows] == [(0, True), (1, True), (2, True), (3, False)]


def test_a_run_from_the_start_begins_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 0}\n', encoding="utf-8")
    open_step_log(path, 0).close()
    assert path.read_text() == ""


def test_a_step_that_a_full_disk_does_not_take_is_written_with_the_next(tmp_path: Path) -> None:
    """A checkpoint that does not fit fills the disk until it is removed; training continues meanwhile."""
    recorder = Recorder.__new__(Recorder)  # without the process group that a run has
    recorder.trackers = []
    recorder.settings, recorder.lead, recorder.board, recorder.steps, recorder.unwritten = RUN, True, None, [], b""
    first, second = steps(0.5, 0.25)
    with Path("/dev/full").open("ab", buffering=0) as full:
        recorder.log = full
        recorder.record(first)
    with open_step_log(tmp_path / "steps.jsonl", 0) as log:
        recorder.log = log
        recorder.record(second)
    assert [json.loads(line)["seconds"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == [0.5, 0.25]


def test_curves_have_the_numbers_of_the_line_and_the_phases() -> None:
    found = scalars(RUN, steps(0.5)[0])
    assert (found["loss"], found["tokens_per_second"], found["phases/forward"]) == (5.0, 8 * 16 / 0.5, 0.125)
