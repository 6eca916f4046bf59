"""Predicted tokens per second and latencies of served models, compared with the measured ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.audit.figures import SERVED, Figures
from meshwise.audit.finding import Finding, number
from meshwise.errors import UserError
from meshwise.runs.serve.case import ServeCase, case_of
from meshwise.runs.serve.predict import predict

SLOW, FAST = 3.0, 1.7
"""Factors slower or faster than predicted that are unusual: held-out rows of the built-in tables err by 20%, few by a factor of 2."""


@dataclass(frozen=True)
class ServePrediction:
    """Predicted tokens per second and latencies of one run; NaN where the planner predicts none."""

    figures: Figures
    decode: float
    """Of all requests: of decode steps, or with prompts counted where the run states a load."""
    prefill: float
    ttft: float = math.nan
    tpot: float = math.nan


def predict_runs(runs: Sequence[Figures]) -> tuple[list[ServePrediction], dict[str, int]]:
    """Predict every run of a served model that states enough; for the others, count the reasons why they cannot be predicted."""
    cases: list[tuple[Figures, ServeCase]] = []
    missing: dict[str, int] = {}
    for f in runs:
        if not any(map(f.run.stated, SERVED)):
            continue
        try:
            cases.append((f, _to_case(f)))
        except UserError as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
    if not cases:
        return [], missing
    speeds = predict([case for _, case in cases])
    predictions = [
        ServePrediction(f, speed.decode, speed.prefill if case.work.prompt else math.nan, speed.ttft, speed.tpot)
        for (f, case), speed in zip(cases, speeds, strict=True)
    ]
    return predictions, missing


def _to_case(f: Figures) -> ServeCase:
    """Return the run as a row of a measurement table."""
    run = f.run
    if f.chip is None:
        raise UserError("the chip is not stated" if not run.text("chip") else "the chip is not in the catalogue")
    row = {name: run.text(name) for name in _TEXTS}
    row |= {"gpu": run.text("chip"), "model": f.model.name if f.model else run.text("model")}
    row |= {"batch_or_concurrency": run.text("load")} if run.text("load") else {}
    counts = {"devices": f.devices if math.isfinite(f.devices) else 1.0}
    counts |= {column: run.number(name) for column, name in _COUNTS.items() if run.stated(name)}
    figures = {column: run.number(name) for column, name in _FIGURES.items() if run.stated(name)}
    times = {column: 1e3 * run.number(name) for column, name in _TIMES.items() if run.stated(name)}
    row |= {name: f"{value:.0f}" for name, value in counts.items()}
    return case_of(row | {name: f"{value:g}" for name, value in (figures | times).items()}, f.where)


_TEXTS = ("weights", "engine", "split", "link", "note", "source", "date", "kv", "rate_of")
_COUNTS = {
    "prompt_len": "prompt",
    "gen_len": "output",
    "batch_or_concurrency": "users",
    "depth": "depth",
    "draft": "draft",
    "n_requests": "requests",
}
_FIGURES = {
    "decode_tok_s": "decode",
    "prefill_tok_s": "prefill",
    "tok_s_per_user": "each",
    "requests_per_s": "rate",
    "prefix": "prefix",
    "accept": "accept",
}
_TIMES = {"ttft_ms": "ttft", "tpot_ms": "tpot"}


def compare(predictions: Sequence[ServePrediction]) -> Iterator[Finding]:
    """Yield a finding for each speed or latency far from the predicted one."""
    for prediction in predictions:
        run = prediction.figures.run
        rates = (
            ("generation", run.number("decode"), prediction.decode),
            ("prompt processing", run.number("prefill"), prediction.prefill),
        )
        times = (("the first token", run.number("ttft"), prediction.ttft), ("each next token", run.number("tpot"), prediction.tpot))
        for subject, measured, predicted in rates:
            yield from _compared(
                prediction, subject, measured, predicted, predicted / measured if measured else math.nan, "tok/s"
            )
        for subject, measured, predicted in times:
            yield from _compared(prediction, subject, measured, predicted, measured / predicted if predicted else math.nan, "s")


def _compared(
    prediction: ServePrediction, subject: str, measured: float, predicted: float, ratio: float, unit: str
) -> Iterator[Finding]:
    """Yield a finding where a figure is far from the predicted one. `ratio`: how many times slower it is than predicted."""
    if not math.isfinite(ratio) or min(measured, predicted) <= 0:
        return
    if ratio > SLOW or ratio < 1 / FAST:
        how = f"{ratio:.1f} times slower" if ratio > 1 else f"{1 / ratio:.1f} times faster"
        yield Finding(
            rule="planner",
            certainty="unusual",
            where=(prediction.figures.where,),
            message=f"{subject} is {how} than predicted",
            arithmetic=f"{number(predicted)} {unit} predicted, {number(measured)} measured",
        )
