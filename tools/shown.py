"""For cog: run a command or a piece of Python, and print it with its output as a Markdown block."""

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
