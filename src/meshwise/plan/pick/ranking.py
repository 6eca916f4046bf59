"""Order models by published scores. Sources state different benchmarks, so a score is compared with those of other models on the same
benchmark: the logit of a score is the model's ability minus the benchmark's difficulty (Rasch 1960), fitted by least squares over all
scores. What a model scores better on the benchmarks of a use than its ability says is added for that use."""

import math
from collections.abc import Mapping, Sequence

from meshwise.catalogue import files
from meshwise.catalogue.releases import Offer, Score, offers

BENCHMARKS: dict[str, tuple[str, ...]] = {
    "chat": ("MMLU-Pro", "GPQA Diamond", "MMLU", "MMLU-Redux", "IFEval", "LiveBench", "Arena-Hard", "GPQA"),
    "code": ("LiveCodeBench v6", "SWE-bench Verified", "LiveCodeBench v5", "LiveCodeBench 2024-25", "HumanEval", "MBPP"),
    "agents": ("SWE-bench Verified", "BFCL v3", "Tau-bench retail"),
    "reasoning": ("GPQA Diamond", "AIME 2026", "AIME 2025", "AIME 2024", "MATH"),
    "vision": ("MMMU-Pro", "MMMU"),
    "embedding": ("MTEB multilingual",),
}
"""Benchmarks that say most about a use, the most telling first."""
ROUNDS = 60  # turns of fitting abilities and difficulties; the largest change of an ability in the last one is below 0.01
SHRINKAGE = 0.25
"""Scores at the mean that a model counts as having in addition: one of two scores says less than the mean of eight."""
LEAST, MOST = 0.5, 99.5  # percent between which scores are kept, so that their logit is finite


def order(use: str, given: Sequence[Offer]) -> list[Offer]:
    """Return the models that have a published score for a use, the best first."""
    scale = abilities()
    known = [offer for offer in given if use in offer.uses and scores_for(use, offer)]
    return sorted(known, key=lambda offer: (-_worth(use, offer, *scale), offer.id))


def unknown(use: str, given: Sequence[Offer]) -> list[Offer]:
    """Return the models for a use without a published score for it, the newest first."""
    return sorted(
        (offer for offer in given if use in offer.uses and not scores_for(use, offer)), key=lambda o: o.release.date, reverse=True
    )


def scores_for(use: str, offer: Offer) -> list[Score]:
    """Return a model's published scores on the benchmarks of a use, the most telling first."""
    names = BENCHMARKS[use]
    return sorted((one for one in offer.scores if one.benchmark in names), key=lambda one: names.index(one.benchmark))


def _worth(use: str, offer: Offer, ability: Mapping[str, float], difficulty: Mapping[str, float]) -> float:
    """Return a model's ability, and how far its scores for the use exceed it."""
    base = ability[offer.id]
    over = [logit(one.percent) - base + difficulty[one.benchmark] for one in scores_for(use, offer)]
    return base + sum(over) / (len(over) + SHRINKAGE)


@files.cached
def abilities() -> tuple[dict[str, float], dict[str, float]]:
    """Return the ability of each model and the difficulty of each benchmark."""
    seen = [(offer.id, one.benchmark, logit(one.percent)) for offer in offers() for one in offer.scores]
    by_model: dict[str, list[tuple[str, float]]] = {}
    by_benchmark: dict[str, list[tuple[str, float]]] = {}
    for name, bench, value in seen:
        by_model.setdefault(name, []).append((bench, value))
        by_benchmark.setdefault(bench, []).append((name, value))
    ability, difficulty = dict.fromkeys(by_model, 0.0), dict.fromkeys(by_benchmark, 0.0)
    for _ in range(ROUNDS):
        for bench, rows in by_benchmark.items():
            difficulty[bench] = sum(ability[name] - value for name, value in rows) / len(rows)
        for name, rows in by_model.items():
            ability[name] = sum(value + difficulty[bench] for bench, value in rows) / (len(rows) + SHRINKAGE)
    return ability, difficulty


def logit(percent: float) -> float:
    """Return ln(p / (1 - p)) of a score."""
    share = min(MOST, max(LEAST, percent)) / 100
    return math.log(share / (1 - share))
