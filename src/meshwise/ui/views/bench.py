"""A bench as a table: measured, what was predicted beside it, and what users waited for."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwise import units
from meshwise.run.serve.report import Report
from meshwise.units import MIB


def bench_view(told: Report, lines: list[str]) -> RenderableType:
    """One row per setting; a column only where something stands in it."""
    points = told["points"]
    guessed = any(one["predicted"] for one in points)
    own = any(one["engine_decode"] for one in points)
    varied = any("gpus" in one for one in points)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    titles = [
        *(["gpus"] if varied else []),
        "users",
        "prompt",
        "output",
        "tokens/s",
        "spread",
        *(["predicted"] if guessed else []),
    ]
    titles += ["each", *(["engine says"] if own else []), "prompt tokens/s", *(["predicted"] if guessed else [])]
    titles += ["first token", "p95", "next token", "p95", "p99"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for one in points:
        table.add_row(*_cells(one, guessed, own, varied))
    head = Text(f"{told['model']} with {told['engine']}, {told['repeats']} repeats after a warm-up", style="bold")
    faults = [f"{words} ({number}x)" for one in points for words, number in one["faults"].items()]
    notes = list(dict.fromkeys(note for one in points for note in one["notes"]))
    below = [f"failed: {line}" for line in dict.fromkeys(faults)] + [f"note: {line}" for line in notes] + lines
    held = [memory_view(told["memory"], "it says")] if told.get("memory") else []
    return Group(head, table, *held, *(Text(line) for line in below))


def memory_view(rows: Sequence[Mapping[str, Any]], who: str) -> RenderableType:
    """What each device holds, in MiB: planned, and what llama.cpp says of it."""
    again = [
        Text(
            f"{row['device']}: {row['repacked'] / MIB:,.2f} MiB of the weights are repacked for its processor, beside what it maps"
        )
        for row in rows
        if row["repacked"]
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("MiB on")
    for kind in ("weights", "cache", "compute"):
        table.add_column(f"{kind}, planned", justify="right", no_wrap=True)
        table.add_column(who, justify="right", no_wrap=True)
    for row in rows:
        cells = [row[name] for kind in ("weights", "cache", "compute") for name in (f"planned_{kind}", kind)]
        table.add_row(str(row["device"]), *(f"{cell / MIB:,.2f}" for cell in cells))
    return Group(table, *again)


def _cells(one: dict[str, Any], guessed: bool, own: bool, varied: bool) -> list[str]:
    told: dict[str, Any] = one["predicted"] or {}
    cells = [*([str(one.get("gpus", ""))] if varied else []), str(one["users"]), f"{one['prompt_tokens'] or one['prompt']:.0f}"]
    cells += [str(one["output"]), _rate(one["decode"]), f"{100 * one['spread']:.1f}%" if one["repeats"] > 1 else ""]
    cells += [_rate(told.get("decode"))] if guessed else []
    cells += [_rate(one["per_user"]), *([_rate(one["engine_decode"])] if own else []), _rate(one["prefill"])]
    cells += [_rate(told.get("prefill"))] if guessed else []
    return cells + [_time(one.get(name)) for name in ("ttft_p50", "ttft_p95", "gap_p50", "gap_p95", "gap_p99")]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _time(value: float | None) -> str:
    return "" if value is None else units.show(value, "seconds", digits=3)
