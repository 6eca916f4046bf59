"""Predictions scored on measurements, as tables and points of a chart: what the pages Accuracy and Audit show of a validation."""

import math
from collections.abc import Mapping
from typing import Any

from meshwise.calibrate.result import Validation
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.calibrate.train.validate import TrainValidation
from meshwise.ui.views.scores import faulty_lines
from meshwise.ui.views.tables import Column, Table
from meshwise.ui.web.pages.page import Tile

AXES = {
    "devices": "devices", "seq": "sequence length", "params": "parameters", "tp": "tensor parallelism",
    "pp": "pipeline stages", "mbs": "micro-batch",
}  # fmt: skip
"""Axes of residuals of training runs, by key; serving runs have devices, prompt, context and users."""
SERVE_AXES = {"devices": "devices", "prompt": "prompt tokens", "context": "context", "users": "concurrent requests"}


def values(validation: Validation, axis: str) -> dict[str, Any]:
    """Return the score of a table: figures, sources, and points with their residuals along an axis."""
    if isinstance(validation, TrainValidation):
        return _trained(validation, axis)
    return _served(validation, axis) if isinstance(validation, ServeValidation) else _generated(validation, axis)


def _trained(validation: TrainValidation, axis: str) -> dict[str, Any]:
    score = validation.score
    points = [
        {
            "measured": case.seconds, "predicted": float(seconds), "low": float(low), "high": float(high),
            "group": f"{case.chip.key}, {case.work.framework.key}, {case.work.precision}",
            "name": f"{case.row_id}: {case.model.name}", **_axes_of(case),
        }
        for case, seconds, low, high in zip(
            validation.cases, validation.predicted.seconds.tolist(), validation.low.tolist(), validation.high.tolist(),
            strict=True,
        )
        if case.timed and math.isfinite(seconds)
    ]  # fmt: skip
    time, memory = score["time"], score["memory"]
    return _score(validation.table, points, axis, AXES, "seconds per step", _tiles(time, score["timed_rows"], memory)) | {
        "sources": _sources(score.get("sources", ())),
        "notes": [f"{score['rows']} rows; calibration: {score['calibration']}", *faulty_lines(score["faulty"])],
    }


def _axes_of(case: Any) -> dict[str, float]:
    return {
        "devices": case.cluster.devices, "seq": case.work.seq, "params": float(case.model.params), "tp": case.layout["tp"],
        "pp": case.layout["pp"], "mbs": max(1, case.layout["mbs"]),
    }  # fmt: skip


def _served(validation: ServeValidation, axis: str) -> dict[str, Any]:
    score = validation.score
    points = [
        {
            "measured": case.decode, "predicted": speed.decode, "group": case.chip.key, "name": case.row_id,
            "devices": len(case.rig.chips), "prompt": max(1, case.work.prompt), "context": max(1, case.work.context),
            "users": max(1, case.work.users),
        }
        for case, speed in zip(validation.cases, validation.predicted, strict=True)
        if math.isfinite(case.decode) and math.isfinite(speed.decode)
    ]  # fmt: skip
    tiles = _tiles(score["decode"], len(points), score["memory"])
    return _score(validation.table, points, axis, SERVE_AXES, "output tokens/s", tiles) | {
        "sources": None,
        "notes": [f"{score['rows']} rows; calibration: {score['calibration']}"],
    }


def _generated(validation: Validation, axis: str) -> dict[str, Any]:
    """Return the score of steps of training on generated answers."""
    names = {"measured_seconds": "measured", "predicted_seconds": "predicted", "low_seconds": "low", "high_seconds": "high",
             "program": "group", "row_id": "name"}  # fmt: skip
    points: list[dict[str, Any]] = [{key: row[name] for name, key in names.items()} for row in validation.rows()]
    tiles = _tiles(validation.score["time"], len(points), {})
    shown = _score(validation.table, points, axis, {"predicted": "predicted seconds"}, "seconds per step", tiles)
    return shown | {"sources": None, "notes": [f"{len(points)} rows; calibration: {validation.score['calibration']}"]}


def _score(
    table: str, points: list[dict[str, Any]], axis: str, axes: Mapping[str, str], unit: str, tiles: list[Tile]
) -> dict[str, Any]:
    """Return what both kinds of tables show. An axis along which nothing varies is not offered."""
    varied = {key: words for key, words in axes.items() if len({point[key] for point in points}) > 1}
    chosen = axis if axis in varied else next(iter(varied), "devices")
    return {"table": table, "points": points, "axis": chosen, "axes": varied, "unit": unit, "tiles": tiles}


def _tiles(part: Mapping[str, Any], rows: int, memory: Mapping[str, Any]) -> list[Tile]:
    shown = [Tile("runs", f"{rows:,}")]
    for key, name in (("mape", "mean error"), ("median", "median error"), ("bias", "bias"), ("coverage", "in the 90% interval")):
        if part.get(key) is not None:
            shown.append(Tile(name, f"{100 * part[key]:{'+' if key == 'bias' else ''}.1f}%"))
    if part.get("spearman") is not None:
        shown.append(Tile("rank correlation", f"{part['spearman']:.3f}"))
    if memory.get("mape") is not None:
        shown.append(Tile("memory error", f"{100 * memory['mape']:.1f}%"))
    return shown


def _sources(sources: Any) -> Table[Any] | None:
    """Return errors by chip, framework and precision; None for a single source."""
    return Table(SOURCES, sources) if len(sources) > 1 else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


SOURCES: tuple[Column[Any], ...] = (
    Column("chip", lambda row: str(row["chip"]), text=True),
    Column("framework", lambda row: str(row["framework"]), text=True),
    Column("precision", lambda row: str(row["precision"]), text=True),
    Column("rows", lambda row: f"{row['rows']:,}"),
    Column("time error", lambda row: _percent(row["mape"])),
    Column("in interval", lambda row: _percent(row["coverage"])),
    Column("memory error", lambda row: _percent(row["memory"])),
    Column("calibrated", lambda row: "yes" if row["calibrated"] else "no", text=True),
)
