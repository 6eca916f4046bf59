"""For cog: run commands and Python, and print them with their output as Markdown, or put their numbers into sentences and tables.

Commands of meshwise run in this process, and plans and validations are kept: the same question in a table, in a sentence, with `--verbose`
and in Python is searched once, on whichever page it stands. Output does not depend on the machine: commands see no files of the user, no
GPU, and a terminal of one width.
"""

import ast
import atexit
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from meshwise.calibrate import dispatch
from meshwise.plan.serve import plan as serve_plan
from meshwise.plan.train import plan as train_plan
from support.command import Done, meshwise

ROOT = Path(__file__).parent.parent
KEPT = [(module, name, cache(getattr(module, name))) for module, name in
    ((train_plan, "make"), (serve_plan, "make"), (dispatch, "validate"))]  # fmt: skip
"""Functions whose results are kept while commands run here, so that a question is searched once."""
WIDTH = 100
PROSE_WIDTH = 120
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


OPERATORS = "|;&<>"
NOWHERE = tempfile.mkdtemp(prefix="meshwise-pages-")
"""An empty folder, in place of the user's own files and models."""
atexit.register(shutil.rmtree, NOWHERE, ignore_errors=True)
OURS = {
    "LC_ALL": "C.UTF-8", "TZ": "UTC", "COLUMNS": str(WIDTH), "MESHWISE_HOME": NOWHERE, "HF_HOME": NOWHERE, "HF_HUB_CACHE": NOWHERE,
    "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "",
}  # fmt: skip
"""What commands see in place of what differs between machines."""


def environment() -> dict[str, str]:
    """Return the environment of commands: this virtual environment's programs first, and nothing of this machine."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path} | OURS


@contextmanager
def kept() -> Iterator[None]:
    """While it is open, plans and validations are kept, and the environment is that of commands."""
    with ExitStack() as patches:
        for module, name, once in KEPT:
            patches.enter_context(mock.patch.object(module, name, once))
        patches.enter_context(mock.patch.dict(os.environ, OURS))
        yield


def pieces(line: str) -> list[tuple[str, list[str]]] | None:
    """Return the commands of a line, each with the operator before it; None if a shell must read it, as expansions demand."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=OPERATORS)
    lexer.whitespace_split = True
    found: list[tuple[str, list[str]]] = [("", [])]
    for token in lexer:
        if token in ("|", ";", "&&", ">"):
            found.append((token, []))
        elif set(token) <= set(OPERATORS) or (re.search(r"[$`*~]", token) and not token.startswith("'")):
            return None
        else:
            found[-1][1].append(token)
    return found if any(words[:1] == ["meshwise"] for _, words in found) else None


def done(line: str) -> Done:
    """Run a command line as a shell would, with meshwise in this process where it can be."""
    found = pieces(line)
    if found is None:
        return _by_shell(line)
    folder, code, piped, out, err = ROOT, 0, "", "", ""
    for k, (operator, words) in enumerate(found):
        if operator == ">":
            (folder / words[0]).write_text(piped, encoding="utf-8")
            piped = ""
            continue
        if operator == "&&" and code:
            break
        if words[0] == "cd":
            folder = ROOT / words[1]
            continue
        given, piped = (piped if operator == "|" else None), ""
        ran = _in_process(words, folder, given) if words[0] == "meshwise" else _by_shell(" ".join(words), given, folder)
        code, err = ran.code, err + ran.err
        if k + 1 < len(found) and found[k + 1][0] in ("|", ">"):
            piped = ran.out
        else:
            out += ran.out
    return Done(code, out, err)


def _in_process(words: list[str], folder: Path, given: str | None) -> Done:
    with kept(), chdir(folder), mock.patch.object(sys, "stdin", io.StringIO(given or "")):
        return meshwise(*shlex.split(" ".join(words))[1:], columns=WIDTH)


def _by_shell(line: str, given: str | None = None, folder: Path = ROOT) -> Done:
    ran = subprocess.run(line, shell=True, cwd=folder, env=environment(), input=given, capture_output=True, text=True)
    return Done(ran.returncode, ran.stdout, ran.stderr)


