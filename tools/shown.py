"""For cog: run commands and Python, and print them with their output as Markdown, or put their numbers into sentences and tables."""

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WIDTH = 100
PROSE_WIDTH = 120
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def environment() -> dict[str, str]:
    """Return the environment of commands: this virtual environment's programs first, and a width that fits a page."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "LC_ALL": "C.UTF-8", "COLUMNS": str(WIDTH)}


def command(line: str) -> None:
    """Print `line` and its output as a console block. Exit if the command fails."""
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback (most recent call last)" in done.stderr:
        raise SystemExit(f"{line}: exit {done.returncode}: {done.stderr}")
    lines = [text.rstrip() for text in (done.stdout + done.stderr).strip("\n").splitlines()]
    print("\n```console", f"$ {line}", *lines, "```\n", sep="\n")


def error(line: str) -> None:
    """Print `line` and its one-line error as a console block. Exit unless the command refuses its input."""
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode != 2 or done.stdout:
        raise SystemExit(f"{line}: exit {done.returncode}, expected 2: {done.stdout}")
    print("\n```console", f"$ {line}", done.stderr.strip(), "```\n", sep="\n")


def prose(*paragraphs: str) -> None:
    """Print paragraphs, wrapped as all prose of the pages."""
    print()
    for text in paragraphs:
        lines = textwrap.wrap(" ".join(text.split()), PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)
        print(*lines, "", sep="\n")


@cache
def answer(line: str) -> Any:
    """Return the JSON that a command of meshwise prints."""
    words = [sys.executable, "-m", *shlex.split(line), "--json"]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{line} --json: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


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
        with redirect_stdout(out):
            if expression:
                value = eval(compile(text.strip(), "<page>", "eval"), self.namespace)
                print(repr(value) if value is not None else "", end="")
            else:
                exec(compile(text, "<page>", "exec"), self.namespace)
        return out.getvalue().splitlines()
