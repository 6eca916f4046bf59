"""What is kept while a run goes on."""

import json
from pathlib import Path

from test_rows import RUN, steps

from meshwise.trainer.watch import opened, scalars


def test_a_run_that_goes_on_from_a_checkpoint_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": i, "old": True}) + "\n" for i in range(5)) + '{"step": 5', encoding="utf-8")
    with opened(path, 3) as log:
        log.write(b'{"step": 3, "old": false}\n')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["old"]) for row in rows] == [(0, True), (1, True), (2, True), (3, False)]


def test_a_run_from_the_start_begins_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 0}\n', encoding="utf-8")
    opened(path, 0).close()
    assert path.read_text() == ""


def test_curves_have_the_numbers_of_the_line_and_the_phases() -> None:
    found = scalars(RUN, steps(0.5)[0])
    assert (found["loss"], found["tokens_per_second"], found["phases/forward"]) == (5.0, 8 * 16 / 0.5, 0.125)