def command(line: str) -> None:
    """Print `line` and its output as a console block. Exit if the command fails."""
    ran = done(line)
    if ran.code not in (0, 1) or "Traceback (most recent call last)" in ran.err:
        raise SystemExit(f"{line}: exit {ran.code}: {ran.err}")
    lines = [text.rstrip() for text in (ran.out + ran.err).strip("\n").splitlines()]
    print("\n```console", f"$ {line}", *lines, "```\n", sep="\n")


def error(line: str) -> None:
    """Print `line` and its one-line error as a console block. Exit unless the command refuses its input."""
    ran = done(line)
    if ran.code != 2 or ran.out:
        raise SystemExit(f"{line}: exit {ran.code}, expected 2: {ran.out}")
    print("\n```console", f"$ {line}", ran.err.strip(), "```\n", sep="\n")


def prose(*paragraphs: str) -> None:
    """Print paragraphs, wrapped as all prose of the pages."""
    print()
    for text in paragraphs:
        lines = textwrap.wrap(" ".join(text.split()), PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)
        print(*lines, "", sep="\n")


@cache
def answer(line: str) -> Any:
    """Return the JSON that a command of meshwise prints."""
    ran = done(f"{line} --json")
    if ran.code:
        raise SystemExit(f"{line} --json: exit {ran.code}: {ran.err}")
    return json.loads(ran.out)


def rank_of(layout: str, line: str) -> int:
    """Return the place, from 1, of a layout such as 'dp8 tp4 pp12 mbs2' among the rows of a plan."""
    wanted = {axis: int(size) for axis, size in re.findall(r"([a-z]+)(\d+)", layout)}
    for i, choice in enumerate(answer(line)["choices"], 1):
        axes = choice["layout"] | {"dp": choice["layout"]["dp_replicate"] * choice["layout"]["dp_shard"]}
        if all(axes[axis] == size for axis, size in wanted.items()):
            return i
    raise SystemExit(f"{line}: no row has the layout {layout}")


def standing(layout: str, line: str) -> str:
    """Return in words where a layout stands in a plan: 'the first row', 'the third row, 0.4% slower than the first'."""
    rank, rows = rank_of(layout, line), answer(line)["choices"]
    behind = rows[rank - 1]["seconds"] / rows[0]["seconds"] - 1
    return f"the {PLACES[rank - 1]} row" + (f", {behind:.1%} slower than the first" if rank > 1 else "")


def score(table: str, figure: str, group: str = "time") -> str:
    """Return a figure of `meshwise validate TABLE`: a share as percent, a rank correlation with two digits, empty if there is none."""
    value = answer(f"meshwise validate {table}").get(group, {}).get(figure)
    if value is None:
        return ""
    return f"{value:.2f}" if figure == "spearman" else f"{value:.1%}"


class Python:
    """Blocks of Python for one page, run in one namespace. Results follow their line as comments, '#> ...'."""

    MARK = "#> "

    def __init__(self) -> None:
        self.namespace: dict[str, object] = {}

    def again(self, block: str) -> None:
        """Run a python block, which is `cog.previous`, and print it with its current results."""
        source = block.partition("```python\n")[2].rpartition("```")[0]
        print("\n```python", *self.lines(source), "```\n", sep="\n")

    def lines(self, source: str) -> list[str]:
        """Return the lines of `source`, each statement followed by its results. Results of an earlier run are dropped."""
        written = [line for line in source.strip("\n").splitlines() if not line.startswith(self.MARK)]
        shown: list[str] = []
        done = 0
        for statement in ast.parse("\n".join(written)).body:
            end = statement.end_lineno or done
            text = "\n".join(written[done:end])
            shown += written[done:end]
            done = end
            shown += [f"{self.MARK}{line}".rstrip() for line in self._run(text, isinstance(statement, ast.Expr))]
        return [*shown, *written[done:]]

    def _run(self, text: str, expression: bool) -> list[str]:
        """Run a statement and return the lines that it prints, or the value of an expression."""
        out = io.StringIO()
        with kept(), redirect_stdout(out):
            if expression:
                value = eval(compile(text.strip(), "<page>", "eval"), self.namespace)
                print(repr(value) if value is not None else "", end="")
            else:
                exec(compile(text, "<page>", "exec"), self.namespace)
        return out.getvalue().splitlines()
