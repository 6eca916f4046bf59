"""Figures of one rank that are compared with those of its neighbours: rates of its device, its host link, its CPU and its disk."""

# pyright: reportUnknownMemberType=false
import hashlib
import os
import tempfile
import time
from collections.abc import Callable

import torch

from meshwise.workers.probe import kernels
from meshwise.workers.probe.clock import Clock

COPY_BYTES = {"cuda": 2**28, "cpu": 2**25}
HOST_BYTES = 2**26
DISK_BYTES = 2**24
HASHED_BYTES = 2**20

Figure = Callable[[Clock, float], float]  # returns a rate, above zero, that was measured for about so many seconds


def matrix_products(clock: Clock, seconds: float) -> float:
    """Return FLOP/s of one product that is repeated until the chip is hot."""
    (row,) = kernels.sustained(clock, time.monotonic() + seconds)
    return float(row["flops"]) / float(row["seconds"])


def memory(clock: Clock, seconds: float) -> float:
    """Return bytes per second that a large copy reads and writes."""
    source = torch.empty(COPY_BYTES[clock.device.type], dtype=torch.int8, device=clock.device)
    target = torch.empty_like(source)
    return 2 * len(source) / clock.time(lambda: target.copy_(source), seconds).seconds


def host_link(clock: Clock, seconds: float) -> float:
    """Return bytes per second between pinned host memory and the device, in the slower direction."""
    host = torch.empty(HOST_BYTES, dtype=torch.int8, pin_memory=True)
    there = torch.empty(HOST_BYTES, dtype=torch.int8, device=clock.device)
    ways = (lambda: there.copy_(host, non_blocking=True), lambda: host.copy_(there, non_blocking=True))
    return HOST_BYTES / max(clock.time(way, seconds / 2).seconds for way in ways)


def cpu(_: Clock, seconds: float) -> float:
    """Return bytes per second that one core hashes."""
    data, done, began = bytes(HASHED_BYTES), 0, time.perf_counter()
    while time.perf_counter() - began < seconds or not done:
        hashlib.sha256(data)
        done += 1
    return done * HASHED_BYTES / (time.perf_counter() - began)


def disk(_: Clock, seconds: float) -> float:
    """Return bytes per second that the folder for temporary files takes, with a sync after each write; the best of a few."""
    data, best, began = os.urandom(DISK_BYTES), 0.0, time.perf_counter()
    with tempfile.TemporaryFile() as file:
        while time.perf_counter() - began < seconds or not best:
            file.seek(0)
            start = time.perf_counter()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            best = max(best, DISK_BYTES / (time.perf_counter() - start))
    return best


OF_DEVICE: dict[str, Figure] = {"matrix products": matrix_products, "memory": memory}
OF_GPU: dict[str, Figure] = {"host link": host_link}
OF_NODE: dict[str, Figure] = {"cpu": cpu, "disk": disk}


def figures(device: torch.device, *, first: bool) -> dict[str, Figure]:
    """Return the figures of a rank; `first`: it is the first of its node, and measures what its node shares."""
    return OF_DEVICE | (OF_GPU if device.type == "cuda" else {}) | (OF_NODE if first else {})
