"""What a run prints and keeps: a line per step, and a row in the columns of meshwise's tables of measurements."""

# pyright: reportUnknownMemberType=false
import json
import math
import os
import platform
import resource
import socket
import statistics
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from meshwise.trainer.settings import Settings, Sizes

WARM_UP = 2
"""Steps left out of the measurement: the first ones allocate, compile and connect."""


@dataclass(frozen=True)
class Step:
    """One step as all ranks saw it, with the memory of the first. Seconds and bytes."""

    step: int
    loss: float
    grad_norm: float
    seconds: float
    memory: float


def memory_peak(device: torch.device) -> float:
    """The most bytes that this rank held at once."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def rates(settings: Settings, seconds: float) -> tuple[float, float, float]:
    """Tokens a second in all, FLOP/s of one device, and its share of the peak (NaN where no peak is known)."""
    tokens, devices = settings.batch * settings.seq / seconds, settings.layout.devices
    flops = tokens * float(settings.facts.get("flops_per_token", math.nan)) / devices
    return tokens, flops, flops / float(settings.facts.get("peak", math.nan))


def line(settings: Settings, one: Step) -> str:
    """A step for people."""
    tokens, flops, mfu = rates(settings, one.seconds)
    capacity = float(settings.facts.get("capacity", math.nan))
    share = f" ({one.memory / capacity:.0%})" if math.isfinite(capacity) else ""
    words = [
        f"step {one.step + 1:>{len(str(settings.steps))}}/{settings.steps}",
        f"loss {one.loss:.4f}",
        f"grad norm {one.grad_norm:.3f}",
        f"{tokens:,.0f} tok/s",
        f"{tokens / settings.layout.devices:,.0f} tok/s/device",
        *([f"{flops / 1e12:.3g} TFLOP/s/device"] if math.isfinite(flops) else []),
        *([f"MFU {mfu:.1%}"] if math.isfinite(mfu) else []),
        f"{one.memory / 2**30:.2f} GiB{share}",
        f"{one.seconds:.3f} s",
    ]
    return "  ".join(words)


def measurement(settings: Settings, steps: list[Step], memory: float) -> dict[str, object]:
    """The row of a run: medians over what comes after the warm-up. Blank where nothing was measured."""
    counted = steps[WARM_UP:] if len(steps) > WARM_UP else steps
    seconds = statistics.median(one.seconds for one in counted)
    tokens, flops, mfu = rates(settings, seconds)
    a, m = settings.layout, Sizes.of(settings.model)
    return {
        "source": "meshwise run",
        "row_id": datetime.now(UTC).strftime("run-%Y%m%dT%H%M%S"),
        "model": settings.name,
        "params_b": float(settings.facts.get("params", math.nan)) / 1e9 if "params" in settings.facts else "",
        "n_layers": m.layers,
        "d_model": m.hidden,
        "d_ff": m.ffn,
        "n_heads": m.heads,
        "n_kv_heads": m.kv_heads,
        "vocab": m.vocab,
        "seq_len": settings.seq,
        "gpu": settings.facts.get("gpu", settings.device),
        "n_gpus": a.devices,
        "gpus_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", a.devices)),
        "framework": "meshwise",
        "precision": settings.precision,
        "dp": a.dp,
        "tp": a.tp,
        "pp": a.pp,
        "cp": a.cp,
        "zero_stage": a.zero if a.dp_shard > 1 else 0,
        "sharding": "hsdp" if a.dp_replicate > 1 and a.dp_shard > 1 else "fsdp" if a.dp_shard > 1 else "ddp",
        "micro_batch": a.mbs,
        "global_batch_seqs": settings.batch,
        "recompute": a.recompute,
        "seq_parallel": "yes" if a.tp > 1 else "no",
        "interleave": a.chunks,
        "sec_per_iter": seconds,
        "tokens_per_sec_per_gpu": tokens / a.devices,
        "mfu": 100 * mfu if math.isfinite(mfu) else "",
        "mem_gb": memory / 2**30,
        "mem_unit": "GiB",
        "outcome": "ok",
        "date": datetime.now(UTC).date().isoformat(),
        "note": f"{len(counted)} steps after {len(steps) - len(counted)}, schedule {a.schedule}, "
        f"loss {steps[0].loss:.4f} to {steps[-1].loss:.4f}, {flops / 1e12:.4g} TFLOP/s a device",
    }


def environment(settings: Settings) -> dict[str, object]:
    """What the numbers were measured with."""
    cuda = settings.device == "cuda"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "devices": settings.layout.devices,
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def keep(settings: Settings, steps: list[Step], memory: float) -> None:
    """Write the run's folder: steps.jsonl of this run, environment.json, and one more row of measurement.jsonl."""
    folder = Path(settings.out)
    (folder / "steps.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in steps), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(environment(settings), indent=2) + "\n", encoding="utf-8")
    with (folder / "measurement.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(measurement(settings, steps, memory)) + "\n")
