"""Predicted step time and memory of training runs, compared with the measured ones; and the layout that the planner would try next."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Certainty, Finding, number, percent
from meshwise.audit.rules.one_run import MIN_MFU, graded
from meshwise.calibrate.train import modes
from meshwise.catalogue.levels import choose_for
from meshwise.cost import axes
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.modes import explaining, share_of
from meshwise.cost.parts import TRAIN_WORDS as PARTS
from meshwise.plan.train.recipes import FACTS, assumed_of
from meshwise.runs.compare import Judged, judge
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import predict
from meshwise.runs.train.settle import cases_of as train_cases
from meshwise.units import GIB

SLOW_ALONE, SLOW_IN_TABLE = 3.0, 30.0
"""Factors slower than predicted that make a finding: for a single run, and for one of a table, whose other rows show it too."""
MAX_RUNS_ALONE = 3  # runs up to which a file does not count as a table
MIN_TIME_RATIO = 0.5
MEMORY_RATIO_RANGE = (0.3, 3.0)
"""Normal range of measured over predicted memory: the planner errs by 10 to 17%, allocators add some."""
MAX_DEVICES_SEARCHED = 100_000  # devices up to which an audit searches all layouts; use `plan` beyond
MIN_SAVING_SHARE = 0.02  # smallest predicted saving that makes another layout worth trying
MODE_EXAMPLES = 3  # runs that a finding about a mode of slow runs names
NOTED_TIME_RATIO = 1.05  # measured over predicted step time above which a suggestion to keep the layout mentions the excess


MAX_RECIPES = 2  # assumed recipes that an audit lists


@dataclass(frozen=True)
class TrainPrediction:
    """Predicted step time and memory of one run."""

    figures: Figures
    case: Case
    seconds: float
    memory: float

    @property
    def ratio(self) -> float:
        """Measured over predicted step time."""
        return self.case.seconds / self.seconds


def predict_runs(runs: Sequence[Figures]) -> tuple[list[TrainPrediction], dict[str, int]]:
    """Predict every training run that states enough; for the others, count the reasons why they cannot be predicted."""
    files: dict[str, list[Figures]] = {}
    for f in runs:
        if not f.served:
            files.setdefault(f.source, []).append(f)
    pairs: list[tuple[Figures, Case]] = []
    missing: dict[str, int] = {}
    for source, told in files.items():
        found, reasons = train_cases([f.run for f in told], Path(source).stem)
        pairs += [(told[number], case) for number, case in found]
        for reason in reasons:
            missing[reason] = missing.get(reason, 0) + 1
    if not pairs:
        return [], missing
    predicted = predict([case for _, case in pairs])
    rows = zip(pairs, predicted.seconds.tolist(), predicted.memory.tolist(), strict=True)
    return [TrainPrediction(f, case, seconds, memory) for (f, case), seconds, memory in rows if math.isfinite(seconds)], missing


def assumed_recipes(predictions: Sequence[TrainPrediction]) -> list[str]:
    """Return what is assumed of the programs of the runs, the most frequent first; a program may differ between runs by its release."""
    notes = Counter(
        note
        for p in predictions
        for note in assumed_of(p.case.work, p.case.chip, [name for name in FACTS if p.figures.run.text(name)])
    )
    return [note for note, _ in notes.most_common(MAX_RECIPES)]


def compare(predictions: Sequence[TrainPrediction], grades: dict[str, str]) -> Iterator[Finding]:
    """Yield a finding for each step time or memory far from the predicted one. `grades`: how each document grades itself, by file."""
    counts = Counter(p.figures.source for p in predictions)
    yield from _modes([p for p in predictions if p.case.chip.kind != "cpu"])
    for p in predictions:
        if p.case.chip.kind == "cpu":
            continue  # the catalogue only has a generic CPU, which does not describe this machine
        alone = counts[p.figures.source] <= MAX_RUNS_ALONE  # a table shows its modes by itself
        limit = SLOW_ALONE if alone else SLOW_IN_TABLE
        if alone and p.case.timed and (known := _in_known_mode(p)):
            yield known
        elif p.case.timed and p.ratio > limit:
            yield _slow(p, grades.get(p.figures.source, ""))
        elif p.case.timed and p.ratio < MIN_TIME_RATIO:
            yield Finding(
                rule="planner",
                certainty="unusual",
                where=(p.figures.where,),
                message=f"it is {1 / p.ratio:.1f} times faster than predicted",
                arithmetic=f"{p.seconds:.4g} s predicted, {p.case.seconds:.4g} s measured",
            )
        if (
            p.case.has_memory
            and p.case.layout["mbs"]
            and not MEMORY_RATIO_RANGE[0] < p.case.memory / p.memory < MEMORY_RATIO_RANGE[1]
        ):
            predicted = f"{p.memory / GIB:.1f} GiB predicted for {layout_name(p.case.layout)}"
            yield Finding(
                rule="memory",
                certainty="unusual",
                where=(p.figures.where,),
                message="its memory is far from what its layout needs",
                arithmetic=f"{predicted}, {p.case.memory / GIB:.1f} GiB stated",
            )


def _modes(predictions: Sequence[TrainPrediction]) -> Iterator[Finding]:
    """Yield a finding for each mode that slow runs of one table have in common."""
    for found in modes.find([p.case for p in predictions], np.array([p.seconds for p in predictions])):
        yield Finding(
            rule="slow mode",
            certainty="unusual",
            where=(predictions[found.rows[0]].figures.source,),
            message=found.sentence,
            arithmetic=f"such as {', '.join(predictions[row].case.row_id for row in found.rows[:MODE_EXAMPLES])}",
        )


def _in_known_mode(p: TrainPrediction) -> Finding | None:
    """Return a finding where a mode of the calibration explains why a run was slow."""
    fitted = choose_for(p.case.cluster, p.case.work.framework)
    match = explaining(fitted.modes, p.case.seconds, p.seconds, modes.sizes_of([p.case])) if fitted.modes else None
    if match is None:
        return None
    mode, seconds = match
    share = share_of(mode, fitted.name)
    return Finding(
        rule="slow mode",
        certainty=_certainty(p),
        where=(p.figures.where,),
        message=f"it is {p.ratio:.3g} times slower than predicted, and fits a known mode of slow runs: {share}",
        arithmetic=f"{p.seconds:.4g} s a step predicted, {seconds:.4g} s in that mode, {p.case.seconds:.4g} s measured",
    )


def _slow(p: TrainPrediction, grade: str) -> Finding:
    share, f = p.figures.model_mfu, p.figures
    reached = f", {percent(share)} of the peak of {p.case.chip.name} by 6N" if math.isfinite(share) else ""
    tflops = f.run.number("tflops") / 1e12
    hint = ""
    if math.isfinite(tflops) and tflops > 0 and 0.7 < tflops / p.seconds < 1.4:
        hint = "; seconds and TFLOP/s may be swapped"
    return Finding(
        rule="planner",
        certainty=_certainty(p),
        where=(f.where,),
        message=f"it is {p.ratio:.3g} times slower than predicted{reached}{graded(grade)}{hint}",
        arithmetic=f"{p.seconds:.4g} s a step predicted, {p.case.seconds:.4g} s measured{_stated_share(f)}",
    )


def _certainty(p: TrainPrediction) -> Certainty:
    """Return how certain it is that something is wrong with a slow run."""
    return "likely" if p.ratio > SLOW_IN_TABLE or p.figures.model_mfu < MIN_MFU else "unusual"


def _stated_share(f: Figures) -> str:
    """Return the share of the peak by the stated rate, which may differ from the rate that the step time gives."""
    stated = f.stated_rate
    flops = f.formulas.get("6N", math.nan)
    if not math.isfinite(stated * flops * f.peak_flops * f.devices):
        return ""
    each = flops * stated / f.devices
    reached = f"{each / 1e12:.3g} TFLOP/s of {f.peak_flops / 1e12:.4g}, {percent(each / f.peak_flops)}"
    return f"; by 6N the stated {number(stated / f.devices)} tok/s per device would be {reached}"


def layout_name(layout: dict[str, int]) -> str:
    """Return a layout as 'dp8 tp4 pp12 mbs2 full recompute'."""
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    return axes.layout_name({axis: words[axis][value] if axis in words else value for axis, value in layout.items()})


@dataclass(frozen=True)
class Suggestion:
    """The layout of a run, and the fastest one that the planner finds for the same model, devices and batch."""

    where: str
    layout: str
    seconds: float  # measured seconds per step of the run
    predicted_seconds: float
    proposed: str
    proposed_seconds: float  # predicted for the proposed layout
    gain: float  # predicted saving, as a share of the step
    why: str
    assumed: str = ""  # text for a run that does not state its micro-batch
    lacks_memory: str = ""  # text for a run whose predicted memory exceeds the device

    @property
    def message(self) -> str:
        measured = f"{self.where}, {self.seconds:.4g} s measured{self.assumed}"
        if self.gain >= MIN_SAVING_SHARE:
            gain = f"predicted {self.proposed_seconds:.4g} s a step, {self.gain:.0%} less than the {self.predicted_seconds:.4g} s"
            return f"try {self.proposed}: {gain} predicted for {self.layout} ({measured}); {self.why}{self.lacks_memory}"
        best = f"no other layout is predicted to be more than {MIN_SAVING_SHARE:.0%} faster than its {self.predicted_seconds:.4g} s a step"
        ratio = self.seconds / self.predicted_seconds
        excess = (
            f"; the layout does not explain that the measured step takes {ratio:.3g} times as long"
            if ratio > NOTED_TIME_RATIO
            else ""
        )
        return f"keep {self.layout} ({measured}): {best}{excess}{self.lacks_memory}"


def suggest_layouts(predictions: Sequence[TrainPrediction], doubted: frozenset[str], most: int = 2) -> list[Suggestion]:
    """For the fastest run of each model, batch and number of devices, return the planner's best layout and its predicted gain."""
    best: dict[tuple[object, ...], TrainPrediction] = {}
    for p in predictions:
        key = (p.figures.source, *p.case.group)
        rank = (p.figures.where in doubted, p.case.seconds)  # a doubted run only if there is no other
        if p.case.timed and (key not in best or rank < (best[key].figures.where in doubted, best[key].case.seconds)):
            best[key] = p
    trusted = [p for p in best.values() if p.figures.where not in doubted] or list(best.values())
    groups = sorted(trusted, key=lambda p: -sum(other.case.group == p.case.group for other in predictions))
    return [suggestion for p in groups[:most] if (suggestion := _suggest(p)) is not None]


