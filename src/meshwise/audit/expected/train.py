"""What the planner expects of a run: time, memory, and the layout it would try next."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwise.audit.figures import RECOMPUTED, Figures
from meshwise.audit.finding import Finding, Sure, number, percent
from meshwise.audit.rules.one_run import low_mfu
from meshwise.calibrate.train import cases as measure
from meshwise.calibrate.train.cases import Case
from meshwise.calibrate.train.predict import predict
from meshwise.catalogue import calibrations, frameworks
from meshwise.cost.axes import OFFLOAD, RECOMPUTE, SCHEDULES, layout_name
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_WORDS as PARTS
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import price
from meshwise.errors import UserError
from meshwise.plan.train import choice as plans
from meshwise.plan.train.explain import differences
from meshwise.plan.train.search import search
from meshwise.units import GIB

ALONE, AMONG = 3.0, 30.0
"""How many times slower than the planner expects is a finding: of a run alone, and of one among many, whose slowness its table shows."""
FEW = 3
"""Runs of one file that are 'alone'."""
HOPELESS = 0.01
"""An MFU by 6N below which no training of a dense model is in order."""
MEMORY = (0.3, 3.0)
"""Measured over expected memory that is out of line: the planner's own error is 10 to 17%, allocators add some."""
FASTER = 0.5
LARGEST = 100_000
"""Devices up to which all layouts are searched here; `plan` goes on from there."""
GAIN = 0.02
"""What is worth trying."""


@dataclass(frozen=True)
class Expectation:
    """One run as the planner sees it."""

    figures: Figures
    case: Case
    seconds: float
    memory: float

    @property
    def slower(self) -> float:
        """Measured over expected time."""
        return self.case.seconds / self.seconds


def expectations(runs: Sequence[Figures]) -> tuple[list[Expectation], dict[str, int]]:
    """Every run that states enough to be priced, and for the others what is missing, with a count."""
    cases: list[tuple[Figures, Case]] = []
    missing: dict[str, int] = {}
    for f in runs:
        if f.served:
            continue
        try:
            cases.append((f, case_of(f)))
        except UserError as error:
            missing[str(error)] = missing.get(str(error), 0) + 1
    if not cases:
        return [], missing
    predicted = predict([case for _, case in cases])
    pairs = zip(cases, predicted.seconds.tolist(), predicted.memory.tolist(), strict=True)
    return [Expectation(f, case, seconds, memory) for (f, case), seconds, memory in pairs if math.isfinite(seconds)], missing


def case_of(f: Figures) -> Case:
    """The run as a row of a table of measurements: what it leaves unsaid is what its framework does of its own."""
    run = f.run
    if f.chip is None:
        raise UserError("the chip is not stated" if not run.text("gpu") else "the chip is not in the catalogue")
    if not math.isfinite(f.devices) or f.devices < 1:
        raise UserError("the number of devices is not stated")
    if run.stated("dp", "tp", "pp") and f.run.get("dp") * run.get("tp") * run.get("pp") * run.numbers.get("cp", 1.0) != f.devices:
        raise UserError("the layout does not multiply to the devices")
    row = {name: f"{run.get(name):g}" if run.get(name) < 1e15 else "" for name in _WHOLE if run.stated(name)}
    row |= {name: run.text(name) for name in _WORDS if run.text(name)}
    row |= {
        "n_gpus": f"{f.devices:.0f}",
        "gpu": f.chip.key,
        "tp": row.get("tp", "1"),
        "pp": row.get("pp", "1"),
        "dp": f"{f.dp:g}",
    }
    if math.isfinite(f.batch):
        row["global_batch_seqs"] = f"{f.batch:.0f}"
    if run.stated("per_device_batch") and "micro_batch" not in row:
        row["micro_batch"] = f"{run.get('per_device_batch'):.0f}"
    if f.used[0] in RECOMPUTED:
        row.setdefault("recompute", "full")
    if "zero_stage" not in row and f.dp > 1 and not run.text("sharding"):
        row["zero_stage"] = "1"
    if "n_heads" not in row and run.stated("d_model"):
        row["n_heads"] = str(_heads(int(run.get("d_model"))))
    model = f.model
    if model is not None and not run.stated("d_model"):
        row |= {"model": model.name, "d_model": ""}
    if run.stated("params") and run.stated("d_model"):
        row["params_b"] = f"{run.get('params') / 1e9:g}"
    if math.isfinite(f.seconds):
        row["sec_per_iter"] = f"{f.seconds:.9g}"
    if math.isfinite(f.memory):
        row |= {"mem_gb": f"{f.memory / 1e9:.6g}", "mem_unit": "GB"}
    return measure.case(row, f.where)


