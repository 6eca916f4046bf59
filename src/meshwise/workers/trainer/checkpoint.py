"""Checkpoints that any layout can read: torch's distributed checkpoint (DCP), weights and optimizer state under HF's names, without ranks.

They are written in the background of the steps that follow, one at a time. A checkpoint is complete once its marker exists, which lists
every file with its size and checksum and is written last, after all ranks have written and synced theirs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import errno
import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as read_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from meshwise.output import say
from meshwise.workers.trainer.contract.marker import (
    DAMAGED_PREFIX,
    DESCRIPTION,
    MARKER,
    Marker,
    Trained,
    all_damaged,
    complete_steps,
    damaged_steps,
    format_refusal,
    read_marker,
    resume_changes,
    resume_refusal,
    unfinished_steps,
)
from meshwise.workers.trainer.contract.models.tensors import HEAD
from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.dcp_metadata import CheckedReader, DescribingWriter, find_problem
from meshwise.workers.trainer.gradients import NamedParameters
from meshwise.workers.trainer.optimizer import MOMENTS, StepOptimizer
from meshwise.workers.trainer.ranks.faults import TrainingError, kind_of

READ_BYTES = 1 << 22
METADATA = ".metadata"  # DCP's own description, which other programs read
MIN_FREE_BYTES = 1 << 20  # a disk with fewer free bytes counts as full


def _state(parameters: NamedParameters, optimizer: StepOptimizer, tied: str, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return everything a run needs to resume, by name. A tied head on another stage is the embedding, and not stored twice."""
    trained = {
        f"{kind}.{_key(name, tied)}": part for name, parameter in parameters for kind, part in optimizer.state(parameter).items()
    }
    return trained | {f"buffer.{name}": buffer for name, buffer in buffers.items()}


def _key(name: str, tied: str) -> str:
    return tied if tied and name == HEAD else name


