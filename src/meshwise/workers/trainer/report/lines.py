"""The printed line of a step, and the description of the machine."""

# pyright: reportUnknownMemberType=false
import math
import os
import platform
import resource
import socket
import sys

import torch

from meshwise.workers.trainer.contract.rows import Step, rates
from meshwise.workers.trainer.contract.settings import Settings


def peak_memory(device: torch.device) -> float:
    """Return the most bytes that this rank has held at once."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def step_line(settings: Settings, step: Step) -> str:
    """Format a step for the terminal."""
    tokens, flops, mfu = rates(settings, step.seconds)
    capacity = float(settings.facts.get("capacity", math.nan))
    share = f" ({step.memory / capacity:.0%})" if math.isfinite(capacity) else ""
    words = [
        f"step {step.step + 1:>{len(str(settings.steps))}}/{settings.steps}",
        f"loss {step.loss:.4f}",
        f"grad norm {step.grad_norm:.3f}",
        *([f"experts {step.imbalance:.2f}x"] if step.imbalance else []),
        f"{tokens:,.0f} tok/s",
        *([f"{tokens / settings.layout.devices:,.0f} tok/s/device"] if settings.layout.devices > 1 else []),
        *([f"{flops / 1e12:.3g} TFLOP/s/device"] if math.isfinite(flops) else []),
        *([f"MFU {mfu:.1%}"] if math.isfinite(mfu) else []),
        f"{step.memory / 2**30:.2f} GiB{share}",
        f"{step.seconds:.3f} s",
    ]
    return "  ".join(words)


def environment(settings: Settings) -> dict[str, object]:
    """Return the software and hardware that the numbers were measured with."""
    cuda = settings.device == "cuda"
    return {
        "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "devices": settings.layout.devices, "host": socket.gethostname(), "system": platform.platform(),
        "cores": os.cpu_count(), "threads": torch.get_num_threads(),
    }  # fmt: skip
