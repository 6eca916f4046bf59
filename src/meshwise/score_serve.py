"""How well the speed and memory of served models are predicted. Errors are fractions of the measured tokens/s or bytes."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshwise.cost.serve import Speed
from meshwise.measure import Skipped
from meshwise.measure_serve import MIB, ServeCase
from meshwise.score import Score, spearman

ILL = 3.0
"""A prompt that takes so many times as long as the same prompt in another format on the same devices tells of the machine, not the model:
one A100 SXM of May 2024 read prompts in F16 at 604 tokens/s, and in Q4_K_M at 5,948."""


def score(cases: Sequence[ServeCase], skipped: Sequence[Skipped], speeds: Sequence[Speed]) -> Score:
    """All that `validate` says of a table of served models, under the keys of its JSON."""
    sick = ill(cases)
    decode = [(s.decode_tokens_per_second, c.decode) for c, s in zip(cases, speeds, strict=True) if c.ran and c.decode > 0]
    prefill = [
        (i, speeds[i].prefill_tokens_per_second, case.prefill)
        for i, case in enumerate(cases)
        if case.ran and case.prefill > 0 and case.work.prompt
    ]
    every = _rates([(predicted, seen) for _, predicted, seen in prefill])
    return {
        "rows": len(cases),
        "skipped": len(skipped),
        "decode": _rates(decode),
        "prefill": _rates([(predicted, seen) for i, predicted, seen in prefill if i not in sick])
        | {"ill": len(sick), "mape_all": every["mape"]},
        "memory": _memory(cases),
        "fit": {"right": sum(case.fits == case.ran for case in cases), "total": len(cases)},
        "skipped_reasons": dict(Counter(skip.reason for skip in skipped).most_common()),
        "assumed": dict(Counter(note for case in cases for note in case.assumed).most_common()),
    }


def ill(cases: Sequence[ServeCase]) -> set[int]:
    """Rows whose prompts were ILL times slower than in another format; the fit is robust against them, a mean error is not."""
    best: dict[tuple[object, ...], float] = {}
    for case in cases:
        if case.ran and case.prefill > 0:
            best[_same(case)] = max(best.get(_same(case), 0.0), case.prefill)
    return {i for i, case in enumerate(cases) if case.ran and 0 < case.prefill * ILL < best.get(_same(case), 0.0)}


def _same(case: ServeCase) -> tuple[object, ...]:
    return (case.table, *case.group, case.model.name, case.work.prompt, case.work.users, case.placement.split)


def _rates(pairs: Sequence[tuple[float, float]]) -> Score:
    """Of predicted and measured tokens/s."""
    if not pairs:
        return {"mape": None, "bias": None, "p95": None, "spearman": None, "rows": 0}
    predicted, seen = (np.array(side) for side in zip(*pairs, strict=True))
    error = predicted / seen - 1
    return {
        "mape": float(np.mean(np.abs(error))),
        "bias": float(np.mean(error)),
        "p95": float(np.percentile(np.abs(error), 95)),
        "spearman": spearman(predicted, seen),
        "rows": len(pairs),
    }


def _memory(cases: Sequence[ServeCase]) -> Score:
    """Of everything that was printed; the largest error in MiB of weights and cache of one device, or of a whole run."""
    relative: list[float] = []
    largest: list[float] = []
    for case in cases:
        if not case.ran:
            continue
        for kind, seen in case.sizes.items():
            predicted = getattr(case.footprints[case.device], kind) / MIB
            error = abs((math.floor(predicted) if case.cut_off else predicted) - seen)
            relative += [error / seen] if seen else []
            largest += [error] if kind != "compute" else []
        if not math.isnan(case.memory):
            predicted = sum(device.bytes - device.context for device in case.footprints[1:])
            relative.append(abs(predicted / case.memory - 1))
            largest.append(abs(predicted - case.memory) / MIB)
    return {"mape": float(np.mean(relative)) if relative else None, "max_mib": max(largest, default=None)}
