"""Validate: predict every step of a table, each by coefficients that no step of its program was fitted to, and score the predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import ClassVar

from meshwise.calibrate.result import Validation
from meshwise.calibrate.rl.table import Case, read
from meshwise.calibrate.score import Score
from meshwise.catalogue.rl_programs import Overheads, overheads, overheads_of
from meshwise.errors import UserError
from meshwise.plan.rl.plan import make
from meshwise.plan.rl.splits import Split
from meshwise.runs.table import Skipped, find_table

MEASURED_WITH_ROLLOUT = ("weights", "switch")  # phases that logs count as generation: engines wake up, get new weights and sleep


@dataclass(frozen=True, kw_only=True, repr=False)
class RlValidation(Validation):
    """A table of steps on generated answers."""

    part: ClassVar[str] = "time"
    cases: list[Case]
    predicted: list[Split]

    def rows(self) -> list[dict[str, object]]:
        """Return one row per step, as --csv prints them."""
        return [self._row(case, split) for case, split in zip(self.cases, self.predicted, strict=True)]

    def _row(self, case: Case, split: Split) -> dict[str, object]:
        low, high = split.interval
        row: dict[str, object] = {
            "table": self.table, "row_id": case.row_id, "program": case.program, "model": case.ask.model, "on": case.ask.on,
            "mode": case.ask.mode, "measured_seconds": case.seconds, "predicted_seconds": float(f"{split.step:.6g}"),
            "low_seconds": float(f"{low:.6g}"), "high_seconds": float(f"{high:.6g}"), "ratio": round(split.step / case.seconds, 4),
            "update_mfu": round(split.update_mfu, 4), "training": split.train_layout, "generation": split.rollout_layout,
        }  # fmt: skip
        return row | {f"{name} seconds": float(f"{seconds:.4g}") for name, seconds in split.phases.items()}


def validate(name: str, coefficients: str = "") -> RlValidation:
    """Score a table: with named coefficients, or each row with those that leave out its program, beside those of all programs."""
    path = find_table(name)
    cases, skipped = read(Path(path))
    left_out = [coefficients or without(case.program) for case in cases]
    cases, predicted, failed = predict(cases, [overheads_of(one) for one in left_out])
    if not cases:
        raise UserError(f"{path.name}: none of its rows can be evaluated: {failed[0].reason}")
    skipped = [*skipped, *failed]
    used = ", ".join(dict.fromkeys(left_out))
    scores: Score = {
        "table": path.stem, "calibration": used, "rows": len(cases), "skipped": len(skipped), **_scored(cases, predicted),
    }  # fmt: skip
    if not coefficients:
        inside = predict(cases, [overheads_of("all")] * len(cases))[1]
        scores |= {"left_out": "program", "in_sample": _scored(cases, inside)}
    scores["sources"] = [
        {"program": program} | _scored(*_only(cases, predicted, program))
        for program in dict.fromkeys(case.program for case in cases)
    ]
    return RlValidation(table=path.stem, cases=cases, skipped=skipped, predicted=predicted, score=scores)


def without(program: str) -> str:
    """Return the name of the coefficients that no step of a program was fitted to; those of all where it was in no fit."""
    name = f"without-{program}"
    return name if name in overheads() else "all"


def predict(cases: Sequence[Case], used: Sequence[Overheads]) -> tuple[list[Case], list[Split], list[Skipped]]:
    """Return the steps that can be predicted, their predictions, and the others with the reason."""
    kept: list[Case] = []
    found: list[Split] = []
    failed: list[Skipped] = []
    for case, o in zip(cases, used, strict=True):
        try:
            found.append(make(case.ask, o).best)
            kept.append(case)
        except UserError as error:
            failed.append(Skipped(case.row_id, str(error)))
    return kept, found, failed


def _only(cases: Sequence[Case], predicted: Sequence[Split], program: str) -> tuple[list[Case], list[Split]]:
    chosen = [(case, split) for case, split in zip(cases, predicted, strict=True) if case.program == program]
    return [case for case, _ in chosen], [split for _, split in chosen]


def _scored(cases: Sequence[Case], predicted: Sequence[Split]) -> Score:
    ratios = [split.step / case.seconds for case, split in zip(cases, predicted, strict=True)]
    inside = [split.interval[0] <= case.seconds <= split.interval[1] for case, split in zip(cases, predicted, strict=True)]
    errors = [abs(ratio - 1) for ratio in ratios]
    phases: dict[str, list[float]] = {}
    for case, split in zip(cases, predicted, strict=True):
        for name, seconds in case.phases.items():
            phases.setdefault(name, []).append(phase_of(split, name) / seconds)
    return {
        "rows": len(cases),
        "time": {
            "mape": mean(errors), "median": median(errors), "bias": mean(ratios) - 1, "coverage": mean(inside),
            "low": min(ratios), "high": max(ratios),
        },
        "phases": {name: {"rows": len(values), "ratio": median(values)} for name, values in phases.items()},
    }  # fmt: skip


def phase_of(split: Split, name: str) -> float:
    """Return the predicted seconds of a phase as logs measure it."""
    extra = sum(split.phases[other] for other in MEASURED_WITH_ROLLOUT) if name == "rollout" else 0.0
    return split.phases.get(name, 0.0) + extra
