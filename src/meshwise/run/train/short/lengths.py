"""Short runs at several sequence lengths, which `--report` adds."""

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.run.train.ask import SHORT, TrainRun
from meshwise.run.train.launch import Launch, prepare
from meshwise.run.train.short.sweep import Point

LENGTHS = "128,512,1024,2048"


def parse(text: str) -> tuple[int, ...]:
    """Read '128,512', the shortest length first."""
    lengths = [units.whole_length(word) for word in text.split(",") if word.strip()]
    if not lengths or len(set(lengths)) < len(lengths) or min(lengths) < 1:
        raise UserError(f"--report-lengths {quoted(text)}: expected different lengths, such as {LENGTHS}")
    return tuple(sorted(lengths))


def equal_tokens(ready: Launch, lengths: Sequence[int]) -> int:
    """Return tokens per step that every length divides into whole batches: the run's or the next larger; 0 if more than twice too many."""
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
