"""Predicted tokens per second and latencies of served models, compared with the measured ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, number
from meshwise.runs.serve.case import ServeCase, cases_of
from meshwise.runs.serve.predict import predict

SLOW, FAST = 3.0, 1.7
"""Factors slower or faster than predicted that are unusual: held-out rows of the built-in tables err by 20%, few by a factor of 2."""


@dataclass(frozen=True)
class ServePrediction:
    """Predicted tokens per second and latencies of one run; NaN where the planner predicts none."""

    figures: Figures
    decode: float  # of all requests: of decode steps, or with prompts counted where the run states a load
    prefill: float
    ttft: float = math.nan
    tpot: float = math.nan


def predict_runs(runs: Sequence[Figures]) -> tuple[list[ServePrediction], dict[str, int]]:
    """Predict every run of a served model that states enough; for the others, count the reasons why they cannot be predicted."""
    files: dict[str, list[Figures]] = {}
    for f in runs:
        if f.served:
            files.setdefault(f.source, []).append(f)
    pairs: list[tuple[Figures, ServeCase]] = []
    missing: dict[str, int] = {}
    for source, told in files.items():
        found, reasons = cases_of([f.run for f in told], Path(source).stem)
        pairs += [(told[number], case) for number, case in found]
        for reason in reasons:
            missing[reason] = missing.get(reason, 0) + 1
    speeds = predict([case for _, case in pairs])
    predictions = [
        ServePrediction(f, speed.decode, speed.prefill if case.work.prompt else math.nan, speed.ttft, speed.tpot)
        for (f, case), speed in zip(pairs, speeds, strict=True)
    ]
    return predictions, missing


def compare(predictions: Sequence[ServePrediction]) -> Iterator[Finding]:
    """Yield a finding for each speed or latency far from the predicted one."""
    for prediction in predictions:
        run = prediction.figures.run
        rates = (
            ("generation", run.number("decode"), prediction.decode),
            ("prompt processing", run.number("prefill"), prediction.prefill),
        )
        times = (
            ("the first token", run.number("ttft"), prediction.ttft),
            ("each next token", run.number("tpot"), prediction.tpot),
        )
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
            rule="planner", certainty="unusual", where=(prediction.figures.where,), message=f"{subject} is {how} than predicted",
            arithmetic=f"{number(predicted)} {unit} predicted, {number(measured)} measured",
        )  # fmt: skip
