"""The report of a sweep: every run beside its prediction, and how well the planner ranked them."""

from collections.abc import Iterator

from meshwise.calibrate.score import MIN_ROWS_TO_RANK
from meshwise.run.train.results import SweepResult
from meshwise.run.train.short.sweep import Outcome, Ranking, by_devices, planned_rank, rankings, scale
from meshwise.ui.views.run.sections import Section
from meshwise.ui.views.tables import Column, Table
from meshwise.units import GIB


def sections(result: SweepResult) -> list[Section]:
    """Return the runs, the fastest first, with their predictions, and how well the planner ranked them."""
    scales = {devices: scale(group) for devices, group in by_devices(result.outcomes).items()}
    ranked = sorted(result.outcomes, key=lambda outcome: -outcome.rate)
    lines = [*map(_ranking, rankings(result.outcomes)), *_scaled(result, scales)]
    lines += [f"not run, {point.name}: {point.refusal}" for point in result.refused]
    table = Table(_columns(result, scales), ranked).without_empty_columns()
    return [Section("measured, fastest first", table, tuple(lines))]


def _columns(result: SweepResult, scales: dict[int, float]) -> list[Column[Outcome]]:
    def seconds(outcome: Outcome) -> str:
        return f"{outcome.predicted.step * scales[outcome.devices]:.4f}" if outcome.predicted else ""

    return [
        Column("", lambda outcome: outcome.point.name, text=True),
        Column("devices", lambda outcome: str(outcome.devices)),
        Column("tokens/s", lambda outcome: f"{outcome.rate:,.0f}" if outcome.ran else str(outcome.row["outcome"])),
        Column("s/step", lambda outcome: f"{float(outcome.row['sec_per_iter']):.4f}" if outcome.ran else ""),
        Column("predicted s", seconds),
        Column("GiB", lambda outcome: f"{float(outcome.row['mem_gb']):.2f}" if outcome.ran else ""),
        Column("predicted GiB", lambda outcome: f"{outcome.predicted.peak / GIB:.2f}" if outcome.predicted else ""),
        Column("predicted rank", lambda outcome: str(planned_rank(outcome, result.outcomes) or "")),
    ]


def _scaled(result: SweepResult, scales: dict[int, float]) -> Iterator[str]:
    """Yield what predicted seconds of a generic CPU were multiplied by."""
    if any(outcome.generic for outcome in result.outcomes if outcome.predicted):
        factors = ", ".join(f"{factor:.3g} on {_devices(devices)}" for devices, factor in scales.items())
        yield f"predicted seconds are for a generic CPU, times the median of measured over predicted: {factors}"


def _devices(number: int) -> str:
    return f"{number} device{'s' * (number > 1)}"


def _ranking(ranking: Ranking) -> str:
    """Return the rank correlation of the runs that succeeded, and the result of the planner's pick."""
    head, best, pick = f"{ranking.runs} runs on {_devices(ranking.devices)}", ranking.best, ranking.pick
    if best is None:
        return f"{head}: none completed"
    ranked = (
        f"no rank correlation of fewer than {MIN_ROWS_TO_RANK} runs"
        if ranking.correlation is None
        else f"rank correlation (Spearman) {ranking.correlation:.2f}"
    )
    slower = f"is {1 - pick.rate / best.rate:.1%} slower than the fastest, {best.point.name}"
    ended = slower if pick.ran else f"failed ({pick.row['outcome']})"
    return f"{head}: {ranked}; the planner's pick, {pick.point.name}, {'is the fastest measured' if pick is best else ended}"
