"""What the planner expects of a served model: tokens a second of prompt and of generation."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, number
from meshwise.calibrate.serve.cases import ServeCase, serve_case
from meshwise.errors import UserError

SLOW, FAST = 3.0, 1.7
"""Times slower or faster than expected that are to be looked at: left-out rows of the shipped tables err by 20%, few by a factor of 2."""


@dataclass(frozen=True)
class Served:
    """One run as the planner sees it; NaN where it says nothing of that speed."""

    figures: Figures
    decode: float
    prefill: float


def expectations(runs: Sequence[Figures]) -> tuple[list[Served], dict[str, int]]:
    """Every run of a served model that states enough, and what is missing of the others."""
    cases: list[tuple[Figures, ServeCase]] = []
    missing: dict[str, int] = {}
    for f in runs:
        if not (f.run.stated("decode") or f.run.stated("prefill")):
            continue
        try:
            cases.append((f, _case(f)))
        except UserError as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
    if not cases:
        return [], missing
    from meshwise.calibrate.serve import fit

    speeds = fit.predict([case for _, case in cases], None)
    found = [
        Served(f, speed.decode_tokens_per_second, speed.prefill_tokens_per_second if case.work.prompt else math.nan)
        for (f, case), speed in zip(cases, speeds, strict=True)
    ]
    return found, missing


def _case(f: Figures) -> ServeCase:
    run = f.run
    if f.chip is None:
        raise UserError("the chip is not stated" if not run.text("gpu") else "the chip is not in the catalogue")
    row = {name: run.text(name) for name in ("quant", "engine", "split", "link", "note", "source", "date")}
    row |= {"gpu": run.text("gpu"), "model": f.model.name if f.model else run.text("model")}
    counts = {"n_gpus": f.devices if math.isfinite(f.devices) else 1.0}
    counts |= {column: run.get(name) for column, name in _COUNTS.items() if run.stated(name)}
    speeds = {column: run.get(name) for column, name in _SPEEDS.items() if run.stated(name)}
    return serve_case(
        row | {name: f"{value:.0f}" for name, value in counts.items()} | {k: f"{v:g}" for k, v in speeds.items()}, f.where
    )


_COUNTS = {"prompt_len": "prompt", "gen_len": "output", "batch_or_concurrency": "users"}
_SPEEDS = {"decode_tok_s": "decode", "prefill_tok_s": "prefill"}


def compared(found: Sequence[Served]) -> Iterator[Finding]:
    """Speeds far from what the planner expects."""
    for one in found:
        for what, measured, awaited in (
            ("generates", one.figures.run.get("decode"), one.decode),
            ("reads prompts", one.figures.run.get("prefill"), one.prefill),
        ):
            if not math.isfinite(measured * awaited) or min(measured, awaited) <= 0:
                continue
            ratio = awaited / measured
            if ratio > SLOW or ratio < 1 / FAST:
                how = f"{ratio:.1f} times slower" if ratio > 1 else f"{1 / ratio:.1f} times faster"
                work = f"{number(awaited)} tok/s expected, {number(measured)} measured"
                words = f"it {what} {how} than the planner expects"
                yield Finding(rule="planner", sure="look", where=(one.figures.where,), words=words, arithmetic=work)
