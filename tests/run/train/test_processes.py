"""Workers: what they print arrives, with a bar only where someone watches."""

import os
import subprocess
import sys
from pathlib import Path

from meshwise.run.train.processes import quietly

PRINTS = "import sys; print('step 1/2  loss 3'); print('step 2/2  loss 2'); print('a warning', file=sys.stderr); sys.exit(3)"
ASKED = f"""
import sys
from meshwise.run.train.processes import follow
sys.exit(follow([sys.executable, "-c", {PRINTS!r}], {{}}, 2)[0])
"""


def test_on_a_pipe_lines_arrive_as_they_are_and_errors_apart() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "step 1/2  loss 3\nstep 2/2  loss 2\n", "a warning\n")


def test_on_a_terminal_a_bar_stands_under_the_lines_and_errors_stay_visible() -> None:
    ours, theirs = os.openpty()
    wide = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", ASKED], stdout=theirs, stderr=theirs, stdin=theirs, env=wide) as started:
        os.close(theirs)
        told = b""
        try:
            while some := os.read(ours, 65536):
                told += some
        except OSError:  # Linux's word for the end of a terminal
            pass
    os.close(ours)
    assert started.returncode == 3
    for words in (b"step 1/2  loss 3", b"step 2/2  loss 2", b"a warning", b"2/2", b"left"):
        assert words in told, words


def test_quietly_keeps_all_that_was_said_in_a_file(tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    assert quietly([sys.executable, "-c", PRINTS], {}, log) == (3, False)
    assert sorted(log.read_text().splitlines()) == ["a warning", "step 1/2  loss 3", "step 2/2  loss 2"]
