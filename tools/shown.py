"""For cog: what a command really prints, as a block for Markdown."""

import os
import subprocess
import sys
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
