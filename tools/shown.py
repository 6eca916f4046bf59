"""For cog: what a command or a piece of Python really prints, as a block for Markdown."""

import ast
import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
WIDTH = 100


def environment() -> dict[str, str]:
    """The programs of this virtual environment first, and a width that pages show without a scroll bar."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "LC_ALL": "C.UTF-8", "COLUMNS": str(WIDTH)}


def command(line: str) -> None:
    """Print `line` and what it writes, as a console block. A command that fails fails the document."""
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback (most recent call last)" in done.stderr:
        raise SystemExit(f"{line}: exit {done.returncode}: {done.stderr}")
    lines = [text.rstrip() for text in (done.stdout + done.stderr).strip("\n").splitlines()]
    print("\n```console", f"$ {line}", *lines, "```\n", sep="\n")


def error(line: str) -> None:
    """Print `line` and the one line it answers bad input with."""
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode != 2 or done.stdout:
        raise SystemExit(f"{line}: exit {done.returncode}, expected 2: {done.stdout}")
    print("\n```console", f"$ {line}", done.stderr.strip(), "```\n", sep="\n")


class Python:
    """Blocks of Python for one page, run in one namespace. Results stand below their line as comments, '#> ...'."""

    MARK = "#> "

    def __init__(self) -> None:
        self.namespace: dict[str, object] = {}

    def again(self, block: str) -> None:
        """Run a python block, which is `cog.previous`, and print it with its results of now."""
        source = block.partition("```python\n")[2].rpartition("```")[0]
        print("\n```python", *self.lines(source), "```\n", sep="\n")

    def lines(self, source: str) -> list[str]:
        """The lines of `source`, each statement followed by its results. Results of an earlier run are dropped."""
        written = [line for line in source.strip("\n").splitlines() if not line.startswith(self.MARK)]
        found: list[str] = []
        done = 0
        for statement in ast.parse("\n".join(written)).body:
            end = statement.end_lineno or done
            text = "\n".join(written[done:end])
            found += written[done:end]
            done = end
            found += [f"{self.MARK}{line}".rstrip() for line in self._run(text, isinstance(statement, ast.Expr))]
        return [*found, *written[done:]]

    def _run(self, text: str, expression: bool) -> list[str]:
        out = io.StringIO()
        with redirect_stdout(out):
            if expression:
                value = eval(compile(text.strip(), "<page>", "eval"), self.namespace)
                print(repr(value) if value is not None else "", end="")
            else:
                exec(compile(text, "<page>", "exec"), self.namespace)
        return out.getvalue().splitlines()
