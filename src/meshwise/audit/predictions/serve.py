"""Predicted tokens per second of served models, prompt and generation, compared with the measured ones."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, number
from meshwise.calibrate.serve.cases import ServeCase, case_of
from meshwise.calibrate.serve.predict import predict
from meshwise.errors import UserError

SLOW, FAST = 3.0, 1.7
"""Factors slower or faster than predicted that are unusual: held-out rows of the built-in tables err by 20%, few by a factor of 2."""


@dataclass(frozen=True)
class ServePrediction:
    """Predicted tokens per second of one run; NaN where the planner predicts none."""

    figures: Figures
    decode: float
    prefill: float


def predict_runs(runs: Sequence[Figures]) -> tuple[list[ServePrediction], dict[str, int]]:
    """Predict every run of a served model that states enough; for the others, count the reasons why they cannot be predicted."""
    cases: list[tuple[Figures, ServeCase]] = []
    missing: dict[str, int] = {}
    for f in runs:
        if not (f.run.stated("decode") or f.run.stated("prefill")):
            continue
        try:
            cases.append((f, _to_case(f)))
        except UserError as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
    if not cases:
        return [], missing
    speeds = predict([case for _, case in cases])
    predictions = [
        ServePrediction(f, speed.decode, speed.prefill if case.work.prompt else math.nan)
        for (f, case), speed in zip(cases, speeds, strict=True)
    ]
    return predictions, missing


def _to_case(f: Figures) -> ServeCase:
    """Return the run as a row of a measurement table."""
    run = f.run
    if f.chip is None:
        raise UserError("the chip is not stated" if not run.text("gpu") else "the chip is not in the catalogue")
    row = {name: run.text(name) for name in ("quant", "engine", "split", "link", "note", "source", "date")}
    row |= {"gpu": run.text("gpu"), "model": f.model.name if f.model else run.text("model")}
    counts = {"n_gpus": f.devices if math.isfinite(f.devices) else 1.0}
    counts |= {column: run.get(name) for column, name in _COUNTS.items() if run.stated(name)}
    speeds = {column: run.get(name) for column, name in _SPEEDS.items() if run.stated(name)}
    row |= {name: f"{value:.0f}" for name, value in counts.items()}
    return case_of(row | {name: f"{value:g}" for name, value in speeds.items()}, f.where)


_COUNTS = {"prompt_len": "prompt", "gen_len": "output", "batch_or_concurrency": "users"}
_SPEEDS = {"decode_tok_s": "decode", "prefill_tok_s": "prefill"}


def compare(predictions: Sequence[ServePrediction]) -> Iterator[Finding]:
    """Yield a finding for each speed far from the predicted one."""
    for prediction in predictions:
        for subject, measured, predicted in (
            ("generation", prediction.figures.run.get("decode"), prediction.decode),
            ("prompt processing", prediction.figures.run.get("prefill"), prediction.prefill),
        ):
            if not math.isfinite(measured * predicted) or min(measured, predicted) <= 0:
                continue
            ratio = predicted / measured
            if ratio > SLOW or ratio < 1 / FAST:
                how = f"{ratio:.1f} times slower" if ratio > 1 else f"{1 / ratio:.1f} times faster"
                yield Finding(
                    rule="planner",
                    certainty="unusual",
                    where=(prediction.figures.where,),
                    message=f"{subject} is {how} than predicted",
                    arithmetic=f"{number(predicted)} tok/s predicted, {number(measured)} measured",
                )
