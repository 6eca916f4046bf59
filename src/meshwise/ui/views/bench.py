"""A bench as a table: measured and predicted rates, and latencies."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwise import units
from meshwise.ui.views.tables import Column, Table
from meshwise.units import MIB, figure

if TYPE_CHECKING:
    from meshwise.run.serve.bench import Bench
    from meshwise.run.serve.report import Change
    from meshwise.run.share import Shared

Point = dict[str, Any]
Row = Mapping[str, Any]
RATES = {"decode": "generation", "prefill": "prompts"}


def bench_view(bench: "Bench", width: int) -> RenderableType:
    """Return one row per setting, with as many columns as fit; then memory, faults, notes and causes of a gap."""
    data, points = bench.data, bench.points
    where = f"at {data['endpoint']}" if data["engine"] == "an endpoint" else f"with {data['engine']}"
    how = data["trace"] if data.get("trace") else f"{data['repeats']} repeats after a warm-up"
    head = Text(f"{data['model']} {where}, {how}", style="bold")
    faults = [f"{words} ({number}x)" for point in points for words, number in point["faults"].items()]
    notes = list(dict.fromkeys(note for point in points for note in point["notes"]))
    below = [f"failed: {line}" for line in dict.fromkeys(faults)] + [f"note: {line}" for line in notes]
    below += [*_power(data.get("power")), *bench.lines, *_against(bench.changes)]
    memory = [memory_view(data["memory"], width)] if data.get("memory") else []
    beside = [compared(data["compared"]).fitted(width)] if data.get("compared") else []
    return Group(head, table(points).fitted(width), *memory, *beside, *(Text(line) for line in below))


def compared(rows: Sequence[Row]) -> Table[Row]:
    """Return measured beside simulated percentiles of a trace."""

    def shown(name: str) -> Callable[[Row], str]:
        return lambda row: f"{100 * row[name]:.1f}%" if row["figure"] == "hits" else _time(row[name])

    titles = {"ttft": "TTFT", "tpot": "per token", "e2e": "request", "hits": "cached"}
    return Table(
        [
            Column("", lambda row: f"{titles[row['figure']]} {row['part']}", text=True),
            Column("measured", shown("measured")),
            Column("simulated", shown("simulated")),
            Column("(90%)", lambda row: f"{shown('low')(row)}-{shown('high')(row)}", 1),
            Column("off by", lambda row: f"{100 * (row['simulated'] / row['measured'] - 1):+.0f}%" if row["measured"] else "", 2),
        ],
        rows,
    )


def _power(power: "Row | None") -> list[str]:
    """Return what the devices drew while all settings were measured, beside the prediction."""
    if not power:
        return []
    planned = f", predicted {power['predicted_watts']:,.0f} W under load" if power.get("predicted_watts") else ""
    kwh = power["joules"] / 3.6e6
    return [
        f"power: {power['watts']:,.0f} W on average by {power['meter']}, {figure(kwh)} kWh in {power['seconds']:.0f} s{planned}"
    ]


def _against(changes: "Sequence[Change] | None") -> list[str]:
    """Return a line for each rate that an earlier report has too."""
    none = ["the earlier report has none of these settings"]
    return [] if changes is None else [_change(one) for one in changes] or none


def _change(one: "Change") -> str:
    users = one.point["users"]
    setting = f"{users} concurrent request{'s' * (users != 1)}, prompt {one.point['prompt']}, {RATES[one.rate]}"
    verdict = "more than noise" if one.significant else "within noise"
    chance = f", {verdict} (95% of chance differences are within {100 * one.noise:.1f}%)"
    if math.isinf(one.noise):
        chance = "; with one repeat each, this may be noise"
    return f"{setting}: {100 * one.change:+.1f}%{chance}"


def table(points: Sequence[Point]) -> Table[Point]:
    """Return one row per setting, with the columns that at least one has values for."""
    opened = any("rate" in point for point in points)
    return Table(_open_columns() if opened else _columns(), points).without_empty_columns()


def _columns() -> list[Column[Point]]:
    """Return the columns of a number of concurrent requests."""

    def rate(name: str) -> Callable[[Point], str]:
        return lambda point: _rate(point[name])

    def predicted(name: str) -> Callable[[Point], str]:
        return lambda point: _rate(point["predicted"][name] if point["predicted"] else None)

    def time(name: str) -> Callable[[Point], str]:
        return lambda point: _time(point.get(name))

    return [
        Column("gpus", lambda point: str(point.get("gpus", ""))),
        Column("requests", lambda point: str(point["users"]), short_title="req"),
        Column("prompt", lambda point: f"{point['prompt_tokens'] or point['prompt']:.0f}", short_title="in"),
        Column("output", lambda point: str(point["output"]), short_title="out"),
        Column("tokens/s", rate("decode"), short_title="tok/s"),
        Column("spread", lambda point: f"{100 * point['spread']:.1f}%" if point["repeats"] > 1 else "", 1),
        Column("predicted", predicted("decode"), short_title="pred"),
        Column("with prompts", lambda point: _rate(point["with_prompts"]) if point["users"] > 1 else "", 3),
        Column("predicted", lambda point: predicted("with_prompts")(point) if point["users"] > 1 else "", 3, short_title="pred"),
        Column("each", rate("per_user"), 3), Column("by engine", rate("engine_decode"), 4),
        Column("prompt tokens/s", rate("prefill"), short_title="in tok/s"),
        Column("predicted", predicted("prefill"), short_title="pred"), Column("TTFT", time("ttft_p50")),
        Column("p95", time("ttft_p95"), 2), Column("per token", time("gap_p50"), short_title="TPOT"),
        Column("p95", time("gap_p95"), 2), Column("p99", time("gap_p99"), 4),
    ]  # fmt: skip


def _open_columns() -> list[Column[Point]]:
    """Return the columns of an open loop: rates of requests, goodput, and latencies with the predicted ones beside them."""

    def time(name: str) -> Callable[[Point], str]:
        return lambda point: _time(point.get(name))

    def predicted(name: str) -> Callable[[Point], str]:
        return lambda point: _time(point["predicted"][name]) if point["predicted"] else ""

    return [
        Column("requests/s", lambda point: figure(point["rate"]), short_title="req/s"),
        Column("finished", lambda point: figure(point["finished"]), 4),
        Column("goodput", lambda point: figure(point["goodput"])),
        Column("prompt", lambda point: f"{point['prompt_tokens'] or point['prompt']:.0f}", 3, short_title="in"),
        Column("output", lambda point: str(point["output"]), 3, short_title="out"),
        Column("tokens/s, prompts included", lambda point: _rate(point["output_rate"]), short_title="tok/s"),
        Column("TTFT p50", time("ttft_p50")),
        Column("predicted", predicted("ttft_p50"), 1, short_title="pred"),
        Column("p95", time("ttft_p95")),
        Column("predicted", predicted("ttft_p95"), 1, short_title="pred"),
        Column("per token p50", time("tpot_p50"), short_title="TPOT"),
        Column("predicted", predicted("tpot_p50"), 1, short_title="pred"),
        Column("request p95", time("e2e_p95"), 2),
        Column("predicted", predicted("e2e_p95"), 2, short_title="pred"),
    ]


def memory_view(rows: Sequence[Row], width: int, source: str = "llama.cpp") -> RenderableType:
    """Return the memory of each device in MiB: planned, and as reported by `source`, llama.cpp's log or its dry run."""

    def mib(name: str) -> Callable[[Row], str]:
        return lambda row: f"{row[name] / MIB:,.2f}"

    columns: list[Column[Row]] = [Column("MiB on", lambda row: str(row["device"]), text=True)]
    for kind, title in (("weights", "weights"), ("cache", "KV cache"), ("compute", "compute")):
        columns.append(Column(f"{title}, planned", mib(f"planned_{kind}"), short_title=title))
        columns.append(Column(source, mib(kind), short_title="reported"))
    words = "MiB of weights are repacked for its CPU, in addition to the mapped file"
    repacked = [Text(f"{row['device']}: {row['repacked'] / MIB:,.2f} {words}") for row in rows if row["repacked"]]
    return Group(Table(columns, rows).fitted(width), *repacked)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else figure(value)


def _time(value: float | None) -> str:
    return "" if value is None else units.show(value, "seconds", digits=3)


def shared_view(shared: "Shared", width: int) -> RenderableType:
    """Return every value of the rows to share, and the file."""
    rows = [Text(f"  {name}: {value}") for row in shared.rows() for name, value in row.items() if value]
    where = f"written to {shared.path}" if shared.written else f"nothing is written yet; --yes writes it to {shared.path}"
    check = f"'meshwise validate {shared.path.parent}' scores such rows; add the file by a pull request to share it"
    return Group(Text(f"{len(shared.rows())} rows, this and nothing else", style="bold"), *rows, Text(where), Text(check))
