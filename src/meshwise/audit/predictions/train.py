"""Predicted step time and memory of training runs, compared with the measured ones; and the layout that the planner would try next."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.audit.figures import WITH_RECOMPUTE, Figures
from meshwise.audit.finding import Certainty, Finding, number, percent
from meshwise.audit.rules.one_run import LOWEST_MFU, graded
from meshwise.catalogue import frameworks, levels
from meshwise.cost import axes
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_WORDS as PARTS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.errors import UserError
from meshwise.plan.train import choice as plans
from meshwise.plan.train.explain import differences
from meshwise.plan.train.search import search
from meshwise.runs.train import case as cases
from meshwise.runs.train.case import Case
from meshwise.runs.train.predict import MICRO_BATCHES, predict
from meshwise.units import GIB

SLOW_ALONE, SLOW_IN_TABLE = 3.0, 30.0
"""Factors slower than predicted that make a finding: for a single run, and for one of a table, whose other rows show it too."""
FEW = 3
"""Runs up to which a file does not count as a table."""
FAST = 0.5
MEMORY = (0.3, 3.0)
"""Normal range of measured over predicted memory: the planner errs by 10 to 17%, allocators add some."""
LARGEST = 100_000
"""Devices up to which an audit searches all layouts; use `plan` beyond."""
GAIN = 0.02
"""Smallest predicted saving that makes another layout worth trying."""
EXPLAINED = 1.05
"""Measured over predicted step time above which a suggestion to keep the layout mentions the excess."""


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
    rows: list[tuple[Figures, Case]] = []
    missing: dict[str, int] = {}
    for f in runs:
        if f.served:
            continue
        try:
            rows.append((f, to_case(f)))
        except UserError as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
    if not rows:
        return [], missing
    predicted = predict([case for _, case in rows])
    pairs = zip(rows, predicted.seconds.tolist(), predicted.memory.tolist(), strict=True)
    return [TrainPrediction(f, case, seconds, memory) for (f, case), seconds, memory in pairs if math.isfinite(seconds)], missing


def to_case(f: Figures) -> Case:
    """Return the run as a row of a measurement table, with the defaults of its framework for settings that it does not state."""
    run = f.run
    if f.chip is None:
        raise UserError("the chip is not stated" if not run.text("chip") else "the chip is not in the catalogue")
    if not math.isfinite(f.devices) or f.devices < 1:
        raise UserError("the number of devices is not stated")
    if run.stated("dp", "tp", "pp") and f.run.number("dp") * run.number("tp") * run.number("pp") * run.number("cp", 1.0) != f.devices:
        raise UserError("the layout does not multiply to the number of devices")
    row = {name: f"{run.number(name):g}" if run.number(name) < 1e15 else "" for name in _NUMBERS if run.stated(name)}
    row |= {name: run.text(name) for name in _TEXTS if run.text(name)}
    row |= {
        "devices": f"{f.devices:.0f}",
        "gpu": f.chip.key,
        "tp": row.get("tp", "1"),
        "pp": row.get("pp", "1"),
        "dp": f"{f.dp:g}",
    }
    if math.isfinite(f.batch):
        row["batch"] = f"{f.batch:.0f}"
    if run.stated("per_device_batch") and "mbs" not in row:
        row["mbs"] = f"{run.number('per_device_batch'):.0f}"
    if f.printed_formula[0] in WITH_RECOMPUTE:
        row.setdefault("recompute", "full")
    if "zero" not in row and f.dp > 1 and not run.text("sharding"):
        row["zero"] = "1"
    if "heads" not in row and run.stated("hidden"):
        row["heads"] = str(_heads(int(run.number("hidden"))))
    model = f.model
    if model is not None and not run.stated("hidden"):
        row |= {"model": model.name, "hidden": ""}
    if run.stated("params") and run.stated("hidden"):
        row["params_b"] = f"{run.number('params') / 1e9:g}"
    if math.isfinite(f.seconds):
        row["sec_per_iter"] = f"{f.seconds:.9g}"
    if math.isfinite(f.memory):
        row |= {"mem_gb": f"{f.memory / 1e9:.6g}", "memory_unit": "GB"}
    return cases.case_of(row, f.where)


def _heads(hidden: int) -> int:
    """Return a number of heads that divides the width into heads of about 128."""
    return next((heads for heads in range(max(1, hidden // 128), 0, -1) if hidden % heads == 0), 1)


_NUMBERS = (
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "vocab",
    "seq",
    "devices_per_node",
    "tp",
    "pp",
    "cp",
    "ep",
    "zero",
    "mbs",
    "vpp",
)
_TEXTS = ("framework", "precision", "recompute", "sp", "sharding", "flash", "outcome")


def compare(predictions: Sequence[TrainPrediction], grades: dict[str, str]) -> Iterator[Finding]:
    """Yield a finding for each step time or memory far from the predicted one. `grades`: how each document grades itself, by file."""
    counts = Counter(p.figures.source for p in predictions)
    for p in predictions:
        if p.case.chip.kind == "cpu":
            continue  # the catalogue only has a generic CPU, which does not describe this machine
        limit = SLOW_IN_TABLE if counts[p.figures.source] > FEW else SLOW_ALONE
        if p.case.timed and p.ratio > limit:
            yield _slow(p, grades.get(p.figures.source, ""))
        elif p.case.timed and p.ratio < FAST:
            yield Finding(
                rule="planner",
                certainty="unusual",
                where=(p.figures.where,),
                message=f"it is {1 / p.ratio:.1f} times faster than predicted",
                arithmetic=f"{p.seconds:.4g} s predicted, {p.case.seconds:.4g} s measured",
            )
        if p.case.has_memory and p.case.layout["mbs"] and not MEMORY[0] < p.case.memory / p.memory < MEMORY[1]:
            predicted = f"{p.memory / GIB:.1f} GiB predicted for {layout_name(p.case.layout)}"
            yield Finding(
                rule="memory",
                certainty="unusual",
                where=(p.figures.where,),
                message="its memory is far from what its layout needs",
                arithmetic=f"{predicted}, {p.case.memory / GIB:.1f} GiB stated",
            )


def _slow(p: TrainPrediction, grade: str) -> Finding:
    share, f = p.figures.model_mfu, p.figures
    reached = f", {percent(share)} of the peak of {p.case.chip.name} by 6N" if math.isfinite(share) else ""
    tflops = f.run.number("tflops") / 1e12
    hint = ""
    if math.isfinite(tflops) and tflops > 0 and 0.7 < tflops / p.seconds < 1.4:
        hint = "; seconds and TFLOP/s may be swapped"
    certainty: Certainty = "likely" if p.ratio > SLOW_IN_TABLE or share < LOWEST_MFU else "unusual"
    return Finding(
        rule="planner",
        certainty=certainty,
        where=(f.where,),
        message=f"it is {p.ratio:.3g} times slower than predicted{reached}{graded(grade)}{hint}",
        arithmetic=f"{p.seconds:.4g} s a step predicted, {p.case.seconds:.4g} s measured{_stated_share(f)}",
    )


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
    seconds: float
    """Measured seconds per step of the run."""
    predicted_seconds: float
    proposed: str
    proposed_seconds: float
    """Predicted for the proposed layout."""
    gain: float
    """Predicted saving, as a share of the step."""
    why: str
    assumed: str = ""
    """Text for a run that does not state its micro-batch."""
    lacks_memory: str = ""
    """Text for a run whose predicted memory exceeds the device."""

    @property
    def message(self) -> str:
        measured = f"{self.where}, {self.seconds:.4g} s measured{self.assumed}"
        if self.gain >= GAIN:
            gain = f"predicted {self.proposed_seconds:.4g} s a step, {self.gain:.0%} less than the {self.predicted_seconds:.4g} s"
            return f"try {self.proposed}: {gain} predicted for {self.layout} ({measured}); {self.why}{self.lacks_memory}"
        best = f"no other layout is predicted to be more than {GAIN:.0%} faster than its {self.predicted_seconds:.4g} s a step"
        ratio = self.seconds / self.predicted_seconds
        excess = (
            f"; the layout does not explain that the measured step takes {ratio:.3g} times as long" if ratio > EXPLAINED else ""
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
    program = case.work.framework if case.work.framework.key else frameworks.find_framework("megatron")
    question = Question.of(
        case.model, case.cluster, replace(case.work, framework=program), levels.choose_for(case.cluster, program)
    )
    if case.cluster.devices > LARGEST:
        return None
    result = search(question, top=1)
    if not len(result.layouts):
        return None
    best = plans.choice(question, result.layouts, result.cost, 0)
    layout, assumed = case.layout, ""
    if not layout["mbs"]:
        layout, assumed = layout | {"mbs": _assumed_micro_batch(p)}, ", micro-batch not stated and assumed the fastest"
    return Suggestion(
        where=p.figures.where,
        layout=layout_name(layout),
        seconds=case.seconds,
        predicted_seconds=p.seconds,
        proposed=axes.layout_name(best.layout),
        proposed_seconds=best.step,
        gain=1 - best.step / p.seconds,
        why=_largest_saving(question, layout, best),
        assumed=assumed,
        lacks_memory=_lacks_memory(p),
    )


def _assumed_micro_batch(p: TrainPrediction) -> int:
    """Return the micro-batch behind a prediction whose run does not state one: `predict` takes the fastest that fits."""
    tried = predict([replace(p.case, layout=p.case.layout | {"mbs": mbs}) for mbs in MICRO_BATCHES])
    return MICRO_BATCHES[int(np.argmin(np.abs(tried.seconds - p.seconds)))]


def _lacks_memory(p: TrainPrediction) -> str:
    room = p.case.chip.memory
    if p.memory <= room:
        return ""
    needs = f"{p.memory / GIB:.1f} GiB predicted, {room / GIB:.1f} GiB on the device"
    return f"; as stated the layout does not fit ({needs}): a setting that saves memory, such as recompute, is not stated"


def _largest_saving(question: Question, layout: dict[str, int], best: plans.Choice) -> str:
    """Return the part of the step in which the best layout saves most."""
    layouts = Layouts.of(**{axis: np.array([value]) for axis, value in layout.items()})
    current = plans.choice(question, layouts, evaluate(question, layouts), 0)
    rows = [row for row in differences(best, current) if row.gained > 0]
    if not rows:
        return "no single part of the step stands out"
    return f"most is saved in {PARTS[rows[0].part]} ({rows[0].other:.3g} s to {rows[0].mine:.3g} s)"
