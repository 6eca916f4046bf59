"""One model at several sequence lengths: which runs, and the full report of a run with them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.run.train.advice import Forecast
from meshwise.run.train.launch import Launch, Wish, prepare
from meshwise.run.train.report import Seen, layout_name, name_rank
from meshwise.run.train.sections import Section, Table
from meshwise.run.train.sweep import Outcome, Point
from meshwise.units import GIB
from meshwise.workers.trainer.report.rows import measured_steps, rates

LENGTHS = "128,512,1024,2048"
MILESTONES = 5
"""Rows of the table of losses."""


def parse(text: str) -> tuple[int, ...]:
    """'128,512' as lengths, the shortest first."""
    found = [units.whole_length(word) for word in text.split(",") if word.strip()]
    if not found or len(set(found)) < len(found) or min(found) < 1:
        raise UserError(f"--report-lengths {quoted(text)}: expected lengths that differ, such as {LENGTHS}")
    return tuple(sorted(found))


def equal_tokens(ready: Launch, lengths: Sequence[int]) -> int:
    """Tokens of a step that can be the same at every length, with a whole batch for each data rank: those of the run, or the next more that
    can; 0 where that would be more than twice the longest length and the run have."""
    s = ready.settings
    each = s.layout.dp * s.layout.pp
    unit = math.lcm(*lengths) * each
    tokens = math.ceil(s.batch * s.seq / unit) * unit
    return tokens if tokens <= 2 * max(s.batch * s.seq, max(lengths) * each) else 0


def points(wish: Wish, ready: Launch, lengths: Sequence[int]) -> list[Point]:
    """A run at each length: as many tokens a step where lengths allow it, else as many sequences."""
    s, same = ready.settings, equal_tokens(ready, lengths)
    found: list[Point] = []
    for length in lengths:
        batch = same // length if same else s.batch
        # a micro-batch keeps its tokens too, as near as a whole number of sequences that stages can share comes
        mbs = math.gcd(max(1, s.layout.mbs * s.seq // length), batch // (s.layout.dp * s.layout.pp)) if same else s.layout.mbs
        here = replace(wish, axes=wish.axes | {"mbs": mbs}, batch=batch, seq=length)
        try:
            found.append(Point({"batch": batch, "seq": length}, prepare(here)))
        except UserError as error:
            found.append(Point({"batch": batch, "seq": length}, None, str(error).removeprefix("the layout cannot run: ")))
    return found


def comparison(outcomes: Sequence[Outcome], refused: Sequence[Point], same: bool) -> Section:
    """What another sequence length does to speed and memory."""
    header = ("sequence", "batch", "tokens/step", "s/step", "tokens/s", "a device", "MFU", "GiB a device", "loss")
    rows: list[tuple[str, ...]] = []
    for one in sorted(outcomes, key=lambda one: int(one.row["seq_len"])):
        row, seq, batch = one.row, int(one.row["seq_len"]), int(one.row["global_batch_seqs"])
        told = (f"{seq:,}", f"{batch:,}", f"{seq * batch:,}")
        if one.ran:
            mfu = f"{float(row['mfu']):.1f}%" if row["mfu"] != "" else ""
            told += (f"{float(row['sec_per_iter']):.4f}", f"{one.rate:,.0f}", f"{float(row['tokens_per_sec_per_gpu']):,.0f}", mfu)
            told += (f"{float(row['mem_gb']):.2f}", f"{float(row['loss_first']):.3f} to {float(row['loss_last']):.3f}")
        rows.append(told if one.ran else (*told, str(row["outcome"]), *[""] * 5))
    how = (
        "as many tokens a step at every length"
        if same
        else "as many sequences a step at every length, so longer ones are more tokens"
    )
    lines = [
        f"{how}; few steps each, so the losses compare with nothing else",
        *(f"not run, {p.name}: {p.refusal}" for p in refused),
    ]
    return Section("over sequence lengths", Table(header, tuple(rows)).filled(), tuple(lines))


def configuration(seen: Seen, found: Forecast | None, params: int, environment: dict[str, object]) -> Section:
    """What was run, and on what."""
    s = seen.settings
    tokens, _, _ = rates(s, seen.seconds)
    facts = (
        f"model: {s.name}, {params:,} parameters",
        f"devices: {s.layout.devices} x {environment.get('device', s.device)}",
        f"layout: {layout_name(found, s)}",
        f"batch: {s.batch} sequences, {s.microbatches} x {s.layout.mbs} on each of {s.layout.dp} data rank{'s' * (s.layout.dp > 1)}",
        f"precision: {s.precision}{', blocks compiled' if s.compile else ''}",
        f"learning rate: {s.lr:g} at its highest, {s.steps} steps",
        f"software: torch {environment.get('torch')}, Python {environment.get('python')}",
    )
    sums = (
        f"{s.batch} x {s.seq} = {seen.tokens:,} tokens a step; {seen.tokens:,} / {seen.seconds:.7g} s = {tokens:,.0f} tokens/s "
        f"= {s.layout.devices} x {tokens / s.layout.devices:,.1f}"
    )
    return Section("configuration", lines=(*facts, sums))


def per_rank(seen: Seen) -> Section:
    """Every rank with what it reads and holds. Ranks that share samples read the same tokens, so these add up over data ranks only."""
    capacity = float(seen.settings.facts.get("capacity", math.nan))
    header = ("rank", "tokens/step", "tokens/s", "s before all meet", "GiB peak", "of the device", "GiB reserved")
    rows = [
        (
            name_rank(one),
            f"{one.tokens:,}",
            f"{one.tokens / seen.seconds:,.0f}",
            "" if one.seconds is None else f"{one.seconds:.4f}",
            f"{one.memory / GIB:.2f}",
            f"{one.memory / capacity:.1%}" if math.isfinite(capacity) else "",
            "" if one.reserved is None else f"{one.reserved / GIB:.2f}",
        )
        for one in seen.ranks
    ]
    lead = [one for one in seen.ranks if one.at["tp"] == one.at["pp"] == 0]
    added = f"{' + '.join(f'{one.tokens:,}' for one in lead[:8])}{' + ...' if len(lead) > 8 else ''} = {sum(one.tokens for one in lead):,}"
    return Section("per rank", Table(header, tuple(rows)).filled(), (f"tokens of the data ranks: {added} a step",))


def losses(seen: Seen) -> Section:
    """The loss at a few steps; it is the mean over all ranks, so there is one."""
    steps = seen.steps
    picked = sorted({round(i * (len(steps) - 1) / (MILESTONES - 1)) for i in range(MILESTONES)})
    rows = tuple((str(steps[i].step + 1), f"{steps[i].loss:.4f}", f"{steps[i].grad_norm:.3f}") for i in picked)
    spread = sorted(one.seconds for one in measured_steps(steps))
    about = f"step times after the warm-up: {spread[0]:.4f} to {spread[-1]:.4f} s"
    return Section("loss", Table(("step", "loss", "norm of the gradient"), rows), (about,))
