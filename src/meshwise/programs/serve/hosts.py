"""Shell lines that start a server on the hosts of a layout: one per host of a replica, or one for each host or replica."""

import shlex
from collections.abc import Callable, Sequence

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion

VISIBLE = {"AMD": "ROCR_VISIBLE_DEVICES"}  # the variable that names the devices of a process, by vendor; NVIDIA's elsewhere


def joined(words: Callable[[int], Sequence[str]], layout: ServeLayout) -> list[str]:
    """Return the command of each host of a replica that spans several; `words` returns that of a host by its number from 0."""
    lines = [f"{shlex.join(words(rank))}  # on host {rank + 1}" for rank in range(layout.hosts)]
    return [f"# run on each of {layout.replicas} groups of hosts", *lines] if layout.replicas > 1 else lines


def repeated(words: Sequence[str], hosts: int) -> list[str]:
    """Return a command that is started once on each of some hosts."""
    return [*([f"# run on each of {hosts} hosts, behind a load balancer"] if hosts > 1 else []), shlex.join(words)]


def started(
    q: ServeQuestion, layout: ServeLayout, words: Sequence[str], joins: Callable[[int], Sequence[str]], copies: int, port: int
) -> list[str]:
    """Return the lines that start every replica; `joins`: the words that a further host adds, by number; `copies`: of one command."""
    if layout.hosts > 1:
        return joined(lambda rank: [*words, *joins(rank)], layout)
    if layout.apart:
        return one_per_copy(q, layout, words, port)
    return repeated(words, -(-layout.replicas // copies))


def one_per_copy(q: ServeQuestion, layout: ServeLayout, words: Sequence[str], port: int) -> list[str]:
    """Return the command of each replica on a host, with devices of its own and, where there are several, a port of its own."""
    per_host = sum(card.host == 0 for card in q.cards)
    size = len(layout.cards)
    copies = max(1, min(layout.replicas, per_host // size))
    started = [[*words, "--port", str(port + i)] if layout.replicas > 1 else words for i in range(copies)]
    if copies == 1:
        return repeated(started[0], layout.replicas)
    visible = VISIBLE.get(q.cards[0].chip.vendor, "CUDA_VISIBLE_DEVICES")
    devices = [",".join(map(str, range(i * size, (i + 1) * size))) for i in range(copies)]
    lines = [f"{visible}={own} {shlex.join(command)}" for own, command in zip(devices, started, strict=True)]
    hosts = -(-layout.replicas // copies)
    return [*([f"# run on each of {hosts} hosts, behind a load balancer"] if hosts > 1 else []), *lines]
