"""What llama.cpp takes on each device, in its own words: the log of its server, and its dry run, llama-fit-params."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwise.errors import DoesNotFit, quoted
from meshwise.units import MIB

HOST = "host"
DRY_RUN = "llama-fit-params"
_NEED = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_REMOTE = re.compile(r"RPC\d*\[(.+)\]")
_SAID = re.compile(r"\bE \S+: (.+)|(error.*)", re.IGNORECASE)
REPACKED = ("AMX", "CPU_REPACK", "CPU_KLEIDIAI")
"""Weights in an order that suits the processor. They are in the file too, but the part of it that llama.cpp maps and prints begins and ends
with a tensor that is used from there."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Bytes on one device; the host first in every list, then devices in llama.cpp's order."""

    device: str
    weights: float = 0.0
    cache: float = 0.0
    compute: float = 0.0
    repacked: float = 0.0
    """Weights that a processor holds beside the mapped file."""


def logged(lines: Iterable[str], remote: Sequence[str] = ()) -> list[Taken]:
    """From the log of llama-server (-lv 4). `remote` are the addresses of --rpc, in their order. Nothing where it says nothing, or where a
    buffer lies over several devices (-sm row)."""
    found = {HOST: Taken(device=HOST)}
    for line in lines:
        seen = _BUFFER.search(line)
        if seen is None:
            continue
        if seen[1] in REPACKED:
            found[HOST] = replace(found[HOST], repacked=found[HOST].repacked + float(seen[3]) * MIB)
            continue
        if seen[1].endswith("_Split"):
            return []
        name, size = _device(seen[1], remote), float(seen[3]) * MIB
        one = found.setdefault(name, Taken(device=name))
        if seen[2] == "model":
            found[name] = replace(one, weights=one.weights + size)
        elif seen[2] == "compute":
            found[name] = replace(one, compute=size)  # said again where it is reserved anew
        else:
            found[name] = replace(one, cache=one.cache + size)
    host, *devices = found.values()
    return [host, *sorted(devices, key=lambda one: _order(one.device))] if devices or host.weights else []


def _device(name: str, remote: Sequence[str]) -> str:
    """'RPC0[10.0.0.5:50053]' by its place in --rpc; 'CUDA_Host', 'CPU_Mapped' and the like are the host; 'CUDA1' is itself."""
    far = _REMOTE.fullmatch(name)
    if far:
        return f"RPC{remote.index(far[1])}" if far[1] in remote else name
    return HOST if name.startswith(("CPU", "BLAS")) or name.endswith("_Host") else name.removesuffix("_Mapped")


def _order(device: str) -> tuple[bool, str, int]:
    """RPC devices first, then by number."""
    digits = re.search(r"\d+$", device)
    return not device.startswith("RPC"), device.rstrip("0123456789"), int(digits[0]) if digits else 0


def estimated(text: str) -> list[Taken]:
    """From what `llama-fit-params -fitp on` prints: device, weights, cache and compute in whole MiB, cut off."""
    found: list[Taken] = []
    for name, *sizes in _NEED.findall(text):
        weights, cache, compute = (int(size) * MIB for size in sizes)
        found.append(Taken(device=HOST if name == "Host" else name, weights=weights, cache=cache, compute=compute))
    return sorted(found, key=lambda one: one.device != HOST)


def dry_run(command: Sequence[str], patience: float) -> list[Taken]:
    """Runs it to its end; what it refuses is told in its words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise DoesNotFit(f"{quoted(command[0], 200)} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise DoesNotFit(f"{DRY_RUN} did not end within {patience:g} s") from None
    found = estimated(done.stdout)
    if done.returncode or not found:
        said = next((one[1] or one[2] for line in done.stderr.splitlines() if (one := _SAID.search(line))), "it said nothing")
        raise DoesNotFit(f"{DRY_RUN} ended with exit code {done.returncode}: {said[:240]}")
    return found
