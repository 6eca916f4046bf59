"""llama.cpp: llama-server, and ggml-rpc-server on the other hosts. Flags as in its tools/server and tools/rpc READMEs."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from meshwise.cost.serve.layouts import Card, ServeLayout
from meshwise.cost.serve.placement import layer_devices
from meshwise.cost.serve.question import ServeQuestion
from meshwise.models.formats import FORMATS

PORT, RPC_PORT = 8080, 50052
BACKENDS = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "SYCL"}
"""The names of llama.cpp's backends, by vendor."""


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return one llama-server command per replica on a host; over several hosts, the RPC servers first."""
    if layout.hosts > 1:
        return _over_hosts(q, layout)
    per_host = sum(card.host == 0 for card in q.cards)
    size = len(layout.cards)
    copies = [layout.cards] if layout.replicas == 1 else [tuple(range(i, i + size)) for i in range(0, per_host - size + 1, size)]
    copies = copies[: layout.replicas]
    servers = [_server(q, layout, devices(q.cards, cards), PORT + i) for i, cards in enumerate(copies)]
    hosts = -(-layout.replicas // len(copies))
    return [f"# run on each of {hosts} hosts, behind a load balancer", *servers] if hosts > 1 else servers


def with_layers(q: ServeQuestion, layout: ServeLayout) -> ServeLayout:
    """Return a layout whose shares are the layers of each card, the head counted as one, so that -ts fixes the split instead of the memory
    that happens to be free when llama.cpp starts."""
    if layout.split != "layer" or layout.shared or len(layout.cards) == 1:
        return layout
    owners = layer_devices(len(q.model.layers), layout.shares, layout.gpu_layers)
    return replace(layout, shares=tuple(float(owners.count(i)) for i in range(len(layout.cards))), shared="as planned")


def _server(q: ServeQuestion, layout: ServeLayout, names: Sequence[str], port: int, rpc: Sequence[str] = ()) -> str:
    words = ["llama-server", "-m", file_of(q)]
    words += ["-ngl", str(gpu_layers(q, layout))]
    words += ["--rpc", ",".join(rpc)] if rpc else []
    words += ["-dev", ",".join(names)] if names else []
    shares = layout.shares[1:] if _on_cpus(q, layout) else layout.shares
    words += ["-sm", layout.split] if len(shares) > 1 else []
    words += ["-ts", ",".join(f"{share:.0f}" for share in shares)] if layout.shared and len(shares) > 1 else []
    words += _experts(q, layout)
    users = -(-q.work.users // layout.replicas)
    words += ["-c", str(q.work.context * users), "-np", str(users)]
    words += ["-ctk", q.work.kv, "-ctv", q.work.kv] if q.work.kv != "f16" else []
    words += ["-fa", "on" if flash_of(q) else "off"]
    words += ["--port", str(port)] if layout.replicas > 1 else []
    return shlex.join(words)


def _on_cpus(q: ServeQuestion, layout: ServeLayout) -> bool:
    """Return whether the layout only uses CPUs."""
    return all(q.cards[i].chip.kind == "cpu" for i in layout.cards)


def gpu_layers(q: ServeQuestion, layout: ServeLayout) -> int:
    """Return -ngl: layers that are not on the server's CPU but on cards, or on the CPUs of other hosts."""
    layers = len(q.model.layers)
    if _on_cpus(q, layout):
        return layers + 1 - layer_devices(layers, layout.shares).count(0) if layout.hosts > 1 else 0
    return layers + 1 if layout.gpu_layers is None else layout.gpu_layers


def _experts(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the flags that keep experts in host memory."""
    if not layout.expert_layers:
        return []
    if layout.expert_layers == len(q.model.layers):
        return ["-ot", "exps=CPU"]
    return ["--n-cpu-moe", str(layout.expert_layers)]


def _over_hosts(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the RPC servers of the other hosts, then the server. llama.cpp lists RPC devices before its own, so the last host runs the
    server.

    The server's own CPU is not in that list: it keeps the first layers, which -ngl does not move. So where all hosts are CPUs, the first
    one runs the server. An RPC server is bound to the private address of its host, never to all addresses: llama.cpp's README calls RPC
    insecure. Every RPC server has its own port, so that a layout over hosts can be tried on one machine.
    """
    layout = with_layers(q, layout) if _on_cpus(q, layout) else layout
    hosts = sorted({q.cards[i].host for i in layout.cards})
    own = q.cards[layout.cards[0 if _on_cpus(q, layout) else -1]].host
    rpc_servers: list[str] = []
    rpc: list[str] = []
    for port, card in enumerate((card for card in layout.cards if q.cards[card].host != own), start=RPC_PORT):
        host = q.cards[card].host
        number = hosts.index(host) + 1
        inside = [i for i in layout.cards if q.cards[i].host == host].index(card)
        rpc_servers.append(f"{_visible(q.cards[card], inside)}ggml-rpc-server -H host{number} -p {port}  # on host {number}")
        rpc.append(f"host{number}:{port}")
    return [*rpc_servers, f"{_server(q, layout, (), PORT, rpc)}  # on host {hosts.index(own) + 1}"]


def _visible(card: Card, number: int) -> str:
    """Return the environment variable that limits a program to one card; '' for a CPU."""
    if card.chip.kind == "cpu":
        return ""
    return f"{'HIP' if card.chip.vendor == 'AMD' else 'CUDA'}_VISIBLE_DEVICES={number} "


def devices(cards: Sequence[Card], chosen: Sequence[int]) -> list[str]:
    """Return the names of the chosen cards, such as CUDA0, where the host has more cards than are used."""
    host = cards[chosen[0]].host
    own = [i for i, card in enumerate(cards) if card.host == host]
    backend = BACKENDS.get(cards[chosen[0]].chip.vendor, "")
    if len(chosen) == len(own) or not backend or cards[chosen[0]].chip.kind == "cpu":
        return []
    return [f"{backend}{own.index(i)}" for i in chosen]


def flash_of(q: ServeQuestion) -> bool:
    """Return whether flash attention is on."""
    return q.runtime.flash if q.work.flash is None else q.work.flash


def file_of(q: ServeQuestion) -> str:
    """Return the given .gguf file, or the usual name of one in this format."""
    if q.model.tensors:
        return q.model.source
    name = q.weights.format
    return f"{q.model.name.rpartition('/')[2]}-{name if FORMATS[name].gguf else name.upper()}.gguf"