def checksum(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes, and its CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def find_damage(target: Path, part: int = 0, parts: int = 1) -> str:
    """Check every `parts`-th file of a checkpoint, starting at `part`; return the first problem, empty if there is none."""
    marker = read_marker(target)
    if marker is None or DESCRIPTION not in marker.files:
        return "its marker cannot be read, or has changed since it was written"
    files = marker.files
    for name in sorted(files)[part::parts]:
        path = target / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != files[name][0]:
            return f"{name} has {path.stat().st_size:,} of {files[name][0]:,} bytes"
        if checksum(path) != files[name]:
            return f"{name} has changed since it was written"
        if name == DESCRIPTION and (problem := find_problem(target, files)):
            return problem
    return ""


class ResumePoint(NamedTuple):
    """Where a run starts or resumes."""

    step: int = 0  # steps done
    skipped: int = 0  # steps among them that were skipped
    ahead: int = 0  # samples read beyond step x batch; negative if the batch was smaller before


class Checkpoints:
    """Resumes from, writes and prunes the checkpoints of a run. Every rank makes the same calls at the same step."""

    def __init__(
        self, settings: Settings, parameters: NamedParameters, optimizer: StepOptimizer, tied: str, on_wait: Callable[[], None],
        buffers: dict[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.buffers = buffers or {}
        """Tensors that are part of the state and not trained: the biases that balance experts."""
        self.on_wait = on_wait
        """Called repeatedly while the disk is slow."""
        self.settings, self.parameters, self.optimizer, self.tied = settings, parameters, optimizer, tied
        self.folder = Path(settings.out, "checkpoints")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # a separate group on the CPU: the writing thread's messages must not mix with those of the steps
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=2 * settings.timeout + 60))
        self.group = cast(dist.ProcessGroup, group)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.writer: DescribingWriter | None = None
        self.pending: Future[str] | None = None
        self.problem = ""
        """Why the last checkpoint could not be written."""
        self.resumed = ResumePoint()
        self.ending = False
        """Whether the checkpoint in flight is the last; `end` then reports why it could not be written."""

    def resume(self) -> ResumePoint:
        """Load the newest intact checkpoint, whatever layout wrote it."""
        self._check_shared()
        for step in self._from_rank_0(complete_steps(self.folder)):
            target = self.folder / f"step-{step}"
            if refused := format_refusal(target):
                raise TrainingError("error", refused)
            damage = self._first_problem(find_damage(target, self.rank, self.world))
            self.on_wait()
            if not damage:
                return self._resume_from(target, step)
            self._set_aside(target, step, damage)
        damaged = self._from_rank_0(damaged_steps(self.folder))
        if damaged:
            raise TrainingError("error", all_damaged(self.folder, damaged))
        self._remove_unfinished()
        return self.resumed

    def _resume_from(self, target: Path, step: int) -> ResumePoint:
        marker = read_marker(target)
        if marker is None:
            raise TrainingError("error", f"{target} changed while the run started")
        before = marker.trained
        if refused := resume_refusal(self.folder, before, self.settings):
            raise TrainingError("error", refused)
        self._load(target, marker)
        self._remove_unfinished()
        self._say(f"resuming after step {step} from {self.folder}")
        for line in resume_changes(before, self.settings, step):
            self._say(line)
        self.resumed = ResumePoint(step, marker.skipped, before.samples - step * self.settings.batch)
        return self.resumed

    def _set_aside(self, target: Path, step: int, damage: str) -> None:
        aside = target.with_name(f"{DAMAGED_PREFIX}{target.name}")
        self._say(f"the checkpoint after step {step} is damaged ({damage}): renamed to {aside.name}")
        if self.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)

    def save(self, step: int, skipped: int) -> None:
        """Copy the state to the CPU and write it to `step-N` in the background; waits for the previous checkpoint first."""
        self.wait()
        reach("checkpoint begins")
        target = self.folder / f"step-{step}"
        if self.writer is None:
            # keep the pinned memory: copies from a GPU are fast, and memory is allocated only once
            self.writer = DescribingWriter(target, cache_staged_state_dict=self.settings.device == "cuda")
        state = _state(self.parameters, self.optimizer, self.tied, self.buffers)
        written = async_save(state, checkpoint_id=target, storage_writer=self.writer, process_group=self.group)
        self.pending = self.thread.submit(self._finish, cast("Future[Any]", written), target, step, skipped)

    def wait(self) -> None:
        """Wait until the checkpoint in flight is done; a full disk does not stop the training."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            while not wait([pending], timeout=1.0).done:
                self.on_wait()
            self.problem = pending.result()

    def end(self, step: int, skipped: int) -> str:
        """Make sure the last state is saved, with a second try if the first failed; return why it could not be saved, empty on success."""
        self.wait()
        if step not in self._from_rank_0(complete_steps(self.folder)):
            self.ending = True
            self.save(step, skipped)
            self.wait()
        if not self.problem:
            return ""
        kept = "earlier checkpoints in {} are kept" if self._from_rank_0(complete_steps(self.folder)) else "{} has no checkpoint"
        return f"the state after step {step} could not be saved ({self.problem}); {kept.format(self.folder)}"

    def _finish(self, written: "Future[Any]", target: Path, step: int, skipped: int) -> str:
        """Checksum the written files, write the marker and drop old checkpoints; return the first problem, the same on all ranks."""
        problem, files = "", dict[str, tuple[int, int]]()
        try:
            written.result()
            reach("checkpoint files written")
            own = [target / METADATA, target / DESCRIPTION] if self.rank == 0 else []
            names = [*target.glob(f"__{self.rank}_*"), *own]
            files = {path.name: checksum(path) for path in names}
        except BaseException as error:
            if kind_of(error) == "lost":
                raise
            # a writer that ran out of space reports where it stopped, not why
            full = shutil.disk_usage(self.folder).free < MIN_FREE_BYTES
            problem = f"{os.strerror(errno.ENOSPC)}, rank {self.rank}" if full else _reason(error, self.rank)
        results: list[Any] = [None] * self.world
        dist.all_gather_object(results, (problem, files), group=self.group)
        problem = next((reason for reason, _ in results if reason), "")
        if self.rank == 0:
            reach("checkpoint unmarked")
            if not problem:
                trained = Trained.of(self.settings, step * self.settings.batch + self.resumed.ahead)
                listed = {name: file for _, rank_files in results for name, file in rank_files.items()}
                problem = self._mark(target, Marker(step=step, skipped=skipped, trained=trained, files=listed))
            if problem:
                shutil.rmtree(target, ignore_errors=True)
            self._say_outcome(target, step, problem)
        box = [problem]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def _mark(self, target: Path, marker: Marker) -> str:
        """Write the marker atomically, synced to the disk, then drop the oldest checkpoints."""
        try:
            partial = target / f"{MARKER}.part"
            with partial.open("w", encoding="utf-8") as file:
                file.write(marker.text())
                file.flush()
                os.fsync(file.fileno())
            reach("checkpoint marker partial")
            partial.replace(target / MARKER)
            for folder in (target, target.parent):
                _sync_folder(folder)
        except OSError as error:
            return _reason(error, self.rank)
        reach("checkpoint marked")
        for step in complete_steps(self.folder)[self.settings.keep :]:
            old = self.folder / f"step-{step}"
            with suppress(OSError):
                (old / MARKER).unlink()  # first: half a checkpoint must not look complete
            reach("checkpoint unmarking")
            shutil.rmtree(old, ignore_errors=True)
        return ""

    def _say_outcome(self, target: Path, step: int, problem: str) -> None:
        if not problem:
            self._say(f"saved after step {step}: {target}")
            return
        if self.ending:
            return
        last = next(iter(complete_steps(self.folder)), 0)
        kept = f"the one after step {last} is kept" if last else "there is no earlier one"
        then = "training continues" if step < self.settings.steps else "trying once more"
        self._say(f"the checkpoint after step {step} could not be written ({problem}) and was removed; {kept}; {then}")

    def _load(self, target: Path, marker: Marker) -> None:
        state = _state(self.parameters, self.optimizer, self.tied, self.buffers)
        try:
            read_state(state, storage_reader=CheckedReader(target, marker.files), process_group=self.group)
        except CheckpointException as error:
            why = f"{target} belongs to another model: {_reason(error, self.rank)}; choose another --out"
            raise TrainingError("error", why) from None
        done = marker.step - marker.skipped
        for name, parameter in self.parameters:
            key = _key(name, self.tied)
            self.optimizer.restore(parameter, {kind: state[f"{kind}.{key}"] for kind in ("weight", *MOMENTS)}, done)

    def _remove_unfinished(self) -> None:
        """Remove unfinished checkpoints before any rank writes again."""
        for step in unfinished_steps(self.folder) if self.rank == 0 else ():
            self._say(f"the checkpoint after step {step} is incomplete and was removed")
            shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)
        dist.barrier(group=self.group)

    def _check_shared(self) -> None:
        """Refuse a folder that not all hosts share: no checkpoint there would be complete."""
        probe = self.folder / f".seen-by-{self.rank}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            unwritable = ""
        except OSError as error:
            unwritable = f"{self.folder} cannot be written: {_reason(error, self.rank)}"
        unwritable = self._first_problem(unwritable)
        if unwritable:
            raise TrainingError("disk", unwritable)
        missing = [rank for rank in range(self.world) if not (self.folder / f".seen-by-{rank}").exists()]
        unseen = f"rank {self.rank} does not see rank {missing[0]}'s files in {self.folder}" if missing else ""
        unseen = self._first_problem(unseen)
        probe.unlink(missing_ok=True)
        if unseen:
            raise TrainingError("error", f"checkpoints need an --out on a file system that all hosts share: {unseen}")

    def _from_rank_0(self, steps: list[int]) -> list[int]:
        """Return rank 0's list on all ranks."""
        box = [steps]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def _first_problem(self, problem: str) -> str:
        """Return the first problem of any rank; empty if there is none."""
        problems: list[Any] = [None] * self.world
        dist.all_gather_object(problems, problem, group=self.group)
        return next((reason for reason in problems if reason), "")

    def _say(self, text: str) -> None:
        if self.rank == 0:
            say(text)


def _reason(error: BaseException, rank: int) -> str:
    """Return the message of the first failure of any rank."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = next(iter(error.failures.items()))
        return _reason(inner, rank)
    told = error.strerror if isinstance(error, OSError) else ""
    return f"{told or next(iter(str(error).splitlines()), type(error).__name__)}, rank {rank}"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
