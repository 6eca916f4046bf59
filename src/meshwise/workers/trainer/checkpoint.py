"""Checkpoints that any layout can read: torch's distributed checkpoint (DCP), weights and optimizer by HF's names, no rank in them.

They are written beside the steps that follow, one at a time. One counts when its marker is there, which names every file with its size and
checksum and is written last, after all ranks have written and synced theirs.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from meshwise.workers.trainer.gradients import Named
from meshwise.workers.trainer.hf.marker import (
    ASIDE,
    DONE,
    Trained,
    changes,
    cut_off,
    marker,
    none_left,
    put_aside,
    refusal,
    whole,
)
from meshwise.workers.trainer.optimizer import MOMENTS, Updates
from meshwise.workers.trainer.ranks.faults import Trouble, kind_of
from meshwise.workers.trainer.ranks.speech import say
from meshwise.workers.trainer.settings import Settings

CHUNK = 1 << 22
SMALLEST = 1 << 20
"""Bytes: a disk with fewer left is full."""


def _state(parameters: Named, updates: Updates, tied: str) -> dict[str, Tensor]:
    """Everything a run needs to go on, by name. A tied head of another stage is the embedding, and not stored twice."""
    return {
        f"{kind}.{_key(name, tied)}": part for name, parameter in parameters for kind, part in updates.state(parameter).items()
    }


def _key(name: str, tied: str) -> str:
    return tied if tied and name == "lm_head.weight" else name


def checksum(path: Path) -> list[int]:
    """Bytes of a file, and their CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]


def flaw(target: Path, part: int = 0, parts: int = 1) -> str:
    """What is wrong with every `parts`-th file of a checkpoint; nothing where all is as it was written."""
    files: Mapping[str, list[int]] = marker(target).get("files", {})
    if not files:
        return "its marker cannot be read"
    for name in sorted(files)[part::parts]:
        path = target / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != files[name][0]:
            return f"{name} has {path.stat().st_size:,} of {files[name][0]:,} bytes"
        if checksum(path) != files[name]:
            return f"{name} is not what was written"
    return ""


class Place(NamedTuple):
    """Where a run goes on."""

    step: int = 0
    """Steps behind it."""
    skipped: int = 0
    """How many of these were left out."""
    ahead: int = 0
    """Samples that were read beyond step x batch; below 0 where the batch was smaller before."""


