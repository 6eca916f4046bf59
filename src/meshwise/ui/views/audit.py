"""Show an audit on a terminal: derived figures of each run, findings, notes, suggested layouts and the verdict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.audit import figures
from meshwise.audit.finding import Finding, percent
from meshwise.audit.report import Audit, File
from meshwise.ui.views.tables import Column, Table, wrapped

if TYPE_CHECKING:
    from meshwise.audit.doctor.parts import PartComparison
    from meshwise.audit.doctor.parts import Row as PartRow

MAX_RUNS = 12  # runs in the table, at most; --json has all
MAX_RUNS_IN_DETAIL = 3  # up to this many runs, TFLOP/s are shown by every formula
MAX_PLACES = 5
Row = dict[str, Any]  # one run of `Audit.rows`
MARGIN = " " * 8  # indents the lines of a finding; its certainty stands there in the first one
STYLES = {"certain": "bold red", "likely": "yellow", "unusual": "cyan"}


def kinds(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of training runs, and those of served models."""
    served = [row for row in rows if any(name in row for name in figures.SERVE_FIGURES)]
    return [row for row in rows if row not in served], served


def audit_view(audit: Audit, width: int) -> RenderableType:
    """Show files, the table of runs (runs with findings first, if there are too many), findings, notes, suggestions and the verdict."""
    rows = audit.rows()
    parts: list[RenderableType] = [wrapped(line, width, indent="  ") for file in audit.files for line in _file(file)]
    trained, served = kinds(rows)
    first_finding = {place: i for i, finding in reversed(list(enumerate(audit.findings))) for place in finding.where}
    for runs, columns in ((trained, TRAINED), (served, SERVED)):
        if runs:
            first = sorted(runs, key=lambda row: first_finding.get(row["where"], len(audit.findings)))[:MAX_RUNS]
            parts.append(runs_table([row for row in runs if row in first], columns).fitted(width))
            formulas = [line for row in runs if (line := _formulas(row))] if len(runs) <= MAX_RUNS_IN_DETAIL else []
            parts += [wrapped(line, width, indent="  ") for line in formulas]
            parts += [Text(f"... and {len(runs) - MAX_RUNS} more runs (--json has all)")] if len(runs) > MAX_RUNS else []
    parts += [Text(""), *(line for finding in audit.findings for line in _finding(finding, width))]
    parts += [wrapped(f"note: {note}", width, indent="  ") for note in audit.notes]
    parts += [wrapped(f"next: {suggestion.message}", width, indent="  ") for suggestion in audit.predictions.suggestions]
    return Group(*parts, wrapped(audit.verdict, width, style="bold"))


