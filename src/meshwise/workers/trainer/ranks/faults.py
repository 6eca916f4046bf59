"""What can go wrong in a worker: told in one line, kept in `failure.json` of the run's folder, and no traceback where none helps."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ctypes
import errno
import json
import math
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from meshwise.workers.trainer.ranks.meeting import STOP_FILE
from meshwise.workers.trainer.ranks.speech import flush, say
from meshwise.workers.trainer.settings import Settings

FAILURE = "failure.json"
IN_A_ROW = 10
"""Steps that may be left out one after another: a model that gives no number ten times will give none."""
NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Words of torch's CPU allocator, of CUDA's, of the system, and of cuBLAS."""
LOST = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "NCCL error",
    "remote process exited",
)
"""Words of a collective whose other end is gone."""


@dataclass(frozen=True)
class Failure:
    """Why a run ended, or began again."""

    kind: str
    """oom, nan, disk, hang, gone (a rank died without a word), killed, lost (another rank died), stopped or error."""
    rank: int
    host: str
    step: int
    """The one it happened in, counted from 1 as it is printed; of a run that was stopped, the last it did. 0 before there were workers."""
    message: str
    final: bool = False
    """The same would happen again: no use in a restart."""

    def write(self, folder: Path) -> bool:
        """Whole or not at all: on a full disk there is no file."""
        path = folder / f"{FAILURE}.{os.getpid()}"
        try:
            path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
            path.replace(folder / FAILURE)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        return True

    def tell(self, folder: Path, *, first: bool = True) -> NoReturn:
        """Keep why, and end, at once: other threads may wait for ranks that are no more. Where a launcher reads the file, it says so."""
        kept = self.write(folder)
        if first and not (kept and STOP_FILE in os.environ):
            say_error(self.message)
        end()


class Trouble(Exception):
    """A reason to end a run, the same on all ranks."""

    def __init__(self, kind: str, message: str, *, final: bool = True, step: int | None = None) -> None:
        """`step` counts from 1; without it, it is the one that is under way."""
        super().__init__(message)
        self.kind, self.final, self.step = kind, final, step


def kind_of(error: BaseException) -> str:
    """What an exception means for a run."""
    words = str(error)
    if isinstance(error, Trouble):
        return error.kind
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(one in words for one in NO_MEMORY):
        return "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk"
    if isinstance(error, dist.DistNetworkError | dist.DistBackendError | dist.DistStoreError) or any(
        one in words for one in LOST
    ):
        return "lost"
    return "error"


def failure_of(error: BaseException, rank: int, host: str, done: int, begun: int) -> Failure:
    """An exception as a failure. Memory that ran out in the first step of a start would run out there again."""
    kind = kind_of(error)
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, Trouble | SystemExit):
        named: int | None = getattr(error, "step", None)
        return Failure(kind, rank, host, done + 1 if named is None else named, first, getattr(error, "final", True))
    words = {"oom": "ran out of memory", "disk": "could not write"}.get(kind, "failed")
    final = kind == "disk" or (kind == "oom" and done <= begun)
    return Failure(kind, rank, host, done + 1, f"rank {rank} on {host} {words} in step {done + 1}: {first}", final)


def finite(loss: Tensor, norm: Tensor) -> Tensor:
    """Whether a step may be applied. Loss and norm are those of all ranks, so all decide alike."""
    return torch.isfinite(loss) & torch.isfinite(norm)


class Skips:
    """Steps that were left out for want of a number."""

    def __init__(self, settings: Settings, before: int = 0) -> None:
        self.settings, self.total, self.row = settings, before, 0

    def saw(self, step: int, loss: float, norm: float) -> str:
        """What to say of a step; trouble where there is no going on. `step` counts from 0."""
        if math.isfinite(loss) and math.isfinite(norm):
            self.row = 0
            return ""
        what = f"step {step + 1}: the loss is {loss:g} and the norm of the gradient {norm:g}"
        if self.settings.on_nan == "stop":
            words = "stopped, and the step was not applied; a lower --lr may do, or --on-nan skip"
            raise Trouble("nan", f"{what}: {words}", step=step + 1)
        self.total, self.row = self.total + 1, self.row + 1
        if self.row == IN_A_ROW:
            raise Trouble("nan", f"{what}: stopped after {IN_A_ROW} such steps in a row; a lower --lr may do", step=step + 1)
        return f"{what}: not applied ({self.total} left out so far)"


def die_with_parent() -> None:
    """End with torchrun, however that ends: no worker is left behind. Linux alone can do this."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def say_error(text: str) -> None:
    say(f"meshwise: {text}", sys.stderr)


def end(code: int = 1) -> NoReturn:
    flush()
    os._exit(code)
