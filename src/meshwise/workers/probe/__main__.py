"""`python -m meshwise.workers.probe rows.jsonl 60 [cuda|cpu]`, alone or under torchrun: measure this machine in about 60 seconds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import os
import platform
import resource
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from meshwise.workers.probe import kernels, links
from meshwise.workers.probe.clock import Clock
from meshwise.workers.probe.rows import Results, Row

SINGLE_DEVICE = {"matrix products": (0.30, kernels.products), "memory": (0.10, kernels.copies), "launches": (0.05, kernels.launches),
    "attention": (0.12, kernels.attention), "blocks of a model": (0.15, kernels.blocks), "optimizer": (0.04, kernels.update),
    "sustained rate": (0.10, kernels.sustained)}  # fmt: skip
"""The measurements on one device, and their shares of the time."""
WAIT_TIME_SHARE = 0.03
"""Share of the time in which nothing is launched: who started this program may read the power of a device that waits."""


def machine(device: torch.device, ranks: int) -> Row:
    """Return a row that describes this machine, from its drivers and system files."""
    facts_row: Row = {"kind": "machine", "device": device.type, "ranks": ranks,
        "nodes": ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(), "torch": torch.__version__, "system": platform.platform(),
        "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        facts_row |= {"name": facts.name, "memory": total, "sms": facts.multi_processor_count, "context": total - free - held}
        facts_row |= {"cuda": torch.version.cuda or torch.version.hip or "", "devices": torch.cuda.device_count()}
        return facts_row
    return facts_row | {"name": _processor(), "memory": _host_memory(), "sms": torch.get_num_threads(), "context": _resident()}


def _resident() -> float:
    """Return the resident bytes of this process before it does any work."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 2**33


def warm_up(clock: Clock) -> None:
    """Load the libraries of the first product, start the threads, and let the clock rate settle."""
    x = kernels.random(clock.device, 512, 512)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        clock.once(partial(torch.mm, x, x))


def probe(path: Path, seconds: float, device: torch.device, ranks: int) -> None:
    """Measure this machine in about `seconds`, and have rank 0 write the rows."""
    lead = ranks == 1 or dist.get_rank() == 0
    results = Results(seconds, partial(print, flush=True) if lead else lambda _: None)
    clock = Clock(device)
    warm_up(clock)
    results.rows.append(machine(device, ranks))
    results.say("  0%  waiting")
    time.sleep(WAIT_TIME_SHARE * seconds)
    together = 0.3 if ranks > 1 else 0.0
    for what, (share, work) in SINGLE_DEVICE.items():
        results.measure(what, share * (1 - together), partial(work, clock), together)
    if device.type == "cuda":
        results.measure("grouped products", 0.04 * (1 - together), partial(kernels.grouped, clock), together)
        results.measure("link to the host", 0.06 * (1 - together), partial(kernels.host_link, clock), together)
    else:
        results.missing("link to the host", "a CPU has none: its memory is the host's")
    if ranks > 1:
        dist.barrier()
        results.measure("links between devices", together, partial(links.collectives, clock), whole=True)
    else:
        results.missing("links between devices", "only one process was started, and one device has no link to measure")
    if lead:
        results.write(path)
        results.say("100%  done")


def main(arguments: list[str]) -> None:
    path, seconds = Path(arguments[0]), float(arguments[1])
    kind = arguments[2] if len(arguments) > 2 else "cuda" if torch.cuda.is_available() else "cpu"
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    if ranks == 1:
        probe(path, seconds, device, 1)
        return
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", device_id=device if kind == "cuda" else None)
    try:
        probe(path, seconds, device, ranks)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
