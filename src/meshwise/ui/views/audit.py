"""Show an audit on a terminal: derived figures of each run, findings, notes, suggested layouts and the verdict."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.audit.finding import Finding, percent
from meshwise.audit.report import Audit, File

if TYPE_CHECKING:
    from meshwise.audit.profile.parts import PartComparison  # imports the planner

MOST_RUNS = 12
"""Runs in the table; --json has all."""
FEW = 3
"""Up to this many runs, TFLOP/s are shown by every formula."""
MOST_PLACES = 5
Cell = Callable[[dict[str, Any]], str]
STYLES = {"certain": "bold red", "likely": "yellow", "unusual": "cyan"}


def audit_view(found: Audit) -> RenderableType:
    """Show files, the table of runs (if there are too many, those with findings), findings, notes, suggestions and the verdict."""
    rows = found.rows()
    parts: list[RenderableType] = [Text(line) for file in found.files for line in _file(file)]
    trained = [row for row in rows if "prefill" not in row and "decode" not in row]
    served = [row for row in rows if "prefill" in row or "decode" in row]
    first_finding = {place: i for i, finding in reversed(list(enumerate(found.findings))) for place in finding.where}
    for some, columns in ((trained, TRAINED), (served, SERVED)):
        if some:
            first = sorted(some, key=lambda row: first_finding.get(row["where"], len(found.findings)))[:MOST_RUNS]
            parts.append(_table([row for row in some if row in first], columns))
            parts += [Text(line) for row in some[:FEW] if (line := _formulas(row)) and len(some) <= FEW]
            parts += [Text(f"... and {len(some) - MOST_RUNS} more runs (--json has all)")] if len(some) > MOST_RUNS else []
    parts += [Text(""), *(_finding(finding) for finding in found.findings)]
    parts += [Text(f"note: {note}") for note in found.notes]
    parts += [Text(f"next: {one.message}") for one in found.predictions.suggestions]
    return Group(*parts, Text(found.verdict, style="bold"))


def _file(file: File) -> list[str]:
    statements = f", {file.statements} statement{'s' * (file.statements != 1)}" if file.statements else ""
    return [
        f"{file.name}: {file.format}, {file.runs} run{'s' * (file.runs != 1)}{statements}",
        *(f"  skipped {line}" for line in file.skipped),
    ]


def _finding(finding: Finding) -> Text:
    compared = f" (compared with {_places(finding.compared_with)})" if finding.compared_with else ""
    text = Text()
    text.append(f"{finding.certainty:<8}", style=STYLES[finding.certainty])
    text.append(f"{finding.message}\n")
    text.append(f"        {finding.arithmetic}\n        {_places(finding.where)}{compared}", style="dim")
    return text


def _places(places: tuple[str, ...]) -> str:
    """Return 'notes.md: line 3, line 9': each file is named once."""
    shown: list[str] = []
    for place in places[:MOST_PLACES]:
        source, _, where = place.partition(": ")
        before = shown[-1].partition(": ")[0] if shown else ""
        first = next((s.partition(": ")[0] for s in reversed(shown) if ": " in s), before)
        shown.append(where if where and first == source else place)
    return ", ".join(shown) + (f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else "")


def _count(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:,.0f}" if key in row else ""


def _layout(row: dict[str, Any]) -> str:
    """Return 'dp8 tp4 pp12 mbs2', without context and expert parallelism of 1."""
    names = {"micro_batch": "mbs", "zero_stage": "zero"}
    axes = {axis: value for axis, value in row.get("layout", {}).items() if axis not in ("cp", "ep") or value > 1}
    return " ".join(f"{names.get(axis, axis)}{value}" for axis, value in axes.items())


def _share(row: dict[str, Any], key: str) -> str:
    value = row.get("mfu", {}).get(key)
    return percent(value) if value is not None else ""


def _printed(row: dict[str, Any]) -> str:
    used = row.get("formula_used", "")
    return (
        f"{used} x {row['printed_over_formula']:.3f}"
        if used
        else f"none ({row['printed_over_formula']:.2f})"
        if "printed_over_formula" in row
        else ""
    )


def _formulas(row: dict[str, Any]) -> str:
    """Return TFLOP/s and MFU of one run by each formula."""
    rates, shares = row.get("tflops", {}), row.get("mfu", {})
    if not rates:
        return ""
    each = (f"{name} {rate:.3g}" + (f" ({percent(shares[name])})" if name in shares else "") for name, rate in rates.items())
    return f"{TRAINED['run'](row)}, TFLOP/s per device by formula: {', '.join(each)}"


def _both(row: dict[str, Any], key: str, scale: float, digits: str) -> str:
    """Return 'measured / predicted'."""
    measured, predicted = row.get(key), row.get(f"expected_{key}")
    shown = f"{measured / scale:{digits}}" if measured is not None else ""
    return f"{shown} / {predicted / scale:{digits}}" if predicted is not None else shown


TRAINED: dict[str, Cell] = {
    "run": lambda row: row["where"].partition(": ")[2] or row["where"],
    "N": lambda row: units.show(row["params"], "count", digits=3) if "params" in row else "",
    "devices": lambda row: _count(row, "devices"),
    "layout": _layout,
    "tokens/step": lambda row: _count(row, "tokens_per_step"),
    "s/step / predicted": lambda row: _both(row, "seconds", 1.0, ",.4g"),
    "tok/s": lambda row: _count(row, "tokens_per_second"),
    "MFU 6N": lambda row: _share(row, "6N"),
    "MFU + attention": lambda row: _share(row, "PaLM"),
    "formula printed": _printed,
    "GB / predicted": lambda row: _both(row, "memory", 1e9, ".1f"),
    "scaling": lambda row: f"{row['scaling_efficiency']:.0%}" if "scaling_efficiency" in row else "",
    "$/Mtok": lambda row: f"{row['dollars_per_million_tokens']:.3g}" if "dollars_per_million_tokens" in row else "",
}
SERVED: dict[str, Cell] = {
    "run": TRAINED["run"],
    "model": lambda row: row.get("model", ""),
    "chip": lambda row: row.get("chip", ""),
    "devices": TRAINED["devices"],
    "prompt": lambda row: _count(row, "prompt"),
    "output": lambda row: _count(row, "output"),
    "prompt tok/s / predicted": lambda row: _both(row, "prefill", 1.0, ",.1f"),
    "generated tok/s / predicted": lambda row: _both(row, "decode", 1.0, ",.1f"),
    "2N TFLOP/s": lambda row: (
        f"{2 * row['params'] * (row.get('prefill') or row['decode']) / 1e12:.3g}" if "params" in row else ""
    ),
}


def _table(rows: list[dict[str, Any]], columns: dict[str, Cell]) -> Table:
    cells = {name: [show(row) for row in rows] for name, show in columns.items()}
    kept = {name: some for name, some in cells.items() if any(some)}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for i, name in enumerate(kept):
        table.add_column(name, justify="left" if i == 0 or name in ("layout", "formula printed", "model") else "right")
    for row in zip(*kept.values(), strict=True):
        table.add_row(*row)
    return table


def parts_view(found: "PartComparison") -> RenderableType:
    """Show predicted and measured seconds by part of the step."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("part", "predicted", "measured", "measured / predicted"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for row in found.rows:
        show = [units.show(value, "seconds", digits=3) if value is not None else "" for value in (row.predicted, row.measured)]
        ratio = f"{row.measured / row.predicted:.2f}" if row.predicted and row.measured is not None else ""
        table.add_row(row.part, *show, ratio, end_section=row.part == found.rows[-2].part if len(found.rows) > 1 else False)
    return Group(Text(found.title), table, *map(Text, found.notes))