def runs_table(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> Table[Row]:
    """Return the table of runs, without columns that none of them fills."""
    return Table(columns, rows, edged=True).without_empty_columns()


def _file(file: File) -> list[str]:
    statements = f", {file.statements} statement{'s' * (file.statements != 1)}" if file.statements else ""
    return [
        f"{file.name}: {file.format}, {file.runs} run{'s' * (file.runs != 1)}{statements}",
        *(f"  skipped {line}" for line in file.skipped),
    ]


def _finding(finding: Finding, width: int) -> list[Text]:
    """Return the certainty with the message, the arithmetic, and where the figures stand; later lines are indented."""
    compared = f" (compared with {places(finding.compared_with)})" if finding.compared_with else ""
    message = wrapped(finding.message, width, f"{finding.certainty:<{len(MARGIN)}}", MARGIN)
    message.stylize(STYLES[finding.certainty], 0, len(MARGIN))
    details = (finding.arithmetic, f"{places(finding.where)}{compared}")
    return [message, *(wrapped(line, width, MARGIN, MARGIN, style="dim") for line in details)]


def places(where: tuple[str, ...]) -> str:
    """Return 'notes.md: line 3, line 9': each file is named once."""
    shown: list[str] = []
    for place in where[:MAX_PLACES]:
        source, _, position = place.partition(": ")
        before = shown[-1].partition(": ")[0] if shown else ""
        first = next((s.partition(": ")[0] for s in reversed(shown) if ": " in s), before)
        shown.append(position if position and first == source else place)
    return ", ".join(shown) + (f" and {len(where) - MAX_PLACES} more" if len(where) > MAX_PLACES else "")


def _count(row: Row, key: str) -> str:
    return f"{row[key]:,.0f}" if key in row else ""


def _number(row: Row, key: str) -> str:
    return f"{row[key]:.3g}" if key in row else ""


def _forward_tflops(row: Row) -> str:
    """Return the TFLOP/s of one forward pass: 2 N times the tokens per second."""
    rate = row.get("prefill") or row.get("decode")
    return f"{2 * row['params'] * rate / 1e12:.3g}" if "params" in row and rate else ""


def _layout(row: Row) -> str:
    """Return 'dp8 tp4 pp12 mbs2', without context and expert parallelism of 1."""
    names = {"micro_batch": "mbs", "zero_stage": "zero"}
    axes = {axis: value for axis, value in row.get("layout", {}).items() if axis not in ("cp", "ep") or value > 1}
    return " ".join(f"{names.get(axis, axis)}{value}" for axis, value in axes.items())


def _share(row: Row, key: str) -> str:
    value = row.get("mfu", {}).get(key)
    return percent(value) if value is not None else ""


def _printed(row: Row) -> str:
    """Return the formula that the printed TFLOP/s follow, and their ratio to it."""
    used = row.get("formula_used", "")
    if used:
        return f"{used} x {row['printed_over_formula']:.3f}"
    return f"none ({row['printed_over_formula']:.2f})" if "printed_over_formula" in row else ""


def _formulas(row: Row) -> str:
    """Return TFLOP/s and MFU of one run by each formula."""
    rates, shares = row.get("tflops", {}), row.get("mfu", {})
    if not rates:
        return ""
    each = (f"{name} {units.figure(x)}{f' ({percent(shares[name])})' if name in shares else ''}" for name, x in rates.items())
    return f"{TRAINED[0].cell(row)}, TFLOP/s per device by formula: {', '.join(each)}"


def _both(row: Row, key: str, scale: float, digits: str) -> str:
    """Return 'measured / predicted'."""
    measured, predicted = row.get(key), row.get(f"expected_{key}")
    shown = f"{measured / scale:{digits}}" if measured is not None else ""
    return f"{shown} / {predicted / scale:{digits}}" if predicted is not None else shown


TRAINED: tuple[Column[Row], ...] = (
    Column("run", lambda row: row["where"].partition(": ")[2] or row["where"], text=True),
    Column("N", lambda row: units.show(row["params"], "count", digits=3) if "params" in row else "", rank=4),
    Column("devices", lambda row: _count(row, "devices"), rank=2),
    Column("layout", _layout, rank=1, text=True),
    Column("tokens\n/step", lambda row: _count(row, "tokens_per_step"), rank=5),
    Column("s/step\n/ predicted", lambda row: _both(row, "seconds", 1.0, ",.4g")),
    Column("tok/s", lambda row: _count(row, "tokens_per_second")),
    Column("MFU\n6N", lambda row: _share(row, "6N"), rank=3),
    Column("MFU with\nattention", lambda row: _share(row, "PaLM"), rank=8),
    Column("formula\nprinted", _printed, rank=6, text=True),
    Column("GB\n/ predicted", lambda row: _both(row, "memory", 1e9, ".1f")),
    Column("scaling", lambda row: f"{row['scaling_efficiency']:.0%}" if "scaling_efficiency" in row else "", rank=7),
    Column("$/Mtok", lambda row: _number(row, "dollars_per_million_tokens"), rank=9),
)
SERVED: tuple[Column[Row], ...] = (
    TRAINED[0],
    Column("model", lambda row: row.get("model", ""), text=True),
    Column("chip", lambda row: row.get("chip", ""), rank=2),
    Column("devices", lambda row: _count(row, "devices"), rank=3),
    Column("prompt", lambda row: _count(row, "prompt"), rank=1),
    Column("output", lambda row: _count(row, "output"), rank=1),
    Column("prompt tok/s\n/ predicted", lambda row: _both(row, "prefill", 1.0, ",.1f")),
    Column("generated tok/s\n/ predicted", lambda row: _both(row, "decode", 1.0, ",.1f")),
    Column("users", lambda row: _count(row, "users"), rank=5),
    Column("requests/s", lambda row: _number(row, "request_rate"), rank=5),
    Column("TTFT, s\n/ predicted", lambda row: _both(row, "ttft", 1.0, ".3g"), rank=6),
    Column("s per token\n/ predicted", lambda row: _both(row, "tpot", 1.0, ".3g"), rank=6),
    Column("2N\nTFLOP/s", _forward_tflops, rank=4),
)


def parts_view(comparison: "PartComparison", width: int) -> RenderableType:
    """Show predicted and measured seconds by part of the step."""
    columns: list[Column[PartRow]] = [
        Column("part", lambda row: row.part, text=True),
        Column("predicted", lambda row: _seconds(row.predicted)),
        Column("measured", lambda row: _seconds(row.measured)),
        Column("measured / predicted", _ratio),
    ]
    table = Table(columns, comparison.rows, edged=True, summed=True).fitted(width)
    return Group(wrapped(comparison.title, width), table, *(wrapped(note, width) for note in comparison.notes))


def _seconds(value: float | None) -> str:
    return "" if value is None else units.show(value, "seconds", digits=3)


def _ratio(row: "PartRow") -> str:
    return f"{row.measured / row.predicted:.2f}" if row.predicted and row.measured is not None else ""
