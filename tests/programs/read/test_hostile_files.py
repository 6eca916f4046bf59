"""Launch files that somebody made to hang `check`, to fill memory or to break it: each is read or refused in words, in bounded time and
memory. What a script does until then is kept."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.programs.bash.automaton import Automaton, regular
from meshwise.programs.bash.patterns import matches, replaced, trimmed
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from support import hostile_launch_files as hostile

MAX_CPU_SECONDS = 4.5
MAX_MEMORY_BYTES = 500 << 20
QUICK = 40
"""Every so manyth file is tried in each run of the tests."""


def tried(files: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Read files in this process; return what went wrong, by name."""
    wrong: dict[str, str] = {}
    for name, (suffix, text) in files.items():
        begun = time.thread_time()
        try:
            read_sources([Source(f"x{suffix}" if suffix.startswith(".") else suffix, text)], {})
        except UserError:
            pass
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:200]
        took = time.thread_time() - begun
        if took > MAX_CPU_SECONDS:
            wrong[name] = f"{took:.1f} s"
    return wrong


def every() -> dict[str, tuple[str, str]]:
    kinds = ((".sh", hostile.scripts()), (".yaml", hostile.trees()), (".toml", hostile.tables()))
    found = {f"{name} ({suffix})": (suffix, text) for suffix, files in kinds for name, text in files.items()}
    return found | {f"{name} ({file})": (file, text) for name, (file, text) in hostile.others().items()}


def test_some_hostile_files_are_read_or_refused() -> None:
    assert tried({name: file for number, (name, file) in enumerate(every().items()) if number % QUICK == 0}) == {}


@pytest.mark.parametrize("nth", [pytest.param(4, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_every_nth_hostile_file_is_read_or_refused_in_bounded_time_and_memory(nth: int) -> None:
    """In a process of its own, whose peak memory is that of the worst file."""
    assert len(every()) >= 197
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, __file__, str(nth)], capture_output=True, text=True, timeout=1200, env=os.environ | path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wrong, peak_bytes = json.loads(done.stdout)
    assert wrong == {}
    assert peak_bytes < MAX_MEMORY_BYTES


def test_a_value_that_looks_like_the_end_of_a_number_is_a_text() -> None:
    for text in ("e5", "E5", ".e5", "+e5", ".", "1e"):
        facts = read_sources([Source("a.yaml", f"adapter: lora\nbase_model: x\nsequence_len: 512\nrun_id: {text}\n")], {}).facts
        assert facts.value("seq") == 512


def test_what_a_script_does_before_it_takes_too_long_is_kept() -> None:
    text = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64\necho " + "{a,b}" * 40
    reading = read_sources([Source("a.sh", text)], {})
    assert reading.facts.value("layers") == 4
    assert any("too many steps" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("text", "expression", "found"),
    [
        ("abc", "b", True),
        ("abc", "^b", False),
        ("abc", "^a.c$", True),
        ("abc", "x|c$", True),
        ("", "^$", True),
        ("a1", "^[a-z][0-9]+$", True),
        ("a", "^[a-z][0-9]+$", False),
        ("aab", "^(a|b)*$", True),
        ("x.y", r"x\.y", True),
        ("xzy", r"x\.y", False),
        ("a]", "^a[]]$", True),
        ("7B", "^[[:digit:]]+B$", True),
        ("a^", r"\^", True),
        ("ab", "^(a)?b?$", True),
        ("3", "^[^0-9]$", False),
    ],
)
def test_expressions_of_tests_match_as_bash_does(text: str, expression: str, found: bool) -> None:
    read = regular(expression)
    assert read is not None
    assert Automaton(read).found_in(text) == found
    script = "if [[ $1 =~ $2 ]]; then echo True; else echo False; fi"
    assert (
        subprocess.run(["bash", "-c", script, "-", text, expression], capture_output=True, text=True, check=True).stdout
        == f"{found}\n"
    )


@pytest.mark.parametrize("expression", ["a{2}", "(a", "a)", "[a", r"\d", "*a", r"(a)\1", "[[:strange:]]", "("])
def test_expressions_that_are_not_understood_are_unknown(expression: str) -> None:
    assert regular(expression) is None


PATTERNS = ("*", "a*", "*a", "?b", "[ab]*", "[!a]*", "a", "", "*b*", "[[:alpha:]]*", "a\\*", "b*a")


@pytest.mark.parametrize("operator", ["#", "##", "%", "%%", "/", "//", "/#", "/%"])
def test_patterns_change_texts_as_bash_does(operator: str) -> None:
    for text in ("abab", "ba*b", "", "bbb", "a b"):
        for pattern in PATTERNS:
            parts = [(pattern, False)]
            if operator[0] == "/":
                ours, new = replaced(text, parts, "X", operator), "/X"
            else:
                kept = trimmed(text, parts, operator)
                assert kept is not None
                ours, new = text[slice(*kept)], ""
            script = f'x=$1; p=$2; printf %s "${{x{operator}$p{new}}}"'
            said = subprocess.run(["bash", "-c", script, "-", text, pattern], capture_output=True, text=True, check=True).stdout
            assert ours == said, (text, pattern)


def test_extended_patterns_match_as_bash_does() -> None:
    for text in ("", "a", "aa", "ab", "abab", "b"):
        for pattern in ("+(a)", "*(ab)", "?(a)b", "@(a|b)", "+(a|b)", "a*(b)"):
            script = "shopt -s extglob; [[ $1 == $2 ]] && echo True || echo False"
            said = subprocess.run(["bash", "-c", script, "-", text, pattern], capture_output=True, text=True, check=True).stdout
            assert matches(text, [(pattern, False)], extended=True) == (said == "True\n"), (text, pattern)


if __name__ == "__main__":
    wrong = tried(dict(list(every().items())[:: int(sys.argv[1])]))
    # getrusage's peak is also that of the process that started this one; VmHWM is of this program alone
    peak_kib = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(json.dumps([wrong, peak_kib << 10]))
