"""Planned bytes per device against those that llama.cpp reports, in a dry run or from a running server."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from meshwise import units
from meshwise.errors import DoesNotFit
from meshwise.plan.serve.search import with_memory
from meshwise.run.callbacks import Say
from meshwise.run.serve.allocations import HOST, Allocation, dry_run
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import Deployment
from meshwise.run.serve.process import Program, Running, started
from meshwise.run.serve.programs import dry_run_command
from meshwise.units import MIB

KINDS = ("weights", "cache", "compute")
SIZE_TOLERANCE_BYTES = MIB  # bytes by which sizes may differ: llama.cpp prints MiB, its dry run whole MiB

Row = dict[str, Any]


def rpc_addresses(command: Sequence[str]) -> list[str]:
    """Return the addresses of --rpc."""
    return command[command.index("--rpc") + 1].split(",") if "--rpc" in command else []


def planned_memory(deployment: Deployment) -> list[Allocation]:
    """Return the planned bytes, the host first, then devices in llama.cpp's order. A CPU that serves is the host, with all weights."""
    option = with_memory(deployment.question, deployment.layout)
    host, *devices = (
        Allocation(device=HOST, weights=need.weights, cache=need.cache, compute=need.compute) for need in option.footprints
    )
    if all(deployment.question.cards[i].chip.kind == "cpu" for i in deployment.layout.cards):
        cpu, *devices = devices
        # a tied head is the embedding, which the host holds already
        twice = sum(weight.bytes for weight in deployment.question.weights.tensors if not weight.slot.stored)
        held = host.weights + cpu.weights - (twice if option.placement.devices[0].head else 0)
        host = Allocation(device=HOST, weights=held, cache=cpu.cache, compute=max(host.compute, cpu.compute))
    return [host, *devices]


def compare(deployment: Deployment, reported: Sequence[Allocation]) -> list[Row]:
    """Return a row per device, in bytes: reported and planned. Empty if llama.cpp has other devices than the plan."""
    planned = planned_memory(deployment)
    if len(planned) != len(reported):
        return []
    return [
        asdict(actual) | {f"planned_{kind}": getattr(plan, kind) for kind in KINDS}
        for plan, actual in zip(planned, reported, strict=True)
    ]


def other_devices(deployment: Deployment, reported: Sequence[Allocation]) -> str:
    """Return how llama.cpp's devices differ from the plan's, such as on another machine or with a CPU-only build; '' if they do not."""
    planned, devices = (
        len(planned_memory(deployment)) - 1,
        [allocation.device for allocation in reported if allocation.device != HOST],
    )
    if len(devices) == planned:
        return ""
    return (
        f"the plan has {planned} device{'' if planned == 1 else 's'} besides the host, but llama.cpp finds "
        f"{', '.join(devices) or 'only the CPU'}"
    )


def differences(rows: Sequence[Row]) -> list[str]:
    """Return a line per device where llama.cpp needs more than planned, or puts weights or KV cache elsewhere."""
    lines: list[str] = []
    for row in rows:
        moved = any(abs(row[kind] - row[f"planned_{kind}"]) > SIZE_TOLERANCE_BYTES for kind in ("weights", "cache"))
        if moved or row["compute"] > row["planned_compute"] + SIZE_TOLERANCE_BYTES:
            parts = ", ".join(f"{kind} {_mib(row[kind])} (planned {_mib(row[f'planned_{kind}'])})" for kind in KINDS)
            lines.append(f"differs from the plan on {row['device']}: {parts}")
    return lines


@contextmanager
def started_and_checked(
    deployment: Deployment, run: ServeRun, programs: Sequence[Program], say: Say, warn: Say
) -> Generator[list[Running]]:
    """Start all programs of a plan after comparing llama.cpp's dry run with the planned memory; `warn` gets each difference."""
    with started(programs[:-1], say, run.start_within) as helpers:
        for line in _expected_differences(deployment, run):
            warn(line)
        with started(programs[-1:], say, run.start_within) as server:
            yield [*helpers, *server]


def _expected_differences(deployment: Deployment, run: ServeRun) -> list[str]:
    command = dry_run_command(deployment, run)
    if not command:
        return []
    try:
        reported = dry_run(command, run.start_within)
        return differences(compare(deployment, reported)) or list(filter(None, [other_devices(deployment, reported)]))
    except DoesNotFit:
        return []  # the server will report the same fault of the file, with more details


def _mib(size: float) -> str:
    return units.show(size, "bytes", binary=True, digits=4)
