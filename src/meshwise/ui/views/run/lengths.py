"""The sections that `run --report` adds: configuration, ranks, losses, and speed over sequence lengths."""

import math
from collections.abc import Callable

from meshwise.run.train.report.comparison import Measured
from meshwise.run.train.results import Lengths, TrainResult
from meshwise.run.train.short.sweep import Outcome
from meshwise.ui.views.run.sections import Section
from meshwise.ui.views.run.words import layout_name, rank_name
from meshwise.ui.views.tables import Column, Table, grid
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import Rank, measured_steps

MILESTONE_ROWS = 5  # rows in the table of losses


def sections(result: TrainResult, lengths: Lengths) -> list[Section]:
    """Return what `--report` adds before the report of the run."""
    measured = result.measured
    return [configuration(result, lengths), per_rank(measured), losses(measured), comparison(lengths)]


def configuration(result: TrainResult, lengths: Lengths) -> Section:
    """Return the model, layout, batch, precision and software of the run."""
    measured, environment = result.measured, lengths.environment
    s, (tokens, _, _) = measured.settings, measured.rates
    facts = (
        f"model: {s.name}, {lengths.params:,} parameters",
        f"devices: {s.layout.devices} x {environment.get('device', s.device)}",
        f"layout: {layout_name(result.forecast, s)}",
        f"batch: {s.batch} sequences, {s.microbatches} x {s.layout.mbs} on each of {s.layout.dp} data rank{'s' * (s.layout.dp > 1)}",
        f"precision: {s.precision}{', blocks compiled' if s.compile else ''}",
        f"learning rate: {s.lr:g} at its peak, {s.steps} steps",
        f"software: torch {environment.get('torch')}, Python {environment.get('python')}",
    )
    rate = f"{measured.tokens:,} / {measured.seconds:.7g} s = {tokens:,.0f} tokens/s"
    each = f"{s.layout.devices} x {tokens / s.layout.devices:,.1f}"
    sums = f"{s.batch} x {s.seq} = {measured.tokens:,} tokens per step; {rate} = {each}"
    return Section("configuration", lines=(*facts, sums))


def per_rank(measured: Measured) -> Section:
    """Return tokens, time and memory of every rank. Ranks that share samples read the same tokens: these add up over data ranks only."""
    capacity = float(measured.settings.facts.get("capacity", math.nan))
    columns: list[Column[Rank]] = [
        Column("rank", rank_name, text=True),
        Column("tokens/step", lambda rank: f"{rank.tokens:,}"),
        Column("tokens/s", lambda rank: f"{rank.tokens / measured.seconds:,.0f}"),
        Column("s before first collective", lambda rank: "" if rank.seconds is None else f"{rank.seconds:.4f}"),
        Column("GiB peak", lambda rank: f"{rank.memory / GIB:.2f}"),
        Column("of the device", lambda rank: f"{rank.memory / capacity:.1%}" if math.isfinite(capacity) else ""),
        Column("GiB reserved", lambda rank: "" if rank.reserved is None else f"{rank.reserved / GIB:.2f}"),
    ]
    lead = [rank.tokens for rank in measured.ranks if rank.at["tp"] == rank.at["pp"] == 0]
    terms = " + ".join(f"{tokens:,}" for tokens in lead[:8])
    added = f"{terms}{' + ...' if len(lead) > 8 else ''} = {sum(lead):,}"
    table = Table(columns, measured.ranks).without_empty_columns()
    return Section("per rank", table, (f"tokens of the data ranks: {added} per step",))


def losses(measured: Measured) -> Section:
    """Return the loss, a mean over all ranks, at a few steps."""
    steps = measured.steps
    picked = sorted({round(i * (len(steps) - 1) / (MILESTONE_ROWS - 1)) for i in range(MILESTONE_ROWS)})
    rows = [(str(steps[i].step + 1), f"{steps[i].loss:.4f}", f"{steps[i].grad_norm:.3f}") for i in picked]
    spread = sorted(step.seconds for step in measured_steps(steps))
    line = f"step times after the warm-up: {spread[0]:.4f} to {spread[-1]:.4f} s"
    return Section("loss", grid(("step", "loss", "gradient norm"), rows), (line,))


def comparison(lengths: Lengths) -> Section:
    """Return speed and memory at each sequence length."""
    ordered = sorted(lengths.outcomes, key=lambda outcome: outcome.run.whole("seq"))
    longer = "equal sequences per step at every length, so longer ones have more tokens"
    how = "equal tokens per step at every length" if lengths.same_tokens else longer
    lines = [
        f"{how}; only a few steps each, so losses are not comparable with other runs",
        *(f"not run, {point.name}: {point.refusal}" for point in lengths.refused),
    ]
    return Section("over sequence lengths", Table(COLUMNS, ordered).without_empty_columns(), tuple(lines))


def _figure(name: str, show: str) -> Callable[[Outcome], str]:
    """Return a cell with a figure of the row; empty if it did not run, or has none."""
    return lambda outcome: f"{float(outcome.row[name]):{show}}" if outcome.ran and outcome.row[name] != "" else ""


def _loss(outcome: Outcome) -> str:
    row = outcome.row
    return f"{float(row['loss_first']):.3f} to {float(row['loss_last']):.3f}" if outcome.ran else ""


COLUMNS: tuple[Column[Outcome], ...] = (
    Column("sequence", lambda outcome: f"{outcome.run.whole('seq'):,}", text=True),
    Column("batch", lambda outcome: f"{outcome.run.whole('batch'):,}"),
    Column("tokens/step", lambda outcome: f"{outcome.run.whole('seq') * outcome.run.whole('batch'):,}"),
    Column("s/step", lambda outcome: _figure("sec_per_iter", ".4f")(outcome) or str(outcome.row["outcome"])),
    Column("tokens/s", lambda outcome: f"{outcome.rate:,.0f}" if outcome.ran else ""),
    Column("per device", _figure("tokens_per_sec_per_gpu", ",.0f")),
    Column("MFU", lambda outcome: f"{mfu}%" if (mfu := _figure("mfu", ".1f")(outcome)) else ""),
    Column("GiB per device", _figure("mem_gb", ".2f")),
    Column("loss", _loss),
)
