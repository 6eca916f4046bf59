"""The page Runs: runs of 'meshwise run' named on the command line, live or finished, side by side; and results of bench."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from meshwise import api, units
from meshwise.errors import UserError, nearest, quoted
from meshwise.run.train.folder import RunFolder
from meshwise.ui.views import bench as bench_views
from meshwise.ui.views.run.words import row_layout_name
from meshwise.ui.views.tables import Column, Table
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages.page import Page, Reply, Site
from meshwise.units import GIB

Figures = dict[str, float | None]
MAX_RUNS_DRAWN = 6  # runs whose curves are drawn at once
POLL_SECONDS = 0.5  # seconds between two looks at the file of steps
LOOKS_PER_HEARTBEAT = 30  # looks without news after which a comment keeps the connection open
CHARTS = (
    ("loss", "loss", ""), ("tokens_per_second", "tokens/s", "tokens_per_second"), ("mfu", "MFU, %", "mfu"),
    ("memory", "GiB on the fullest device", "memory"),
)  # fmt: skip


def chosen(site: Site, query: Pairs) -> dict[str, Path]:
    """Return the folders that a query asks for; all, up to MAX_RUNS_DRAWN, where it names none."""
    known, names = site.named.runs, [value for name, value in query if name == "run"]
    for name, _ in query:
        if name != "run":
            raise UserError(f"there is no field {quoted(name)}{nearest(name, ['run'])}")
    for name in names:
        if name not in known:
            raise UserError(f"run {quoted(name)} was not named on the command line of 'meshwise ui'{nearest(name, known)}")
    return {name: known[name] for name in names or list(known)[:MAX_RUNS_DRAWN]}


def answer(site: Site, query: Pairs) -> Reply | None:
    if not site.named.runs and not site.named.benches:
        return None
    runs = [api.load_run(folder) for folder in chosen(site, query).values()]
    benches = [(name, api.load_bench(path)) for name, path in site.named.benches.items()]
    values = {
        "runs": [about(run) for run in runs],
        "others": [name for name in site.named.runs if name not in {run.name for run in runs}],
        "table": table(runs),
        "charts": [chart for chart in CHARTS if any(point[chart[0]] is not None for run in runs for point in run.points())],
        "drawing": [drawing(run) for run in runs],
        "benches": [(name, bench.data["model"], bench_views.table(bench.points)) for name, bench in benches],
        "live": any(run.running for run in runs),
    }
    steps = [about(run) | {"steps": run.points()} for run in runs]
    data = {"runs": steps, "benches": {name: bench.to_json() for name, bench in benches}}
    rows = [{"run": run.name, **point} for run in runs for point in run.points()]
    return Reply(values, data, rows, "Runs")


def about(run: RunFolder) -> dict[str, Any]:
    s = run.settings
    state = (
        "running" if run.running else f"stopped: {run.stopped}" if run.stopped else "done" if len(run.steps) else "no steps yet"
    )
    return {
        "name": run.name, "model": s.name, "devices": s.layout.devices, "gpu": str(s.facts.get("gpu", s.device)),
        "state": state, "running": run.running, "done": run.steps[-1].step + 1 if run.steps else 0, "steps": s.steps,
        "predicted": run.predicted, "measured": run.measured,
    }  # fmt: skip


def drawing(run: RunFolder) -> dict[str, Any]:
    """Return the curves of a run, and where to listen for more."""
    return {
        "name": run.name, "running": run.running,
        "predicted": {key: _plain(key, value) for key, value in run.predicted.items()},
        "points": [_scaled(point) for point in run.points()],
    }  # fmt: skip


def _plain(key: str, value: float | None) -> float | None:
    """Return a figure in the unit of its chart: GiB and percent."""
    if value is None:
        return None
    return value / GIB if key == "memory" else 100 * value if key == "mfu" else value


def _scaled(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value if key == "step" else _plain(key, value) for key, value in point.items()}


def table(runs: list[RunFolder]) -> Table[RunFolder]:
    """Return the runs side by side, measured beside predicted."""
    return Table(COLUMNS, runs).without_empty_columns()


def _layout(run: RunFolder) -> str:
    a = run.settings.layout
    return row_layout_name(run.row) if run.row.get("outcome") == "ok" else f"dp{a.dp} tp{a.tp} pp{a.pp} mbs{a.mbs}"


def _seconds(figures: Figures) -> str:
    return _text(figures.get("seconds"), lambda value: units.show(value, "seconds", digits=3))


def _memory(figures: Figures) -> str:
    return _text(figures.get("memory"), lambda value: f"{value / GIB:.2f}")


def _text(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)


COLUMNS: tuple[Column[RunFolder], ...] = (
    Column("run", lambda run: run.name, text=True), Column("model", lambda run: run.settings.name, text=True),
    Column("layout", _layout, text=True), Column("devices", lambda run: f"{run.settings.layout.devices:,}"),
    Column("steps", lambda run: f"{len(run.steps):,} of {run.settings.steps:,}"),
    Column("s/step", lambda run: _seconds(run.measured)), Column("predicted", lambda run: _seconds(run.predicted)),
    Column("tokens/s", lambda run: _text(run.measured.get("tokens_per_second"), lambda value: f"{value:,.0f}")),
    Column("MFU", lambda run: _text(run.measured.get("mfu"), lambda value: f"{100 * value:.1f}%")),
    Column("GiB", lambda run: _memory(run.measured)), Column("predicted", lambda run: _memory(run.predicted)),
    Column("loss", lambda run: f"{run.steps[0].loss:.3f} to {run.steps[-1].loss:.3f}" if run.steps else ""),
)  # fmt: skip


async def events(folder: Path) -> AsyncIterator[str]:
    """Yield new steps of a run as server-sent events, until it ends."""
    sent, silent = 0, 0
    while True:
        run = await asyncio.to_thread(api.load_run, folder)
        points = run.points(sent)
        if points or not run.running:
            sent, silent = sent + len(points), 0
            told: dict[str, Any] = about(run) | {"measured": {}, "predicted": {}}
            news = {"points": [_scaled(point) for point in points], "about": told}
            yield f"data: {json.dumps(news, allow_nan=False)}\n\n"
        if not run.running:
            yield "event: end\ndata: {}\n\n"
            return
        silent += 1
        if silent % LOOKS_PER_HEARTBEAT == 0:
            yield ": still there\n\n"
        await asyncio.sleep(POLL_SECONDS)


PAGE = Page(
    name="runs", title="Runs", about="Runs of meshwise, live and finished, and results of bench", template="runs.html",
    answer=answer, live=True,
)  # fmt: skip
