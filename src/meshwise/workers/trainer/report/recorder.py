"""Records a run: printed lines and rows, TensorBoard curves, a profiler trace, the history of GPU memory, and each rank's times."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from meshwise.output import say
from meshwise.workers.trainer.contract import rows
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.rows import Kernels, Rank, Step
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.evaluation import Evaluation
from meshwise.workers.trainer.parallel import AXES, Ranks
from meshwise.workers.trainer.phases import Phases
from meshwise.workers.trainer.ranks.faults import kind_of
from meshwise.workers.trainer.report.kernels import kernels_of_step
from meshwise.workers.trainer.report.lines import environment, peak_memory, step_line
from meshwise.workers.trainer.report.trackers import Tracker, trackers

MIN_LAST_STEP = 16
"""Index of the last step from which on its kernels are profiled: in shorter runs starting the profiler would count."""
MAX_ALLOCATIONS = 200_000  # allocations that a memory snapshot holds


class Recorder:
    """Records the steps of a run. Every rank has one; rank 0's prints and writes."""

    def __init__(self, settings: Settings, ranks: Ranks, device: torch.device, phases: Phases, first: int) -> None:
        self.settings, self.ranks, self.device, self.phases = settings, ranks, device, phases
        self.steps: list[Step] = []
        self.lead = dist.get_rank() == 0
        self.folder = Path(settings.out)
        self.trackers: list[Tracker] = []
        self.trace: Any = None
        self.kernels: list[Kernels] = []
        self.log: FileIO | None = None
        self.unwritten = b""
        """Log bytes that a full disk did not take: a checkpoint that does not fit fills it until it is removed."""
        if self.lead:
            (self.folder / "environment.json").write_text(json.dumps(environment(settings), indent=2) + "\n", encoding="utf-8")
            self.log = open_step_log(self.folder / "steps.jsonl", first)
            self.evaluations = self.folder / rows.EVALUATIONS
            if self.evaluations.exists():
                drop_later(self.evaluations, first + 1)
            (self.folder / rows.KERNELS).unlink(missing_ok=True)
            self.trackers = trackers(settings, self.folder)

    @contextmanager
    def step(self, number: int) -> Generator[None]:
        """Wrap a step: rank 0 profiles the steps that the settings ask for."""
        first, last = self.settings.profile_from, self.settings.profile_from + self.settings.profile_steps
        inside = self.lead and first <= number < last
        if inside and self.trace is None:
            kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
            self.trace = profile(activities=kinds, record_shapes=True)
            self.trace.start()
            self.phases.traced = True
        if self.device.type == "cuda" and self.lead and number == self.settings.steps - 1 >= MIN_LAST_STEP and self.trace is None:
            # the last step: whatever profiling costs, no other step pays for it
            with kernels_of_step(self.kernels):
                yield
            return
        yield
        if inside and number + 1 in (last, self.settings.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.trace.stop()
            self.phases.traced = False
            self.trace.export_chrome_trace(str(self.folder / "trace-rank0.json"))

    def record(self, step: Step) -> None:
        """Print and write a finished step, so that a run that stops has all its steps on disk."""
        self.steps.append(step)
        if not self.lead or self.log is None:
            return
        say(step_line(self.settings, step))
        self.unwritten += json.dumps(rows.step_row(step)).encode() + b"\n"
        try:
            self._write(self.log)
        except OSError as error:
            if kind_of(error) != "disk":
                raise
        self._track(step.step + 1, scalars(self.settings, step))

    def evaluated(self, found: Evaluation) -> None:
        """Print and write a validation loss."""
        if self.lead:
            say(f"validation loss after step {found.step}: {found.loss:.4f} ({found.tokens:,} tokens)")
            rows.add_row(self.evaluations, asdict(found))
            self._track(found.step, {"validation_loss": found.loss})

    def _track(self, step: int, values: dict[str, float]) -> None:
        for tracker in self.trackers:
            try:
                tracker.log(step, values)
            except OSError as error:
                if kind_of(error) != "disk":
                    raise

    def end(self) -> None:
        """Gather the ranks' times and write ranks.json and the row of the run."""
        if not self.steps:
            return
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, self._this_rank())
        if not self.lead or self.log is None:
            return
        while self.unwritten:
            self._write(self.log)
        self.log.close()
        for tracker in self.trackers:
            tracker.close()
        for kernels in self.kernels:
            (self.folder / rows.KERNELS).write_text(json.dumps(asdict(kernels)) + "\n", encoding="utf-8")
        ranks = cast(list[Rank], gathered)
        rows.write_ranks(self.folder / "ranks.json", ranks)
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.settings.layout.devices))
        measured = rows.measurement(self.settings, self.steps, per_node, max(rank.memory for rank in ranks))
        rows.add_row(self.folder / "measurement.jsonl", measured)

    def _write(self, log: FileIO) -> None:
        """Write as much of the log as the disk takes; raise OSError if it takes nothing."""
        self.unwritten = self.unwritten[log.write(self.unwritten) :]

    def _this_rank(self) -> Rank:
        a, measured = self.settings.layout, rows.measured_steps(self.steps)
        timed = [sum(step.phases.get(name, 0.0) for name in rows.UNSHARED_PHASES) for step in measured if step.phases]
        worked = [sum(step.cpu.get(name, 0.0) for name in rows.UNSHARED_PHASES) for step in measured if step.cpu]
        return Rank(
            rank=dist.get_rank(), host=socket.gethostname(), at={axis: self.ranks.at(axis) for axis in AXES},
            tokens=self.settings.batch * self.settings.seq // (a.dp * a.cp), seconds=rows.median_or_none(timed),
            cpu_seconds=rows.median_or_none(worked), memory=peak_memory(self.device),
            reserved=float(torch.cuda.max_memory_reserved(self.device)) if self.device.type == "cuda" else None,
        )  # fmt: skip


def open_step_log(path: Path, first: int) -> FileIO:
    """Open steps.jsonl to append from step `first` on; later rows of an earlier run are dropped, since those steps run again."""
    drop_later(path, first)
    reach("log trimmed")
    return path.open("ab", buffering=0)


def drop_later(path: Path, first: int) -> None:
    """Drop the rows of step `first` and later ones. A run that is killed meanwhile does not lose the rows before."""
    before = path.read_bytes() if path.is_file() else b""
    kept = "".join(json.dumps(row) + "\n" for row in rows.read_rows(path) if row["step"] < first).encode()
    if kept == before:
        path.touch()  # its time tells that the rows are of this start
        return
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(kept)
    partial.replace(path)


def scalars(settings: Settings, step: Step) -> dict[str, float]:
    """Return a step's values by the names of TensorBoard's curves."""
    tokens, flops, mfu = rows.rates(settings, step.seconds)
    values = {"loss": step.loss, "grad_norm": step.grad_norm, "tokens_per_second": tokens, "seconds": step.seconds}
    values |= {"expert_imbalance": step.imbalance} if step.imbalance else {}
    values |= {"memory_gib": step.memory / 2**30, "tflops_per_device": flops / 1e12, "mfu": mfu}
    return values | {f"phases/{name}": seconds for name, seconds in step.phases.items()}


@contextmanager
def memory_history(settings: Settings) -> Generator[None]:
    """Record every GPU allocation, and write the history at the end or when memory runs out."""
    if not settings.memory_snapshot:
        yield
        return
    history = cast(Any, torch.cuda.memory)
    history._record_memory_history(max_entries=MAX_ALLOCATIONS)
    try:
        yield
    finally:
        history._dump_snapshot(str(Path(settings.out, f"memory-rank{dist.get_rank()}.pickle")))
        history._record_memory_history(enabled=None)
