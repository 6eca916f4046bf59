"""For cog: what a command really prints, as a block for Markdown."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def command(line: str) -> None:
    """Print `line` and what it writes, as a console block. A command that fails fails the document."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1) or "Traceback (most recent call last)" in done.stderr:
        raise SystemExit(f"{line}: exit {done.returncode}: {done.stderr}")
    lines = [text.rstrip() for text in (done.stdout + done.stderr).strip("\n").splitlines()]
    print("\n```console", f"$ {line}", *lines, "```\n", sep="\n")


def error(line: str) -> None:
    """Print `line` and the one line it answers bad input with."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 2 or done.stdout:
        raise SystemExit(f"{line}: exit {done.returncode}, expected 2: {done.stdout}")
    print("\n```console", f"$ {line}", done.stderr.strip(), "```\n", sep="\n")
