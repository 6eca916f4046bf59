"""llama.cpp: llama-server, and rpc-server on the other hosts. Flags as in its tools/server and tools/rpc READMEs."""

import shlex
from collections.abc import Sequence

from meshwise.quant import FORMATS
from meshwise.serve_search import ServeQuestion
from meshwise.splits import Card, Way

PORT, RPC_PORT = 8080, 50052
BACKENDS = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "SYCL"}
"""What llama.cpp calls the devices of a vendor's own backend."""


def lines(q: ServeQuestion, way: Way) -> list[str]:
    if way.hosts > 1:
        return _over_hosts(q, way)
    per_host = sum(card.host == 0 for card in q.cards)
    size = len(way.cards)
    here = [way.cards] if way.replicas == 1 else [tuple(range(i, i + size)) for i in range(0, per_host - size + 1, size)]
    here = here[: way.replicas]
    found = [_server(q, way, devices(q.cards, copy), PORT + i) for i, copy in enumerate(here)]
    hosts = -(-way.replicas // len(here))
    return [f"# the same on each of {hosts} hosts, behind a load balancer", *found] if hosts > 1 else found


def _server(q: ServeQuestion, way: Way, names: Sequence[str], port: int, rpc: Sequence[str] = ()) -> str:
    words = ["llama-server", "-m", file_of(q)]
    words += ["-ngl", str(gpu_layers(q, way))]
    words += ["--rpc", ",".join(rpc)] if rpc else []
    words += ["-dev", ",".join(names)] if names else []
    words += ["-sm", way.split] if len(way.cards) > 1 else []
    words += ["-ts", ",".join(f"{share:.0f}" for share in way.shares)] if way.shared else []
    words += _experts(q, way)
    users = -(-q.work.users // way.replicas)
    words += ["-c", str(q.work.context * users), "-np", str(users)]
    words += ["-ctk", q.work.kv, "-ctv", q.work.kv] if q.work.kv != "f16" else []
    words += ["-fa", "on" if flash_of(q) else "off"]
    words += ["--port", str(port)] if way.replicas > 1 else []
    return shlex.join(words)


def gpu_layers(q: ServeQuestion, way: Way) -> int:
    if all(q.cards[i].chip.kind == "cpu" for i in way.cards):
        return 0
    return len(q.model.layers) + 1 if way.gpu_layers is None else way.gpu_layers


def _experts(q: ServeQuestion, way: Way) -> list[str]:
    if not way.expert_layers:
        return []
    if way.expert_layers == len(q.model.layers):
        return ["-ot", "exps=CPU"]
    return ["--n-cpu-moe", str(way.expert_layers)]


def _over_hosts(q: ServeQuestion, way: Way) -> list[str]:
    """Devices that are reached over RPC come before the host's own in llama.cpp's list, so the last host runs the server.

    An RPC server is bound to the private address of its host: llama.cpp's README calls RPC insecure, so never to all addresses.
    """
    hosts = sorted({q.cards[i].host for i in way.cards})
    found: list[str] = []
    rpc: list[str] = []
    for number, host in enumerate(hosts[:-1], start=1):
        for i in range(sum(q.cards[card].host == host for card in way.cards)):
            visible = _visible(q.cards, host)
            found.append(f"{visible}={i} rpc-server -H host{number} -p {RPC_PORT + i}  # on host {number}")
            rpc.append(f"host{number}:{RPC_PORT + i}")
    return [*found, f"{_server(q, way, (), PORT, rpc)}  # on host {len(hosts)}"]


def _visible(cards: Sequence[Card], host: int) -> str:
    vendor = next(card.chip.vendor for card in cards if card.host == host)
    return {"AMD": "HIP_VISIBLE_DEVICES"}.get(vendor, "CUDA_VISIBLE_DEVICES")


def devices(cards: Sequence[Card], chosen: Sequence[int]) -> list[str]:
    """'CUDA0', 'CUDA1': named where a host has more cards than are used."""
    host = cards[chosen[0]].host
    own = [i for i, card in enumerate(cards) if card.host == host]
    backend = BACKENDS.get(cards[chosen[0]].chip.vendor, "")
    if len(chosen) == len(own) or not backend or cards[chosen[0]].chip.kind == "cpu":
        return []
    return [f"{backend}{own.index(i)}" for i in chosen]


def flash_of(q: ServeQuestion) -> bool:
    return q.runtime.flash if q.work.flash is None else q.work.flash


def file_of(q: ServeQuestion) -> str:
    """The .gguf that was given, or the usual name of one in this format."""
    if q.model.tensors:
        return q.model.source
    name = q.weights.format
    return f"{q.model.name.rpartition('/')[2]}-{name if FORMATS[name].gguf else name.upper()}.gguf"
