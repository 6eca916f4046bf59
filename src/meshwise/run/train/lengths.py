"""Short runs at several sequence lengths, and the sections that `--report` adds."""

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.run.train.ask import SHORT, TrainRun
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.report.advice import Forecast
from meshwise.run.train.report.comparison import Measured, layout_name, name_rank
from meshwise.run.train.report.sections import Section, Table
from meshwise.run.train.sweep import Outcome, Point
from meshwise.units import GIB
from meshwise.workers.trainer.contract.rows import measured_steps, rates

LENGTHS = "128,512,1024,2048"
MILESTONES = 5
"""Rows in the table of losses."""


def parse(text: str) -> tuple[int, ...]:
    """Read '128,512', the shortest length first."""
    lengths = [units.whole_length(word) for word in text.split(",") if word.strip()]
    if not lengths or len(set(lengths)) < len(lengths) or min(lengths) < 1:
        raise UserError(f"--report-lengths {quoted(text)}: expected different lengths, such as {LENGTHS}")
    return tuple(sorted(lengths))


def equal_tokens(ready: Launch, lengths: Sequence[int]) -> int:
    """Return a number of tokens per step that every length divides into whole batches for each data rank: the run's own, or the next
    larger one. 0 if that is more than twice the run's tokens and more than twice the longest length."""
    s = ready.settings
    each = s.layout.dp * s.layout.pp
    unit = math.lcm(*lengths) * each
    tokens = math.ceil(s.batch * s.seq / unit) * unit
    return tokens if tokens <= 2 * max(s.batch * s.seq, max(lengths) * each) else 0


def points(run: TrainRun, ready: Launch, lengths: Sequence[int]) -> list[Point]:
    """Return a short run at each length: with equal tokens per step if the lengths allow it, else with equal sequences per step."""
    run = replace(
        run, steps=SHORT, save=False, merge=False, checkpoint_every=0, tensorboard=False, profile="", memory_snapshot=False, report=False,
        report_lengths="",
    )  # fmt: skip
    s, tokens = ready.settings, equal_tokens(ready, lengths)
    short_runs: list[Point] = []
    for length in lengths:
        batch = tokens // length if tokens else s.batch
        # keep the tokens per micro-batch, as near as whole sequences that the stages can share allow
        mbs = math.gcd(max(1, s.layout.mbs * s.seq // length), batch // (s.layout.dp * s.layout.pp)) if tokens else s.layout.mbs
        try:
            short_runs.append(Point({"batch": batch, "seq": length}, prepare(replace(run, mbs=mbs, batch=batch, seq=length))))
        except UserError as error:
            short_runs.append(Point({"batch": batch, "seq": length}, None, str(error).removeprefix("the layout cannot run: ")))
    return short_runs


def comparison(outcomes: Sequence[Outcome], refused: Sequence[Point], same: bool) -> Section:
    """Return speed and memory at each sequence length."""
    header = ("sequence", "batch", "tokens/step", "s/step", "tokens/s", "per device", "MFU", "GiB per device", "loss")
    rows: list[tuple[str, ...]] = []
    for outcome in sorted(outcomes, key=lambda outcome: int(outcome.row["seq_len"])):
        row, seq, batch = outcome.row, int(outcome.row["seq_len"]), int(outcome.row["global_batch_seqs"])
        cells = (f"{seq:,}", f"{batch:,}", f"{seq * batch:,}")
        if outcome.ran:
            mfu = f"{float(row['mfu']):.1f}%" if row["mfu"] != "" else ""
            cells += (
                f"{float(row['sec_per_iter']):.4f}",
                f"{outcome.rate:,.0f}",
                f"{float(row['tokens_per_sec_per_gpu']):,.0f}",
                mfu,
            )
            cells += (f"{float(row['mem_gb']):.2f}", f"{float(row['loss_first']):.3f} to {float(row['loss_last']):.3f}")
        rows.append(cells if outcome.ran else (*cells, str(row["outcome"]), *[""] * 5))
    how = (
        "equal tokens per step at every length"
        if same
        else "equal sequences per step at every length, so longer ones have more tokens"
    )
    lines = [
        f"{how}; only a few steps each, so losses are not comparable with other runs",
        *(f"not run, {p.name}: {p.refusal}" for p in refused),
    ]
    return Section("over sequence lengths", Table(header, tuple(rows)).without_empty_columns(), tuple(lines))


def configuration(measured: Measured, forecast: Forecast | None, params: int, environment: dict[str, object]) -> Section:
    """Return the model, layout, batch, precision and software of the run."""
    s = measured.settings
    tokens, _, _ = rates(s, measured.seconds)
    facts = (
        f"model: {s.name}, {params:,} parameters",
        f"devices: {s.layout.devices} x {environment.get('device', s.device)}",
        f"layout: {layout_name(forecast, s)}",
        f"batch: {s.batch} sequences, {s.microbatches} x {s.layout.mbs} on each of {s.layout.dp} data rank{'s' * (s.layout.dp > 1)}",
        f"precision: {s.precision}{', blocks compiled' if s.compile else ''}",
        f"learning rate: {s.lr:g} at its peak, {s.steps} steps",
        f"software: torch {environment.get('torch')}, Python {environment.get('python')}",
    )
    rate = f"{measured.tokens:,} / {measured.seconds:.7g} s = {tokens:,.0f} tokens/s"
    sums = (
        f"{s.batch} x {s.seq} = {measured.tokens:,} tokens per step; {rate} "
        f"= {s.layout.devices} x {tokens / s.layout.devices:,.1f}"
    )
    return Section("configuration", lines=(*facts, sums))


def per_rank(measured: Measured) -> Section:
    """Return tokens, time and memory of every rank. Ranks that share samples read the same tokens: these add up over data ranks only."""
    capacity = float(measured.settings.facts.get("capacity", math.nan))
    header = ("rank", "tokens/step", "tokens/s", "s before first collective", "GiB peak", "of the device", "GiB reserved")
    rows = [
        (
            name_rank(rank),
            f"{rank.tokens:,}",
            f"{rank.tokens / measured.seconds:,.0f}",
            "" if rank.seconds is None else f"{rank.seconds:.4f}",
            f"{rank.memory / GIB:.2f}",
            f"{rank.memory / capacity:.1%}" if math.isfinite(capacity) else "",
            "" if rank.reserved is None else f"{rank.reserved / GIB:.2f}",
        )
        for rank in measured.ranks
    ]
    lead = [rank.tokens for rank in measured.ranks if rank.at["tp"] == rank.at["pp"] == 0]
    terms = " + ".join(f"{tokens:,}" for tokens in lead[:8])
    added = f"{terms}{' + ...' if len(lead) > 8 else ''} = {sum(lead):,}"
    return Section(
        "per rank", Table(header, tuple(rows)).without_empty_columns(), (f"tokens of the data ranks: {added} per step",)
    )


def losses(measured: Measured) -> Section:
    """Return the loss, a mean over all ranks, at a few steps."""
    steps = measured.steps
    picked = sorted({round(i * (len(steps) - 1) / (MILESTONES - 1)) for i in range(MILESTONES)})
    rows = tuple((str(steps[i].step + 1), f"{steps[i].loss:.4f}", f"{steps[i].grad_norm:.3f}") for i in picked)
    spread = sorted(step.seconds for step in measured_steps(steps))
    line = f"step times after the warm-up: {spread[0]:.4f} to {spread[-1]:.4f} s"
    return Section("loss", Table(("step", "loss", "gradient norm"), rows), (line,))
