"""A bench as a table: measured rates beside predicted ones, and latencies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.units import MIB

if TYPE_CHECKING:
    from meshwise.run.serve.bench import Bench

REPORTED = "llama.cpp"
"""Title of the columns with the bytes that a server logs."""


def bench_view(found: "Bench") -> RenderableType:
    """One row per setting; columns that are empty in every row are left out."""
    data, points = found.data, found.points
    predicted = any(one["predicted"] for one in points)
    timed = any(one["engine_decode"] for one in points)
    varied = any("gpus" in one for one in points)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    titles = [*(["gpus"] if varied else []), "requests", "prompt", "output", "tokens/s", "spread"]
    titles += [*(["predicted"] if predicted else []), "each", *(["by engine"] if timed else []), "prompt tokens/s"]
    titles += [*(["predicted"] if predicted else []), "TTFT", "p95", "per token", "p95", "p99"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for one in points:
        table.add_row(*_cells(one, predicted, timed, varied))
    head = Text(f"{data['model']} with {data['engine']}, {data['repeats']} repeats after a warm-up", style="bold")
    faults = [f"{words} ({number}x)" for one in points for words, number in one["faults"].items()]
    notes = list(dict.fromkeys(note for one in points for note in one["notes"]))
    below = [f"failed: {line}" for line in dict.fromkeys(faults)] + [f"note: {line}" for line in notes] + list(found.lines)
    held = [memory_view(data["memory"], REPORTED)] if data.get("memory") else []
    return Group(head, table, *held, *(Text(line) for line in below))


def memory_view(rows: Sequence[Mapping[str, Any]], source: str) -> RenderableType:
    """Memory on each device in MiB: planned, and by `source`, llama.cpp's log or dry run."""
    repacked = [
        Text(f"{row['device']}: {row['repacked'] / MIB:,.2f} MiB of weights are repacked for its CPU, besides the mapped file")
        for row in rows
        if row["repacked"]
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("MiB on")
    for title in ("weights", "KV cache", "compute"):
        table.add_column(f"{title}, planned", justify="right", no_wrap=True)
        table.add_column(source, justify="right", no_wrap=True)
    for row in rows:
        cells = [row[name] for kind in ("weights", "cache", "compute") for name in (f"planned_{kind}", kind)]
        table.add_row(str(row["device"]), *(f"{cell / MIB:,.2f}" for cell in cells))
    return Group(table, *repacked)


def _cells(one: dict[str, Any], predicted: bool, timed: bool, varied: bool) -> list[str]:
    plan: dict[str, Any] = one["predicted"] or {}
    cells = [*([str(one.get("gpus", ""))] if varied else []), str(one["users"]), f"{one['prompt_tokens'] or one['prompt']:.0f}"]
    cells += [str(one["output"]), _rate(one["decode"]), f"{100 * one['spread']:.1f}%" if one["repeats"] > 1 else ""]
    cells += [_rate(plan.get("decode"))] if predicted else []
    cells += [_rate(one["per_user"]), *([_rate(one["engine_decode"])] if timed else []), _rate(one["prefill"])]
    cells += [_rate(plan.get("prefill"))] if predicted else []
    return cells + [_time(one.get(name)) for name in ("ttft_p50", "ttft_p95", "gap_p50", "gap_p95", "gap_p99")]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(value: float | None) -> str:
    return "" if value is None else units.show(value, "seconds", digits=3)