def _heads(hidden: int) -> int:
    """Heads of about 128 that divide the width, where none are stated."""
    return next((heads for heads in range(max(1, hidden // 128), 0, -1) if hidden % heads == 0), 1)


_WHOLE = (
    "n_layers",
    "d_model",
    "d_ff",
    "n_heads",
    "n_kv_heads",
    "vocab",
    "seq_len",
    "gpus_per_node",
    "tp",
    "pp",
    "cp",
    "ep",
    "zero_stage",
    "micro_batch",
    "interleave",
)
_WORDS = ("framework", "precision", "recompute", "seq_parallel", "sharding", "flash_attention", "outcome")


def compared(found: Sequence[Expectation], grades: dict[str, str]) -> Iterator[Finding]:
    """Far slower, or far faster, than the planner expects; memory out of line with what the layout needs."""
    many = {e.figures.source for e in found if sum(o.figures.source == e.figures.source for o in found) > FEW}
    for e in found:
        if e.case.chip.kind == "cpu":
            continue  # the catalogue has a generic one, which says nothing of this machine
        limit = AMONG if e.figures.source in many else ALONE
        if e.case.timed and e.slower > limit:
            yield _slow(e, grades.get(e.figures.source, ""))
        elif e.case.timed and e.slower < FASTER:
            work = f"{e.seconds:.4g} s expected, {e.case.seconds:.4g} s measured"
            yield Finding(
                rule="planner",
                sure="look",
                where=(e.figures.where,),
                words=f"it is {1 / e.slower:.1f} times faster than the planner expects",
                arithmetic=work,
            )
        if e.case.weighed and e.case.layout["mbs"] and not MEMORY[0] < e.case.memory / e.memory < MEMORY[1]:
            work = f"{e.memory / GIB:.1f} GiB expected of {name_of_case(e.case)}, {e.case.memory / GIB:.1f} GiB stated"
            yield Finding(
                rule="memory",
                sure="look",
                where=(e.figures.where,),
                words="its memory is out of line with what its layout needs",
                arithmetic=work,
            )


def _slow(e: Expectation, grade: str) -> Finding:
    share, f = low_mfu(e.figures), e.figures
    worth = f", {percent(share)} of the peak of {e.case.chip.name} by 6N" if math.isfinite(share) else ""
    graded = f" (the document's grade: {grade})" if grade else ""
    swapped = f.run.get("tflops") / 1e12
    hint = ""
    if math.isfinite(swapped) and swapped > 0 and 0.7 < swapped / e.seconds < 1.4:
        hint = "; seconds and TFLOPs may be swapped"
    sure: Sure = "likely" if e.slower > AMONG or share < HOPELESS else "look"
    work = f"{e.seconds:.4g} s a step expected, {e.case.seconds:.4g} s measured{_rate_share(f)}"
    return Finding(
        rule="planner",
        sure=sure,
        where=(f.where,),
        words=f"it is {e.slower:.3g} times slower than the planner expects{worth}{graded}{hint}",
        arithmetic=work,
    )


def _rate_share(f: Figures) -> str:
    """The same by the rate that the source states, which may be another one than its step time gives."""
    stated = f.stated_rate
    flops = f.formulas.get("6N", math.nan)
    if not math.isfinite(stated * flops * f.peak * f.devices):
        return ""
    each = flops * stated / f.devices
    reached = f"{each / 1e12:.3g} TFLOP/s of {f.peak / 1e12:.4g}, {percent(each / f.peak)}"
    return f"; 6N x {number(stated / f.devices)} tok/s a device = {reached}"


def unpriced(runs: Sequence[Figures], priced: set[str], grades: dict[str, str]) -> Iterator[Finding]:
    """Runs that the planner cannot price, by 6N alone."""
    for f in runs:
        share = low_mfu(f)
        if f.where not in priced and share < HOPELESS and not f.served and f.chip and f.chip.kind != "cpu":
            grade = f" (the document's grade: {grades[f.source]})" if f.source in grades else ""
            work = (
                f"6N x {number(f.rate)} tok/s / {number(f.devices)} devices = {f.tflops['6N'] / 1e12:.3g} TFLOP/s of {f.peak / 1e12:.4g}"
                if "6N" in f.tflops
                else percent(share)
            )
            yield Finding(
                rule="planner",
                sure="likely",
                where=(f.where,),
                words=f"it uses {percent(share)} of the peak of {f.chip.name}{grade}",
                arithmetic=work,
            )


def name_of_case(case: Case) -> str:
    """'dp8 tp4 pp12 mbs2 full recompute'."""
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}
    return layout_name({axis: words[axis][value] if axis in words else value for axis, value in case.layout.items()})


@dataclass(frozen=True)
class Next:
    """What the planner would try instead of the best run of a kind."""

    where: str
    now: str
    now_seconds: float
    now_expected: float
    tried: str
    gain: float
    """Share of the step that it would save, both priced by the planner."""
    why: str

    @property
    def words(self) -> str:
        if self.gain < GAIN:
            slow = "; the layout is not what makes it slow" if self.now_seconds > ALONE * self.now_expected else ""
            best = f"within {GAIN:.0%} of the best that the planner finds, {self.now_expected:.4g} s a step"
            return f"{self.where} ({self.now}) is {best}{slow}"
        saved = f"{self.gain:.0%} less time by the planner's reckoning"
        return f"instead of {self.now} ({self.where}, {self.now_seconds:.4g} s): {self.tried}, {saved}; {self.why}"


def next_to_try(found: Sequence[Expectation], doubted: frozenset[str], most: int = 2) -> list[Next]:
    """For the fastest run of each model, batch and number of devices: the planner's pick for the same question, with what it saves."""
    best: dict[tuple[object, ...], Expectation] = {}
    for e in found:
        key = (e.figures.source, *e.case.group)
        rank = (e.figures.where in doubted, e.case.seconds)  # a doubted run only where there is no other
        if e.case.timed and (key not in best or rank < (best[key].figures.where in doubted, best[key].case.seconds)):
            best[key] = e
    trusted = [e for e in best.values() if e.figures.where not in doubted] or list(best.values())
    groups = sorted(trusted, key=lambda e: -sum(o.case.group == e.case.group for o in found))
    return [one for e in groups[:most] if (one := _next(e)) is not None]


def _next(e: Expectation) -> Next | None:
    case = e.case
    program = case.work.framework if case.work.framework.key else frameworks.find_framework("megatron")
    question = Question.of(
        case.model, case.cluster, replace(case.work, framework=program), calibrations.choose(case.chip, program.key)
    )
    if case.cluster.devices > LARGEST:
        return None
    tried = search(question, top=1)
    if not len(tried.layouts):
        return None
    choice = plans.choice(question, tried.layouts, tried.cost, 0)
    gain = 1 - choice.step / e.seconds
    now = name_of_case(case)
    return Next(e.figures.where, now, case.seconds, e.seconds, layout_name(choice.layout), gain, _why(question, case, choice))


def _why(question: Question, case: Case, best: plans.Choice) -> str:
    """The part of the step that the pick saves most of."""
    layouts = Layouts.of(**{axis: np.array([max(value, 1) if axis == "mbs" else value]) for axis, value in case.layout.items()})
    mine = plans.choice(question, layouts, price(question, layouts), 0)
    rows = [row for row in differences(best, mine) if row.gained > 0]
    return (
        f"it saves most in {PARTS[rows[0].part]} ({rows[0].other:.3g} s to {rows[0].mine:.3g} s)"
        if rows
        else "no single part stands out"
    )