def _suggest(p: TrainPrediction) -> Suggestion | None:
    case = p.case
    if case.cluster.devices > MAX_DEVICES_SEARCHED:
        return None
    judged = judge(case)
    own, best = judged.own, judged.best
    if best is None:
        return None
    return Suggestion(
        where=p.figures.where, layout=axes.layout_name(own.layout), seconds=case.seconds, predicted_seconds=p.seconds,
        proposed=axes.layout_name(best.layout), proposed_seconds=best.step, gain=1 - best.step / p.seconds,
        why=_largest_saving(judged), assumed="" if case.layout["mbs"] else ", micro-batch not stated and assumed the fastest",
        lacks_memory=_lacks_memory(p),
    )  # fmt: skip


def _lacks_memory(p: TrainPrediction) -> str:
    room = p.case.chip.memory
    if p.memory <= room:
        return ""
    needs = f"{p.memory / GIB:.1f} GiB predicted, {room / GIB:.1f} GiB on the device"
    return f"; as stated the layout does not fit ({needs}): a setting that saves memory, such as recompute, is not stated"


def _largest_saving(judged: Judged) -> str:
    """Return the part of the step in which the best layout saves most."""
    rows = [row for row in judged.differences if row.gained > 0]
    if not rows:
        return "no single part of the step stands out"
    return f"most is saved in {PARTS[rows[0].part]} ({rows[0].other:.3g} s to {rows[0].mine:.3g} s)"
