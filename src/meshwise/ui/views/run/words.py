"""Names of layouts and ranks in reports of runs."""

from typing import Any

from meshwise.cost.axes import layout_name as name_of
from meshwise.run.train.report.advice import Forecast
from meshwise.workers.trainer.contract.rows import Rank
from meshwise.workers.trainer.contract.settings import Settings


def layout_name(forecast: Forecast | None, settings: Settings) -> str:
    """Return the layout of a run as plans name it, and shorter without a prediction."""
    a = settings.layout
    return name_of(forecast.here.layout) if forecast else f"dp{a.dp} tp{a.tp} pp{a.pp} cp{a.cp} mbs{a.mbs}"


def row_layout_name(row: dict[str, Any]) -> str:
    """Return the name of the layout in a row of measurements."""
    words = [f"{axis}{row[axis]}" for axis in ("dp", "tp", "pp", "cp") if axis != "cp" or int(row[axis]) > 1]
    words += [f"mbs{row['micro_batch']}"] + ([f"{row['recompute']} recompute"] if row["recompute"] != "none" else [])
    return " ".join(words)


def rank_name(rank: Rank) -> str:
    """Return 'rank 3 (pp 1, tp 1)': the rank, and its coordinates that are not 0."""
    place = ", ".join(f"{axis} {at}" for axis, at in rank.at.items() if at)
    return f"rank {rank.rank}" + (f" ({place})" if place else "")
