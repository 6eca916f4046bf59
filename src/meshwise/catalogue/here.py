"""The machine that runs this process: its GPUs, its memory, and its name as a cluster."""

import os
import platform
from collections import Counter
from pathlib import Path

from meshwise.catalogue import chips
from meshwise.errors import UserError, quoted
from meshwise.units import GIB
from meshwise.workers import tool

NETWORK = "10Gbps"  # assumed between nodes whose network is unknown

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files in which Linux states a container's memory limit: control groups version 2 and version 1."""


def device() -> str:
    """Return the device to run on where none is given: a GPU if this machine has one."""
    return "cuda" if gpus() else "cpu"


def gpus() -> list[str]:
    """Return the names of this machine's NVIDIA GPUs, as many as CUDA_VISIBLE_DEVICES exposes."""
    names = _lines("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if visible is None else names[: len([number for number in visible.split(",") if number.strip()])]


def _lines(*command: str) -> list[str]:
    """Return the lines that a program prints; none where it fails or is not there."""
    try:
        return [line.strip() for line in tool.output(*command).splitlines() if line.strip()]
    except tool.ToolError:
        return []


def radeons() -> list[str]:
    """Return the names of this machine's AMD GPUs, as rocm-smi prints them."""
    head, *rows = [line.split(",") for line in _lines("rocm-smi", "--showproductname", "--csv")] or [[]]
    column = next((i for i, title in enumerate(head) if title.lower() == "card series"), None)
    return [row[column].strip() for row in rows if len(row) > column] if column is not None else []


def machine_text() -> str:
    """Return this machine as the text of devices to serve on: its GPUs and the memory of their host, its Apple chip, or its CPU.
    UserError for a GPU that the catalogue does not have."""
    memory = f":{host_memory() / GIB:.0f}GB"
    names = gpus() or radeons()
    if names:
        cards = {name: chips.known_chip(name.removeprefix("NVIDIA ")) for name in names}
        strange = next((name for name, chip in cards.items() if chip is None), None)
        if strange:
            raise UserError(f"this machine has a {quoted(strange)}, which is not in the catalogue: name the devices with --on")
        counts = Counter(chip.key for name in names if (chip := cards[name]))
        return "+".join([*(f"{number}x{key}" for key, number in counts.items()), f"cpu{memory}"])
    if platform.system() == "Darwin":
        chip = chips.known_chip(" ".join(_lines("sysctl", "-n", "machdep.cpu.brand_string")))
        if chip and chip.kind == "apple":
            return f"{chip.key}{memory}"
    return f"cpu{memory}"


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
    """Return `nodes` machines like this one as the text of a cluster, or '' if the catalogue does not have its chip."""
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