class Checkpoints:
    """Those of a run: gone on from, written beside the training, the last few kept. Every rank calls the same at the same step."""

    def __init__(self, settings: Settings, parameters: Named, updates: Updates, tied: str, waiting: Callable[[], None]) -> None:
        self.waiting = waiting
        """Called now and then while the disk is slow."""
        self.settings, self.parameters, self.updates, self.tied = settings, parameters, updates, tied
        self.folder = Path(settings.out, "checkpoints")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        # of its own, on the CPU: what the writing thread sends must not mix with the steps that go on
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=2 * settings.timeout + 60))
        self.group = cast(dist.ProcessGroup, group)
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.writer: FileSystemWriter | None = None
        self.pending: Future[str] | None = None
        self.problem = ""
        """Why the last one could not be written."""
        self.place = Place()
        self.ending = False
        """Nothing follows the one in flight: whoever ends the run says why it could not be written."""

    def resume(self) -> Place:
        """Load the newest good checkpoint, whatever layout wrote it."""
        self._check_shared()
        for step in self._same(whole(self.folder)):
            target = self.folder / f"step-{step}"
            found = self._first(flaw(target, self.rank, self.world))
            self.waiting()
            if not found:
                return self._go_on(target, step)
            self._put_aside(target, step, found)
        damaged = self._same(put_aside(self.folder))
        if damaged:
            raise Trouble("error", none_left(self.folder, damaged))
        self._clear()
        return self.place

    def _go_on(self, target: Path, step: int) -> Place:
        words = marker(target)
        before = Trained.read(words)
        if refused := refusal(self.folder, before, self.settings):
            raise Trouble("error", refused)
        self._load(target, step)
        self._clear()
        self._say(f"going on after step {step} from {self.folder}")
        for line in changes(before, self.settings, step):
            self._say(line)
        self.place = Place(step, int(words["skipped"]), before.samples - step * self.settings.batch if before else 0)
        return self.place

    def _put_aside(self, target: Path, step: int, flaw: str) -> None:
        aside = target.with_name(f"{ASIDE}{target.name}")
        self._say(f"the checkpoint after step {step} is damaged ({flaw}): put aside as {aside.name}")
        if self.rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)

    def save(self, step: int, skipped: int) -> None:
        """Copy the state to the CPU and write it to `step-N` beside what follows; the one before must be done."""
        self.wait()
        target = self.folder / f"step-{step}"
        if self.writer is None:
            # pinned memory, kept: copies from a GPU are fast, and take no memory twice
            self.writer = FileSystemWriter(target, cache_staged_state_dict=self.settings.device == "cuda")
        state = _state(self.parameters, self.updates, self.tied)
        written = async_save(state, checkpoint_id=target, storage_writer=self.writer, process_group=self.group)
        self.pending = self.thread.submit(self._finish, cast("Future[Any]", written), target, step, skipped)

    def wait(self) -> None:
        """Until the one in flight is done; a disk that is full is no reason to stop training."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            while not wait([pending], timeout=1.0).done:
                self.waiting()
            self.problem = pending.result()

    def end(self, step: int, skipped: int) -> str:
        """See the last state saved, with a second try where the first failed; why it could not be."""
        self.wait()
        if step not in self._same(whole(self.folder)):
            self.ending = True
            self.save(step, skipped)
            self.wait()
        if not self.problem:
            return ""
        kept = "earlier checkpoints in {} stay" if self._same(whole(self.folder)) else "{} has no checkpoint"
        return f"the state after step {step} could not be saved ({self.problem}); {kept.format(self.folder)}"

    def _finish(self, written: "Future[Any]", target: Path, step: int, skipped: int) -> str:
        """After the writing: check, mark, and drop what is too old. The same answer on all ranks."""
        problem, files = "", dict[str, list[int]]()
        try:
            written.result()
            names = [*target.glob(f"__{self.rank}_*"), *([target / ".metadata"] if self.rank == 0 else [])]
            files = {path.name: checksum(path) for path in names}
        except BaseException as error:
            if kind_of(error) == "lost":
                raise
            # a writer that was cut short says where, and not why
            full = shutil.disk_usage(self.folder).free < SMALLEST
            problem = f"{os.strerror(errno.ENOSPC)}, rank {self.rank}" if full else _reason(error, self.rank)
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, (problem, files), group=self.group)
        problem = next((one for one, _ in every if one), "")
        if self.rank == 0:
            if not problem:
                trained = Trained.of(self.settings, step * self.settings.batch + self.place.ahead)
                listed = {k: v for _, some in every for k, v in some.items()}
                problem = self._mark(target, {"step": step, "skipped": skipped, "trained": trained.words(), "files": listed})
            if problem:
                shutil.rmtree(target, ignore_errors=True)
            self._say_outcome(target, step, problem)
        told = [problem]
        dist.broadcast_object_list(told, src=0, group=self.group)
        return told[0]

    def _mark(self, target: Path, words: dict[str, Any]) -> str:
        """Write the marker, certain to be on the disk and whole, then drop the oldest."""
        try:
            begun = target / f"{DONE}.part"
            with begun.open("w", encoding="utf-8") as file:
                json.dump(words, file)
                file.flush()
                os.fsync(file.fileno())
            begun.replace(target / DONE)
            for folder in (target, target.parent):
                _sync_folder(folder)
        except OSError as error:
            return _reason(error, self.rank)
        for step in whole(self.folder)[self.settings.keep :]:
            old = self.folder / f"step-{step}"
            (old / DONE).unlink()  # first: half a checkpoint must not look like one
            shutil.rmtree(old, ignore_errors=True)
        return ""

    def _say_outcome(self, target: Path, step: int, problem: str) -> None:
        if not problem:
            self._say(f"saved after step {step}: {target}")
            return
        if self.ending:
            return
        last = next(iter(whole(self.folder)), 0)
        kept = f"the one after step {last} stays" if last else "there is none before it"
        then = "training goes on" if step < self.settings.steps else "it is tried once more"
        self._say(f"the checkpoint after step {step} could not be written ({problem}) and was removed; {kept}; {then}")

    def _load(self, target: Path, step: int) -> None:
        state = _state(self.parameters, self.updates, self.tied)
        try:
            read_state(state, checkpoint_id=target, process_group=self.group)
        except CheckpointException as error:
            raise Trouble("error", f"{target} is of another model: {_reason(error, self.rank)}; choose another --out") from None
        done = step - int(marker(target)["skipped"])
        for name, parameter in self.parameters:
            key = _key(name, self.tied)
            self.updates.restore(parameter, {kind: state[f"{kind}.{key}"] for kind in ("weight", *MOMENTS)}, done)

    def _clear(self) -> None:
        """Remove what was cut off, before anyone writes again."""
        for step in cut_off(self.folder) if self.rank == 0 else ():
            self._say(f"the checkpoint after step {step} was cut off while it was written, and is removed")
            shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)
        dist.barrier(group=self.group)

    def _check_shared(self) -> None:
        """Every host must see the same folder, or no checkpoint would be whole."""
        probe = self.folder / f".seen-by-{self.rank}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            unwritable = ""
        except OSError as error:
            unwritable = f"{self.folder} cannot be written: {_reason(error, self.rank)}"
        unwritable = self._first(unwritable)
        if unwritable:
            raise Trouble("disk", unwritable)
        missing = [rank for rank in range(self.world) if not (self.folder / f".seen-by-{rank}").exists()]
        unseen = self._first(f"rank {self.rank} does not see the files of rank {missing[0]} in {self.folder}" if missing else "")
        probe.unlink(missing_ok=True)
        if unseen:
            raise Trouble("error", f"checkpoints need a folder that all hosts share: {unseen}; choose such an --out")

    def _same(self, steps: list[int]) -> list[int]:
        """What rank 0 sees."""
        box = [steps]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def _first(self, words: str) -> str:
        """The first rank's words that are any."""
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, words, group=self.group)
        return next((one for one in every if one), "")

    def _say(self, text: str) -> None:
        if self.rank == 0:
            say(text)


def _reason(error: BaseException, rank: int) -> str:
    """The first failure of any rank, in its own words."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = next(iter(error.failures.items()))
        return _reason(inner, rank)
    words = (
        error.strerror
        if isinstance(error, OSError) and error.strerror
        else next(iter(str(error).splitlines()), type(error).__name__)
    )
    return f"{words}, rank {rank}"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
