"""Failures of a worker: reported in one line, kept in `failure.json` of the run's folder, with a traceback only where it helps."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import errno
import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from meshwise.output import flush, say
from meshwise.workers.trainer.contract.process.stop import STOP_FILE
from meshwise.workers.trainer.contract.settings import Settings

FAILURE = "failure.json"
MAX_SKIPPED_IN_A_ROW = 10
"""Steps that may be skipped one after another: a model whose loss is not finite ten times in a row will not recover."""
NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of torch's CPU allocator, of CUDA's, of the system, and of cuBLAS."""
LOST = (
    "gloo/transport", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL error",
    "remote process exited", "wait timeout after", "failed to recv", "failed to connect to any network address",
)  # fmt: skip
"""Messages of a collective whose peer is gone."""


@dataclass(frozen=True)
class Failure:
    """Why a run ended or restarted."""

    kind: str  # oom, nan, disk, hang, gone (a rank died without a message), killed, lost (another rank died), stopped or error
    rank: int
    host: str
    step: int
    """The step it happened in, counted from 1 as printed; for a stopped run the last one done. 0 before there were workers."""
    message: str
    final: bool = False  # whether it would happen again, so that a restart is useless

    def write(self, folder: Path) -> bool:
        """Write failure.json atomically; return False if the disk is full, and leaves no file then."""
        path = folder / f"{FAILURE}.{os.getpid()}"
        try:
            path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
            path.replace(folder / FAILURE)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        return True

    def exit(self, folder: Path, *, first: bool = True, code: int = 1) -> NoReturn:
        """Write the failure and end at once: other threads may wait for ranks that are gone. A launcher that reads the file prints it."""
        kept = self.write(folder)
        if first and not (kept and STOP_FILE in os.environ):
            say_error(self.message)
        exit_now(code)


class TrainingError(Exception):
    """A reason to end a run, the same on all ranks."""

    def __init__(self, kind: str, message: str, *, final: bool = True, step: int | None = None) -> None:
        """`step` counts from 1; None means the current step."""
        super().__init__(message)
        self.kind, self.final, self.step = kind, final, step


def kind_of(error: BaseException) -> str:
    """Classify an exception as one of Failure's kinds."""
    words = str(error)
    if isinstance(error, TrainingError):
        return error.kind
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(phrase in words for phrase in NO_MEMORY):
        return "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk"
    lost = isinstance(error, dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError)
    if lost or any(phrase in words for phrase in LOST):
        return "lost"
    return "error"


def failure_of(error: BaseException, rank: int, host: str, done: int, first: int) -> Failure:
    """Turn an exception into a failure. Running out of memory in the first step after a start is final: it would happen again."""
    kind = kind_of(error)
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, TrainingError | SystemExit):
        step: int | None = getattr(error, "step", None)
        return Failure(kind, rank, host, done + 1 if step is None else step, line, getattr(error, "final", True))
    words = {"oom": "ran out of memory", "disk": "could not write"}.get(kind, "failed")
    final = kind == "disk" or (kind == "oom" and done <= first)
    return Failure(kind, rank, host, done + 1, f"rank {rank} on {host} {words} in step {done + 1}: {line}", final)


def is_finite(loss: Tensor, norm: Tensor) -> Tensor:
    """Return whether a step may be applied. Loss and norm are over all ranks, so all ranks decide alike."""
    return torch.isfinite(loss) & torch.isfinite(norm)


class SkippedSteps:
    """Counts steps that were skipped because their loss or gradient was not finite."""

    def __init__(self, settings: Settings, before: int = 0) -> None:
        self.settings, self.total, self.row = settings, before, 0

    def check(self, step: int, loss: float, norm: float) -> str:
        """Return a message for a skipped step; raise if the run must stop. `step` counts from 0."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.row = 0
            return ""
        facts = f"step {step + 1}: loss {loss:g}, gradient norm {norm:g}"
        if self.settings.on_nan == "stop":
            advice = "stopped without applying the step; try a lower --lr or --on-nan skip"
            raise TrainingError("nan", f"{facts}: {advice}", step=step + 1)
        self.total, self.row = self.total + 1, self.row + 1
        if self.row == MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                "nan", f"{facts}: stopped after {MAX_SKIPPED_IN_A_ROW} such steps in a row; try a lower --lr", step=step + 1
            )
        return f"{facts}: skipped ({self.total} so far)"


def say_error(text: str) -> None:
    say(f"meshwise: {text}", sys.stderr)


def exit_now(code: int = 1) -> NoReturn:
    flush()
    os._exit(code)
