"""The machine that runs this process: its GPUs, its memory, and its name as a cluster."""

import os
import shutil
import subprocess
from pathlib import Path

from meshwise.catalogue import chips
from meshwise.errors import one_of

NETWORK = "10Gbps"
"""Between nodes of which nothing is known."""


LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux tells a container its bytes, in the second and the first version of control groups."""


DEVICES = ("cpu", "cuda")


def device(given: str = "") -> str:
    """The device to run on: the one that `--device` names, else a GPU if this machine has one."""
    return one_of("--device", given, DEVICES) if given else "cuda" if gpus() else "cpu"


def gpus() -> list[str]:
    """The names of this machine's NVIDIA GPUs, as many as CUDA_VISIBLE_DEVICES leaves."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([one for one in visible.split(",") if one.strip()])]


def host_memory() -> float:
    """Bytes that processes of this machine may hold: what it has, or what a container was given."""
    found = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for limit in LIMITS:
        try:
            found.append(float(Path(limit).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such group, or the word max
            continue
    return min(found)


def cluster_text(device: str, devices: int, nodes: int) -> str:
    """As many machines as this one in the words of a cluster: as `meshwise probe` measured it, or as the catalogue knows its chip."""
    own = chips.known_chip(chips.part_of_here(devices if device == "cpu" else 1))
    if device == "cpu":
        chip = own if own and own.kind == "cpu" else chips.find_chip("cpu")
    else:
        name = next(iter(gpus()), "")
        chip = chips.known_chip(name.removeprefix("NVIDIA ")) if name else None
        if own and name and own.name == f"{own.key}: {chip.name if chip else name}":
            chip = own
    if chip is None:
        return ""
    # cards that come with a network of their vendor's have that
    return f"{nodes}x{devices}x{chip.key}" + (f"@{NETWORK}" if nodes > 1 and chip.network is None else "")
