"""What each device holds as it was planned, beside what llama.cpp says: of a dry run, or of a server that is up."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from meshwise import units
from meshwise.errors import DoesNotFit
from meshwise.plan.serve.search import weighed
from meshwise.run.serve.allocations import HOST, Taken, dry_run
from meshwise.run.serve.process import Program, Running, started
from meshwise.run.serve.start import Planned, Wish, dry_run_command

KINDS = ("weights", "cache", "compute")
CLOSE = 2.0**20
"""Bytes: llama.cpp prints MiB, its dry run whole ones."""

Row = dict[str, Any]


def remotes(command: Sequence[str]) -> list[str]:
    """The addresses of --rpc."""
    return command[command.index("--rpc") + 1].split(",") if "--rpc" in command else []


def planned_memory(one: Planned) -> list[Taken]:
    """The host first, then devices as llama.cpp orders them. A processor that serves is the host: it has the embedding and its layers."""
    found = weighed(one.question, one.layout)
    host, *devices = (
        Taken(device=HOST, weights=need.weights, cache=need.cache, compute=need.compute) for need in found.footprints
    )
    if all(one.question.cards[i].chip.kind == "cpu" for i in one.layout.cards):
        own, *devices = devices
        # A tied head is the embedding, which the host has already.
        twice = sum(weight.bytes for weight in one.question.weights.tensors if not weight.slot.stored)
        held = host.weights + own.weights - (twice if found.placement.devices[0].head else 0)
        host = Taken(device=HOST, weights=held, cache=own.cache, compute=max(host.compute, own.compute))
    return [host, *devices]


def beside(one: Planned, said: Sequence[Taken]) -> list[Row]:
    """A row per device, in bytes; none where llama.cpp names other devices than the plan has."""
    counted = planned_memory(one)
    if len(counted) != len(said):
        return []
    return [
        asdict(seen) | {f"planned_{kind}": getattr(plan, kind) for kind in KINDS}
        for plan, seen in zip(counted, said, strict=True)
    ]


def other_devices(one: Planned, said: Sequence[Taken]) -> str:
    """Where llama.cpp has not the devices of the plan: another machine, or a build for a processor alone."""
    wanted, found = len(planned_memory(one)) - 1, [taken.device for taken in said if taken.device != HOST]
    if len(found) == wanted:
        return ""
    seen = ", ".join(found) or "none but the processor"
    return f"the plan has {wanted} device{'' if wanted == 1 else 's'} beside the host, and llama.cpp finds {seen}"


def surprises(rows: Sequence[Row]) -> list[str]:
    """Where llama.cpp needs more than was planned, or puts weights and cache elsewhere: one line per device."""
    found: list[str] = []
    for row in rows:
        moved = any(abs(row[kind] - row[f"planned_{kind}"]) > CLOSE for kind in ("weights", "cache"))
        if moved or row["compute"] > row["planned_compute"] + CLOSE:
            parts = ", ".join(f"{kind} {_mib(row[kind])} (planned {_mib(row[f'planned_{kind}'])})" for kind in KINDS)
            found.append(f"other than planned on {row['device']}: {parts}")
    return found


@contextmanager
def checked(
    one: Planned,
    wish: Wish,
    programs: Sequence[Program],
    tell: Callable[[str], None],
    patience: float,
    warn: Callable[[str], None],
) -> Generator[list[Running]]:
    """All programs of a plan up. Before its server is, llama.cpp's own dry run says whether it will take what was planned."""
    with started(programs[:-1], tell, patience) as helpers:
        for line in _foreseen(one, wish, patience):
            warn(line)
        with started(programs[-1:], tell, patience) as server:
            yield [*helpers, *server]


def _foreseen(one: Planned, wish: Wish, patience: float) -> list[str]:
    command = dry_run_command(one, wish)
    if not command:
        return []
    try:
        said = dry_run(command, patience)
        return surprises(beside(one, said)) or list(filter(None, [other_devices(one, said)]))
    except DoesNotFit:
        return []  # the server will say the same of the file, with more words


def _mib(size: float) -> str:
    return units.show(size, "bytes", binary=True, digits=4)
