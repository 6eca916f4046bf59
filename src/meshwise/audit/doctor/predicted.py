"""What a step should take, part by part: from the folder of a `meshwise run`, a plan, launch files, flags, or the trace's own facts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwise.audit.ask import AuditAsk, told_by_launch_files
from meshwise.audit.doctor.fault import Fault
from meshwise.audit.doctor.profile import Profile
from meshwise.catalogue.cards import chip_in_text
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import find_framework
from meshwise.catalogue.levels import choose
from meshwise.cost.layout import Layouts
from meshwise.cost.train.compute import Device
from meshwise.errors import UserError
from meshwise.runs.compare import fastest_micro_batch, own_choice, question_of
from meshwise.runs.run import Run, Value
from meshwise.runs.train.settle import cases_of

GROUPS = {"matmul": ("matmul", "recompute"), "attention": ("attention",), "elementwise": ("elementwise",), "optimizer": ("optimizer",),
    "dp": ("dp",), "tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "p2p": ("p2p",), "copy": ("offload",),
    "idle": ("launch", "bubble", "fixed")}  # fmt: skip
"""The planner's parts that make up each row of a diagnosis; a trace cannot tell recomputed from first products."""
MEASURED = {"elementwise": ("elementwise", "loss"), "idle": ("launch", "data", "sync", "allocator", "compile", "save", "wait")}
"""Parts of a trace that make up a row, where it is not the part of that name."""
DEFAULT_FRAMEWORK = "meshwise"
"""The program whose calibration gives the rates of a chip. On an H200 its products were within 15% of those of plain PyTorch
steps, those of the calibration for FSDP up to 18% slower (tests/fixtures/doctor/h200-clean.json.gz); other chips were not compared."""


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step by row, and where they come from."""

    rows: dict[str, float]
    source: str
    whole: bool = True
    """Whether a plan of the same run predicts every row; otherwise what has no prediction is as measured, less the faults found."""
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> float:
        return sum(self.rows.values())


def measured_rows(profile: Profile) -> dict[str, float]:
    """Return the measured seconds by row of a diagnosis."""
    return {row: sum(profile.parts.get(part, 0.0) for part in MEASURED.get(row, (row,))) for row in GROUPS}


def chip_of(name: str, on: str) -> Chip | None:
    """Return the chip that --on names, or the trace does; None where neither is known."""
    try:
        if on:
            return find_cluster(on if "x" in on else f"1x1x{on}").chip
        return chip_in_text(name) if name else None
    except UserError:
        if on:
            raise
        return None


def device_of(chip: Chip | None) -> Device | None:
    """Return the rates of a chip in 16 bits, as calibrated."""
    return Device.of(chip, choose(chip, find_framework(DEFAULT_FRAMEWORK)), "bf16") if chip else None


def of_choice(time: dict[str, float], source: str, notes: tuple[str, ...] = ()) -> Predicted:
    return Predicted({row: sum(time.get(part, 0.0) for part in parts) for row, parts in GROUPS.items()}, source, notes=notes)


def of_folder(folder: Path) -> Predicted | None:
    """Return the prediction of a run of our trainer by the config.json beside its trace; None if there is none."""
    if not (folder / "config.json").is_file() or not (folder / "steps.jsonl").is_file():
        return None
    from meshwise.audit.doctor.parts import predicted_of

    choice, notes = predicted_of(folder / "config.json")
    return of_choice(choice.time, f"the run in {folder.name}", tuple(notes)) if choice else None


def of_plan(path: Path) -> Predicted:
    """Return the prediction of the best layout of a plan.json."""
    from meshwise.plan.train.plan import read

    made = read(path)
    return of_choice(made.best.time, f"{path.name}, {made.best.name}")


def of_words(ask: AuditAsk, launch: Sequence[Path], profile: Profile) -> Predicted | None:
    """Return the prediction of the run that flags and launch files describe; None where they describe none."""
    told = ask.told()
    if launch:
        told = told.merged(told_by_launch_files(launch))
    if not launch and not (ask.model or ask.params):
        return None
    known: dict[str, Value] = {"seconds": profile.step, "devices": float(profile.world)}
    if profile.chip and not ask.on:
        known["chip"] = profile.chip
    run = told.merged(Run.told("the trace", known))
    found, reasons = cases_of([replace(run, where="the trace")], "trace")
    if not found:
        raise UserError(
            f"no prediction: {'; '.join(reasons) or 'the run is not described'}; give --model, --batch, --seq and --on"
        )
    case = found[0][1]
    axes: dict[str, Any] = case.layout if case.layout["mbs"] else case.layout | {"mbs": fastest_micro_batch(case)}
    choice = own_choice(question_of(case), Layouts.of(**{axis: np.array([value]) for axis, value in axes.items()}))
    return of_choice(choice.time, f"{case.model.name} on {case.cluster.devices} x {case.chip.name}, {choice.name}")


def of_trace(profile: Profile, faults: Sequence[Fault], row_of_fault: dict[str, str]) -> Predicted:
    """Return what the step should take by the trace alone: products by the roofline of their shapes, the rest as measured without the
    faults that were found."""
    rows = measured_rows(profile)
    shaped = [one for one in profile.products if one.should_be]
    if shaped:
        rows["matmul"] += sum(min(0.0, one.should_be - one.seconds) for one in shaped)
    for fault in faults:
        row = row_of_fault.get(fault.name, "idle")
        if fault.certainty != "unusual" and not (row == "matmul" and shaped):
            rows[row] = max(0.0, rows[row] - fault.seconds)
    known = "shapes and faults in the trace" if shaped else "faults in the trace"
    return Predicted(rows, known, whole=False)
