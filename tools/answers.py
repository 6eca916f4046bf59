"""Save and compare the answers that must not change by accident: for the built-in tables, and for the questions in README and docs.

    python tools/answers.py COMMAND > before.json      COMMAND is the meshwise to run, such as .venv/bin/meshwise
    python tools/answers.py before.json after.json     prints every number that differs by more than 1e-12, and exits with 1

Run it before and after a change that should move no number: numbers under the same key of the same question must agree.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLOSE = 1e-12
ROOT = Path(__file__).parent.parent
IGNORED = ("ask", "versions", "notes", "reasons", "commands", "date", "format")
"""Keys whose values are words, or may change with a release."""
MORE_QUESTIONS = (
    "plan llama-3-8b --on 8xh100-sxm --batch 64x4096 --framework torchtitan",
    "plan llama-3-8b --on '2x(4xrtx3090)@10Gbps' --batch 64 --seq 4k --framework fsdp",
    "plan mixtral-8x7b --on 16x8xh100-sxm --batch 1M --precision fp8",
    "plan ttt-linear-125m --on 1xh200 --batch 16x512",
    "plan llama-3.2-1b --on 1xh200 --batch 8x2048 --framework meshwise",
    "serve qwen3-30b-a3b --on 2xa100-80gb-sxm --users 16",
    "serve llama-3-8b:q8_0 --on m2-ultra",
    "serve llama-3-8b --on 8xh200 --users 128 --context 8k",
)


def questions() -> list[str]:
    """Return every question that README and docs show an answer to, as arguments of meshwise, and one per built-in table."""
    text = "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))))
    tables = sorted(path.stem for path in (ROOT / "src/meshwise/data/measurements").glob("*.csv"))
    return list(dict.fromkeys([*shown(text), *MORE_QUESTIONS, *(f"validate {name}" for name in tables)]))


def shown(text: str) -> list[str]:
    """Return the questions whose answers cog wrote into a page, without those that the page shows as refused input.

    They are read from cog's output, not from the program that makes it, which may put a question together from parts.
    """
    refused = re.findall(r'shown\.error\("meshwise ([^"]*)"', text)
    written = "\n".join(re.findall(r"\]\]\] -->(.*?)<!-- \[\[\[end\]\]\] -->", text, re.DOTALL))
    asked = re.findall(r"^\$ meshwise ((?:plan|serve|count) (?!--help)[^|;>\n]*)", written, re.MULTILINE)
    return [
        re.sub(r" --(out|svg|html) \S+| --verbose| --json", "", question).strip()
        for question in asked
        if question.strip() not in refused
    ]


def answer(command: str, question: str) -> Any:
    """Return the JSON answer to a question, or the error that refuses it."""
    done = subprocess.run([command, *shlex.split(question), "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"refused": done.stderr.strip()}


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number in a JSON value with the path to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in IGNORED:
                yield from numbers(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}/{i}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the differences; return 1 where there are any, else 0."""
    compared, differ, worst = 0, 0, 0.0
    for question, old in before.items():
        if question not in after:
            print(f"no longer asked: {question}")
            continue
        was, now = dict(numbers(old)), dict(numbers(after[question]))
        gone = [path for path in was if path not in now]
        if gone:
            differ += 1
            print(f"{question}: {len(gone)} numbers are missing, such as {gone[0]}")
        for path in was.keys() & now.keys():
            compared += 1
            error = abs(was[path] - now[path]) / max(abs(was[path]), abs(now[path]), 1e-300)
            worst = max(worst, error if was[path] != now[path] else 0.0)
            if was[path] != now[path] and error > CLOSE:
                differ += 1
                print(f"{question}{path}: {was[path]!r} before, {now[path]!r} after")
    print(
        f"{len(before)} questions, {compared:,} numbers compared, {differ} differ; the largest relative difference is {worst:.1e}"
    )
    return int(differ > 0)


def main() -> None:
    if len(sys.argv) == 3:
        sys.exit(compare(*(json.loads(Path(path).read_text()) for path in sys.argv[1:])))
    json.dump({question: answer(sys.argv[1], question) for question in questions()}, sys.stdout)


if __name__ == "__main__":
    main()
