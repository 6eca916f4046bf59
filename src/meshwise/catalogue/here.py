"""The machine that runs this process: its GPUs, its memory, and its name as a cluster."""

import os
import shutil
import subprocess
from pathlib import Path

from meshwise.catalogue import chips

NETWORK = "10Gbps"
"""Assumed between nodes whose network is unknown."""

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which Linux states a container's memory limit: control groups version 2 and version 1."""


def device() -> str:
    """Return the device to run on where none is given: a GPU if this machine has one."""
    return "cuda" if gpus() else "cpu"


def gpus() -> list[str]:
    """Return the names of this machine's NVIDIA GPUs, as many as CUDA_VISIBLE_DEVICES exposes."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([number for number in visible.split(",") if number.strip()])]


def host_memory() -> float:
    """Return the bytes that processes on this machine may use: its memory, or its container's limit."""
    limits = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for limit in LIMITS:
        try:
            limits.append(float(Path(limit).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such control group, or the word 'max'
            continue
    return min(limits)


def cluster_text(device: str, devices: int, nodes: int) -> str:
    """Return `nodes` machines like this one as the text of a cluster, or '' if the catalogue does not have its chip.

    The chip is the one that `meshwise probe` measured, if there is one, else the catalogue's."""
    measured = chips.known_chip(chips.part_of_here(devices if device == "cpu" else 1))
    if device == "cpu":
        chip = measured if measured and measured.kind == "cpu" else chips.find_chip("cpu")
    else:
        name = next(iter(gpus()), "")
        chip = chips.known_chip(name.removeprefix("NVIDIA ")) if name else None
        if measured and name and measured.name == f"{measured.key}: {chip.name if chip else name}":
            chip = measured
    if chip is None:
        return ""
    # chips that are sold in a vendor's system have the network of that system
    return f"{nodes}x{devices}x{chip.key}" + (f"@{NETWORK}" if nodes > 1 and chip.network is None else "")
