"""Output of workers arrives as it is, with a bar only on a terminal."""

import os
import subprocess
import sys
from pathlib import Path

from meshwise.run.train.processes import follow, run_quietly

PRINTS = "import sys; print('step 1/2  loss 3'); print('step 2/2  loss 2'); print('a warning', file=sys.stderr); sys.exit(3)"
FOLLOWS = f"""
import sys
from meshwise.run.train.processes import follow
from meshwise.ui.cli.progress import Bar
with Bar() as bar:
    code, stopped = follow([sys.executable, "-c", {PRINTS!r}], {{}}, 2, bar.say, bar.progress)
sys.exit(code)
"""


def test_on_a_pipe_lines_arrive_as_they_are_and_errors_apart() -> None:
    done = subprocess.run([sys.executable, "-c", FOLLOWS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "step 1/2  loss 3\nstep 2/2  loss 2\n", "a warning\n")


def test_on_a_terminal_a_bar_stands_under_the_lines_and_errors_stay_visible() -> None:
    ours, theirs = os.openpty()
    wide = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", FOLLOWS], stdout=theirs, stderr=theirs, stdin=theirs, env=wide) as started:
        os.close(theirs)
        shown = b""
        try:
            while some := os.read(ours, 65536):
                shown += some
        except OSError:  # Linux's word for the end of a terminal
            pass
    os.close(ours)
    assert started.returncode == 3
    for words in (b"step 1/2  loss 3", b"step 2/2  loss 2", b"a warning", b"2/2", b"left"):
        assert words in shown, words


def test_where_standard_output_was_replaced_lines_go_to_the_callback() -> None:
    """As in a notebook, whose cells workers cannot print to. (pytest replaces it here.)"""
    lines: list[str] = []
    assert follow([sys.executable, "-c", PRINTS], {}, 2, lines.append) == (3, False)
    assert sorted(lines) == ["a warning", "step 1/2  loss 3", "step 2/2  loss 2"]


def test_progress_counts_steps_from_none() -> None:
    done: list[tuple[str, float, float]] = []
    follow([sys.executable, "-c", PRINTS], {}, 2, lambda line: None, lambda *update: done.append(update))
    assert done == [("training", 0, 2), ("training", 1, 2), ("training", 2, 2)]


def test_a_quiet_run_keeps_all_output_in_a_file(tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    assert run_quietly([sys.executable, "-c", PRINTS], {}, log) == (3, False)
    assert sorted(log.read_text().splitlines()) == ["a warning", "step 1/2  loss 3", "step 2/2  loss 2"]
