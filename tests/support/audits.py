"""Shared by the tests of `audit`: the fixtures, and audits, runs and figures made from a few numbers."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwise.audit import report
from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding
from meshwise.audit.report import Audit
from meshwise.programs.logs import detect
from meshwise.programs.logs.lines import lines
from meshwise.runs.reading import Reading
from meshwise.runs.run import Run

FIXTURES = Path(__file__).parents[1] / "fixtures" / "audit"
FILES = sorted(path for path in FIXTURES.iterdir() if path.name != "README.md")
LLAMA: dict[str, Any] = {
    "layers": 32.0,
    "hidden": 4096.0,
    "ffn": 14336.0,
    "heads": 32.0,
    "kv_heads": 8.0,
    "vocab": 128256.0,
    "params": 8.03e9,
}
"""The shape of Llama 3 8B."""


def audit_of(*names: str, planned: bool = True) -> Audit:
    """Audit fixtures."""
    return report.audit(report.read_files([FIXTURES / name for name in names], "", Run({})), planned=planned)


def findings_of(audit: Audit, rule: str, words: str = "") -> list[Finding]:
    """Return the findings of a rule that contain `words` in their message or arithmetic."""
    return [one for one in audit.findings if one.rule == rule and words in f"{one.message} {one.arithmetic}"]


def line_of(name: str, text: str) -> str:
    """Return the place of the first line of a fixture that contains `text`, as findings name it."""
    rows = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    return f"{name}: line {next(number for number, row in enumerate(rows, 1) if text in row)}"


def runs_of(name: str) -> list[Run]:
    """Return the runs of a fixture."""
    return detect.read_file(FIXTURES / name).runs


def read_text(text: str, format_name: str) -> Reading:
    """Read a text in the named format."""
    return detect.find_format(format_name).read(lines(io.StringIO(text)))


def figures(source: str = "x", ranks: tuple[float, ...] = (), texts: dict[str, str] | None = None, **numbers: float) -> Figures:
    """Return the figures of one run, on H100s unless `texts` names another GPU."""
    run = Run.told("line 1", {"chip": "h100-sxm", **(texts or {}), **numbers})
    return Figures(replace(run, ranks={"tokens_per_second": ranks} if ranks else {}), source)


def table(rows: list[dict[str, float]], **shared: float) -> list[Figures]:
    """Return the figures of the rows of one table, on A100s."""
    return [
        Figures(Run.told(f"line {i}", {"chip": "a100-80gb", **shared, **row}, section="t"), "x") for i, row in enumerate(rows, 1)
    ]
