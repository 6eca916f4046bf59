"""Diagnosis: traces of one run -> parts of its step beside what they should be, and its faults, what costs most first."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwise.audit.ask import LAUNCH_SUFFIXES, AuditAsk
from meshwise.audit.doctor import nsight, predicted, snapshot, timeline
from meshwise.audit.doctor.fault import Fault, milliseconds, ordered
from meshwise.audit.doctor.predicted import Predicted
from meshwise.audit.doctor.profile import Evidence, Profile
from meshwise.audit.doctor.rules import device, host, messages, ranks
from meshwise.audit.doctor.snapshot import Memory
from meshwise.audit.doctor.timeline import Timeline
from meshwise.catalogue.chips import Chip
from meshwise.errors import UserError
from meshwise.output import Drawn

FORMAT_VERSION = 1
ROWS = {"no flash attention": "attention", "TF32 off": "matmul", "float32 products": "matmul", "no fused optimizer": "optimizer",
    "eager loss": "elementwise", "head size": "attention", "uneven shapes": "matmul", "unfilled waves": "matmul", "slow chip": "matmul",
    "expert imbalance": "matmul", "pageable copies": "copy", "copies to the host": "copy", "tiny messages": "dp", "no overlap": "dp",
    "slow link": "dp", "slow rank": "dp", "throttled GPU": "dp"}  # fmt: skip
"""The row of the table that a fault makes longer; idle for the others."""
WORDS = {"matmul": "matrix products", "attention": "attention", "elementwise": "norms, activations and loss", "optimizer": "optimizer",
    "dp": "gradients and weights between ranks", "tp": "tensor-parallel communication", "cp": "context-parallel communication",
    "ep": "expert all-to-all", "p2p": "pipeline sends", "copy": "copies to and from the host", "idle": "idle"}  # fmt: skip
MAX_TRACES = 4096
SLOWER = 1.1  # measured over predicted time of a row from which on it is named


@dataclass(frozen=True)
class Row:
    """One part of the step: seconds measured, and what they should be."""

    part: str
    measured: float
    should_be: float | None


@dataclass(frozen=True, repr=False)
class Diagnosis(Drawn):
    """What a run's traces show."""

    title: str
    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    profiles: tuple[Profile, ...]
    prediction: Predicted | None
    memory: tuple[Memory, ...]
    notes: tuple[str, ...]
    verdict: str

    @property
    def slowest(self) -> Profile:
        """The rank that works longest: the others wait for it."""
        return max(self.profiles, key=lambda one: one.working)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT_VERSION, "verdict": self.verdict, "title": self.title, "parts": [asdict(row) for row in self.rows],
            "faults": [asdict(fault) for fault in self.faults], "predicted_from": self.prediction.source if self.prediction else "",
            "ranks": [asdict(one) for one in self.profiles], "memory": [asdict(one) for one in self.memory], "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Diagnosis of {len(self.profiles)} traces. {self.verdict}>"


def diagnose(files: Sequence[Path], ask: AuditAsk, plan: str = "") -> Diagnosis:
    """Read traces of one run, each of a rank, with launch files and memory snapshots beside them, and judge them."""
    launch = [file for file in files if file.suffix.lower() in LAUNCH_SUFFIXES]
    traces, memory = _sorted([file for file in _expanded(files) if file not in launch])
    found: list[Profile] = []
    faults: list[Fault] = []
    for file in traces:
        made, more = _one(file, ask.on)
        found.append(made)
        faults += more
    if not found and not memory:
        raise UserError(
            "nothing to diagnose: give traces of torch's profiler (.json, .json.gz), Nsight Systems (.sqlite) or memory snapshots"
        )
    if found:
        faults += [fault for rule in ranks.RULES for fault in rule(found)]
        faults += messages.slow_link(found, *_link(predicted.chip_of(found[0].chip, ask.on), found[0].world))
    faults += [fault for one in memory for fault in snapshot.faults(one)]
    kept = ordered(faults)
    if not found:
        return Diagnosis("memory snapshot", (), kept, (), None, tuple(memory), (), _verdict(kept, 0.0, None))
    slowest = max(found, key=lambda one: one.working)
    expected = _expected(traces, launch, ask, plan, slowest, kept)
    measured = predicted.measured_rows(slowest)
    rows = [
        Row(part, seconds, expected.rows.get(part)) for part, seconds in measured.items() if seconds or expected.rows.get(part)
    ]
    rows.append(Row("step", slowest.step, expected.step))
    notes = (*(note for one in found for note in one.notes), *_notes(found, slowest), *expected.notes)
    return Diagnosis(_title(slowest, found), tuple(rows), kept, tuple(found), expected, tuple(memory), notes,
                     _verdict(kept, slowest.step, expected))  # fmt: skip


