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
CLOSE = MIB
"""Bytes: llama.cpp prints MiB, its dry run whole ones."""

Row = dict[str, Any]


def rpc_addresses(command: Sequence[str]) -> list[str]:
    """Return the addresses of --rpc."""
    return command[command.index("--rpc") + 1].split(",") if "--rpc" in command else []


def planned_memory(one: Deployment) -> list[Allocation]:
    """Return the planned bytes, the host first and then devices in llama.cpp's order. A CPU that serves is the host: it holds the embedding
    and its layers."""
    found = with_memory(one.question, one.layout)
    host, *devices = (
        Allocation(device=HOST, weights=need.weights, cache=need.cache, compute=need.compute) for need in found.footprints
    )
    if all(one.question.cards[i].chip.kind == "cpu" for i in one.layout.cards):
        own, *devices = devices
        # a tied head is the embedding, which the host holds already
        twice = sum(weight.bytes for weight in one.question.weights.tensors if not weight.slot.stored)
        held = host.weights + own.weights - (twice if found.placement.devices[0].head else 0)
        host = Allocation(device=HOST, weights=held, cache=own.cache, compute=max(host.compute, own.compute))
    return [host, *devices]


def compare(one: Deployment, reported: Sequence[Allocation]) -> list[Row]:
    """Return a row per device, in bytes: reported and planned. Empty where llama.cpp has other devices than the plan."""
    planned = planned_memory(one)
    if len(planned) != len(reported):
        return []
    return [
        asdict(seen) | {f"planned_{kind}": getattr(plan, kind) for kind in KINDS}
        for plan, seen in zip(planned, reported, strict=True)
    ]


def other_devices(one: Deployment, reported: Sequence[Allocation]) -> str:
    """Return what is wrong where llama.cpp has other devices than the plan: another machine, or a build for CPUs only. '' otherwise."""
    planned, found = len(planned_memory(one)) - 1, [taken.device for taken in reported if taken.device != HOST]
    if len(found) == planned:
        return ""
    return (
        f"the plan has {planned} device{'' if planned == 1 else 's'} besides the host, but llama.cpp finds "
        f"{', '.join(found) or 'only the CPU'}"
    )


def differences(rows: Sequence[Row]) -> list[str]:
    """Return a line per device where llama.cpp needs more than planned, or puts weights or KV cache elsewhere."""
    found: list[str] = []
    for row in rows:
        moved = any(abs(row[kind] - row[f"planned_{kind}"]) > CLOSE for kind in ("weights", "cache"))
        if moved or row["compute"] > row["planned_compute"] + CLOSE:
            parts = ", ".join(f"{kind} {_mib(row[kind])} (planned {_mib(row[f'planned_{kind}'])})" for kind in KINDS)
            found.append(f"differs from the plan on {row['device']}: {parts}")
    return found


@contextmanager
def started_and_checked(
    one: Deployment, run: ServeRun, programs: Sequence[Program], say: Say, warn: Say
) -> Generator[list[Running]]:
    """Start all programs of a plan. Before its server starts, llama.cpp's dry run checks whether it will take what was planned; `warn`
    gets each difference."""
    with started(programs[:-1], say, run.start_within) as helpers:
        for line in _expected_differences(one, run):
            warn(line)
        with started(programs[-1:], say, run.start_within) as server:
            yield [*helpers, *server]


def _expected_differences(one: Deployment, run: ServeRun) -> list[str]:
    command = dry_run_command(one, run)
    if not command:
        return []
    try:
        reported = dry_run(command, run.start_within)
        return differences(compare(one, reported)) or list(filter(None, [other_devices(one, reported)]))
    except DoesNotFit:
        return []  # the server will report the same fault of the file, with more details


def _mib(size: float) -> str:
    return units.show(size, "bytes", binary=True, digits=4)
