"""Servers of a deployment whose prompts and outputs have replicas of their own (xPyD): where each runs, and its role."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs.program import Setup
from meshwise.programs.serve import hosts, setup

Role = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Server:
    """One replica of one pool."""

    role: Role
    number: int  # index among the servers of both pools, from 0
    host: int  # index of its host, from 0
    given: Setup
    devices: tuple[int, ...]  # device numbers on its host

    @property
    def name(self) -> str:
        return f"host{self.host + 1}"


def setups(q: ServeQuestion, layout: ServeLayout) -> dict[Role, Setup]:
    """Return the facts of one replica of each pool."""
    assert layout.prefill
    return {"prefill": setup.of_layout(q, layout.prefill), "decode": setup.of_layout(q, replace(layout, prefill=None))}


def servers(q: ServeQuestion, layout: ServeLayout) -> Iterator[Server]:
    """Yield the replicas for prompts, then those for outputs, each on the next free devices of a host."""
    assert layout.prefill
    per_host = sum(card.host == 0 for card in q.cards)
    number = start = 0
    for role, given in setups(q, layout).items():
        size = given.whole("tp") * given.whole("pp")
        for _ in range(given.whole("replicas")):
            if start % per_host + size > per_host:
                start += per_host - start % per_host
            first = start % per_host
            yield Server(role, number, start // per_host, given, tuple(range(first, first + size)))
            number, start = number + 1, start + size


def commands(
    q: ServeQuestion, found: Sequence[Server], command: Callable[[Server], str], router: str, variables: str = ""
) -> list[str]:
    """Return the command of each server with its devices, and the line that starts the router between them."""
    visible = hosts.VISIBLE.get(q.cards[0].chip.vendor, "CUDA_VISIBLE_DEVICES")
    several = len({server.host for server in found}) > 1
    started = [
        f"{visible}={','.join(map(str, server.devices))} {variables.format(number=server.number)}{command(server)}"
        f"  # {server.role}{f', on host {server.host + 1}' if several else ''}"
        for server in found
    ]
    return [*started, router]