def _expanded(files: Sequence[Path]) -> list[Path]:
    """Return files, and for a folder the traces in it."""
    made: list[Path] = []
    for file in files:
        if file.is_dir():
            inside = [path for path in sorted(file.iterdir())
                if path.name.endswith((".json", ".json.gz", ".sqlite")) and "trace" in path.name]  # fmt: skip
            if not inside:
                raise UserError(f"{file}: the folder has no file whose name has 'trace' and ends in .json, .json.gz or .sqlite")
            made += inside
        else:
            made.append(file)
    if len(made) > MAX_TRACES:
        raise UserError(f"{len(made):,} traces: give at most {MAX_TRACES:,}")
    return made


def _sorted(files: Sequence[Path]) -> tuple[list[Path], list[Memory]]:
    """Return traces, and the memory snapshots among the files."""
    memory = [snapshot.read(file) for file in files if file.name.endswith((".pickle", ".pkl", ".pickle.gz"))]
    return [file for file in files if not file.name.endswith((".pickle", ".pkl", ".pickle.gz"))], memory


def read_timeline(file: Path) -> Timeline:
    """Read a trace of torch's profiler or of Nsight Systems."""
    return nsight.read(file) if nsight.matches(file) else timeline.read(file)


def _one(file: Path, on: str) -> tuple[Profile, list[Fault]]:
    """Return the profile of one rank, and its faults. Nothing else of the trace is kept."""
    read = read_timeline(file)
    chip = predicted.chip_of(read.chip, on)
    evidence = Evidence.of(read, predicted.device_of(chip) if read.on_gpu else None)
    found = [fault for module in (device, host, messages) for rule in module.RULES for fault in rule(evidence)]
    tagged = [replace(fault, ranks=() if read.rank is None else (read.rank,)) for fault in found if fault.seconds > 0]
    return evidence.profile, tagged


def _link(chip: Chip | None, world: int) -> tuple[float, str]:
    """Return bytes per second and name of the link between the ranks, if the chip's file has it."""
    if chip is None or chip.kind == "cpu":
        return 0.0, ""
    link = chip.link if world <= chip.per_node else chip.network
    return (link.bandwidth, link.name) if link else (0.0, "")


def _expected(
    traces: Sequence[Path], launch: Sequence[Path], ask: AuditAsk, plan: str, slowest: Profile, faults: Sequence[Fault]
) -> Predicted:
    """Return the prediction: from a plan, launch files or flags, the run's own folder, or else the trace alone."""
    if plan:
        return predicted.of_plan(Path(plan))
    told = predicted.of_words(ask, launch, slowest)
    if told:
        return told
    own = predicted.of_folder(traces[0].parent)
    return own or predicted.of_trace(slowest, faults, ROWS)


def _title(slowest: Profile, found: Sequence[Profile]) -> str:
    chip = slowest.chip or ("GPU" if slowest.on_gpu else "CPU")
    world = f"{len(found)} of {slowest.world} ranks" if slowest.world > 1 else "1 rank"
    shape = ", ".join(text for text in (
        f"{slowest.micro_batches} micro-batch{'es' * (slowest.micro_batches != 1)}" if slowest.micro_batches else "",
        f"{slowest.layers} layers" if slowest.layers else "") if text)  # fmt: skip
    return f"{len(slowest.steps)} steps of {milliseconds(slowest.step)} on {chip}, {world}{f', {shape}' * bool(shape)}"


def _notes(found: Sequence[Profile], slowest: Profile) -> list[str]:
    notes = [f"steps were found by {slowest.found_by}"] if slowest.found_by != "whole trace" else [
        "the trace marks no steps: all of it counts as one (use the profiler's schedule and step(), or torch's optimizers)"]  # fmt: skip
    hidden = sum(slowest.hidden.values())
    if hidden:
        shown = sum(slowest.parts.get(part, 0.0) for part in slowest.hidden)
        notes.append(f"communication: {milliseconds(shown)} a step exposed, {milliseconds(hidden)} hidden behind computation")
    if len(found) > 1:
        work = [one.working for one in found]
        notes.append(
            f"work by rank: {milliseconds(min(work))} to {milliseconds(max(work))}, median {milliseconds(statistics.median(work))}"
        )
    if not any(one.products for one in found):
        notes.append("the trace has no shapes (record_shapes=True), so that products are not compared with their roofline")
    return notes


def _verdict(faults: Sequence[Fault], step: float, expected: Predicted | None) -> str:
    shown = [fault for fault in faults if fault.certainty != "unusual"]
    if not shown:
        if expected and expected.whole and step > SLOWER * expected.step:
            return f"No known fault, but the step takes {step / expected.step:.2f} times as long as predicted."
        return "No known fault found."
    first = shown[0]
    gain = f", {first.seconds / step:.0%} of the step" if step else ""
    return f"Change first: {first.name} ({first.certainty}{gain})."
