"""Scores of predicted served models: speed, memory, and whether a model fits. Errors are fractions of measured tokens/s or bytes."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshwise.calibrate.score import Score, mean, spearman
from meshwise.runs.serve.case import ServeCase
from meshwise.runs.serve.doubts import doubts
from meshwise.runs.serve.predict import Prediction
from meshwise.runs.table import Skipped
from meshwise.units import MIB


def score(cases: Sequence[ServeCase], skipped: Sequence[Skipped], speeds: Sequence[Prediction]) -> Score:
    """Score the predictions for one table, under the keys of `validate --json`."""
    decode = [(s.decode, c.decode) for c, s in zip(cases, speeds, strict=True) if c.ran and c.decode > 0 and s.decode > 0]
    prefill = [
        (case, speed.prefill, case.prefill)
        for case, speed in zip(cases, speeds, strict=True)
        if case.ran and case.prefill > 0 and case.work.prompt
    ]
    every = _rates([(predicted, measured) for _, predicted, measured in prefill])
    doubted = doubts(cases)
    sure = [(case, speed) for case, speed, doubt in zip(cases, speeds, doubted, strict=True) if case.ran and not doubt]
    return {
        "rows": len(cases),
        "skipped": len(skipped),
        "decode": _rates(decode),
        "prefill": _rates([(predicted, measured) for case, predicted, measured in prefill if not case.slow_prompt])
        | {"ill": sum(case.slow_prompt for case in cases), "mape_all": every["mape"]},
        "ttft": _rates([(s.ttft, c.ttft) for c, s in zip(cases, speeds, strict=True) if c.ran and c.ttft > 0 and s.ttft > 0]),
        "tpot": _rates([(s.tpot, c.tpot) for c, s in zip(cases, speeds, strict=True) if c.ran and c.tpot > 0 and s.tpot > 0]),
        "doubted": {
            "rows": sum(map(bool, doubted)),
            "reasons": dict(Counter(why for doubt in doubted for why in dict.fromkeys(doubt.values())).most_common()),
            "decode": _rates([(s.decode, c.decode) for c, s in sure if c.decode > 0 and s.decode > 0]),
            "prefill": _rates([(s.prefill, c.prefill) for c, s in sure if c.prefill > 0 and c.work.prompt and not c.slow_prompt]),
        },
        "memory": _memory(cases),
        "fit": {"right": sum(case.fits == case.ran for case in cases), "total": len(cases)},
        "skipped_reasons": dict(Counter(skip.reason for skip in skipped).most_common()),
        "assumed": dict(Counter(note for case in cases for note in case.assumed).most_common()),
    }


def _rates(pairs: Sequence[tuple[float, float]]) -> Score:
    """Score pairs of predicted and measured tokens/s."""
    if not pairs:
        return {"mape": None, "bias": None, "p95": None, "spearman": None, "rows": 0}
    predicted, measured = (np.array(side) for side in zip(*pairs, strict=True))
    error = predicted / measured - 1
    return {
        "mape": float(np.mean(np.abs(error))), "bias": float(np.mean(error)), "p95": float(np.percentile(np.abs(error), 95)),
        "spearman": spearman(predicted, measured), "rows": len(pairs),
    }  # fmt: skip


def _memory(cases: Sequence[ServeCase]) -> Score:
    """Score all stated memory: the mean error, and the largest error in MiB of weights and cache of one device, or of a whole run."""
    relative: list[float] = []
    largest: list[float] = []
    for case in cases:
        if not case.ran:
            continue
        for kind, measured in case.sizes.items():
            predicted = getattr(case.footprints[case.device], kind) / MIB
            error = abs((math.floor(predicted) if case.cut_off else predicted) - measured)
            relative += [error / measured] if measured else []
            largest += [error] if kind != "compute" else []
        if not math.isnan(case.memory):
            devices = case.footprints[1:]
            predicted = sum(device.weights + device.cache for device in devices)
            # With a row split, the log counts the compute buffers of one device.
            predicted += (max if case.placement.split == "row" else sum)(device.compute for device in devices)
            relative.append(abs(predicted / case.memory - 1))
            largest.append(abs(predicted - case.memory) / MIB)
    return {"mape": mean(relative), "max_mib": max(largest, default=None)}
