"""Bytes that llama.cpp takes on each device, read from its server's log or from its own dry run, llama-fit-params."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwise.errors import DoesNotFit, quoted
from meshwise.units import MIB

HOST = "host"
DRY_RUN_PROGRAM = "llama-fit-params"
_NEED = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_REMOTE = re.compile(r"RPC\d*\[(.+)\]")
_ERROR = re.compile(r"\bE \S+: (.+)|(error.*)", re.IGNORECASE)
REPACKED_BUFFERS = ("AMX", "CPU_REPACK", "CPU_KLEIDIAI")
"""Buffers with copies of weights in an order that suits the CPU. The range of the file that llama.cpp maps and prints may exclude the
originals: it begins and ends with a tensor that is used from the file."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Bytes on one device. In every list the host comes first, then devices in llama.cpp's order."""

    device: str
    weights: float = 0.0
    cache: float = 0.0
    compute: float = 0.0
    repacked: float = 0.0  # weights that a CPU holds in addition to the mapped file


def from_log(lines: Iterable[str], remote: Sequence[str] = ()) -> list[Allocation]:
    """Read the log of llama-server (-lv 4); `remote`: addresses of --rpc in order; empty without buffers, or if one spans devices."""
    allocations = {HOST: Allocation(device=HOST)}
    for line in lines:
        match = _BUFFER.search(line)
        if match is None:
            continue
        if match[1] in REPACKED_BUFFERS:
            allocations[HOST] = replace(allocations[HOST], repacked=allocations[HOST].repacked + float(match[3]) * MIB)
            continue
        if match[1].endswith("_Split"):
            return []
        name, size = _device(match[1], remote), float(match[3]) * MIB
        allocation = allocations.setdefault(name, Allocation(device=name))
        if match[2] == "model":
            allocations[name] = replace(allocation, weights=allocation.weights + size)
        elif match[2] == "compute":
            allocations[name] = replace(allocation, compute=size)  # printed again each time it is reserved
        else:
            allocations[name] = replace(allocation, cache=allocation.cache + size)
    host, *devices = allocations.values()
    return [host, *sorted(devices, key=lambda allocation: _order(allocation.device))] if devices or host.weights else []


def _device(name: str, remote: Sequence[str]) -> str:
    """Return the device of a buffer: 'RPC0' for 'RPC0[10.0.0.5:50053]' by its place in --rpc, 'host' for CUDA_Host and CPU_Mapped."""
    rpc = _REMOTE.fullmatch(name)
    if rpc:
        return f"RPC{remote.index(rpc[1])}" if rpc[1] in remote else name
    return HOST if name.startswith(("CPU", "BLAS")) or name.endswith("_Host") else name.removesuffix("_Mapped")


def _order(device: str) -> tuple[bool, str, int]:
    """Return a sort key: RPC devices first, then by number."""
    digits = re.search(r"\d+$", device)
    return not device.startswith("RPC"), device.rstrip("0123456789"), int(digits[0]) if digits else 0


def from_dry_run(text: str) -> list[Allocation]:
    """Read the output of `llama-fit-params -fitp on`: device, weights, cache and compute in whole MiB, rounded down."""
    allocations: list[Allocation] = []
    for name, *sizes in _NEED.findall(text):
        weights, cache, compute = (int(size) * MIB for size in sizes)
        allocations.append(Allocation(device=HOST if name == "Host" else name, weights=weights, cache=cache, compute=compute))
    return sorted(allocations, key=lambda allocation: allocation.device != HOST)


def dry_run(command: Sequence[str], patience: float) -> list[Allocation]:
    """Run llama-fit-params to its end; raise its error message if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=patience, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise DoesNotFit(f"{quoted(command[0], 200)} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise DoesNotFit(f"{DRY_RUN_PROGRAM} did not end within {patience:g} s") from None
    allocations = from_dry_run(done.stdout)
    if done.returncode or not allocations:
        errors = (match[1] or match[2] for line in done.stderr.splitlines() if (match := _ERROR.search(line)))
        raise DoesNotFit(f"{DRY_RUN_PROGRAM} ended with exit code {done.returncode}: {next(errors, 'it printed nothing')[:240]}")
    return allocations
