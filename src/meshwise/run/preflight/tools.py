"""Facts of nodes from the tools and files of a system: nvidia-smi, rocm-smi, /sys, Slurm and Kubernetes. Output is data: nothing is run."""

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from meshwise import units
from meshwise.catalogue import here
from meshwise.errors import UserError
from meshwise.units import GIB, Bytes, BytesPerSecond
from meshwise.workers import tool

MAX_NAME_CHARS = 120
MAX_COUNT = 10**9  # devices, processors or MiB of memory of a node
SYS = Path("/sys")
READY_STATES = ("IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED")
Run = Callable[..., str]


@dataclass(frozen=True)
class NodeFacts:
    """What was seen of one node; 0 and '' where it was not."""

    host: str
    devices: int = 0
    chip: str = ""  # the name of its accelerators, as the tool prints it
    link: str = ""  # how its GPUs are joined, as `nvidia-smi topo` names it: NV18, PIX, SYS
    network: BytesPerSecond = 0.0  # bytes per second of its network ports together
    network_name: str = ""
    memory: Bytes = 0.0
    cpus: int = 0
    state: str = "ready"  # ready, or why no job can start there
    sources: dict[str, str] = field(default_factory=dict[str, str])  # by field: the tool or file that said it
    unseen: tuple[str, ...] = ()


def output(*command: str) -> str:
    """Return what a tool prints. UserError where it is missing, fails or does not end."""
    try:
        return tool.output(*command)
    except tool.ToolError as error:
        raise UserError(str(error)) from None


def plain(text: object) -> str:
    """Return a name that a tool printed as one short printable line."""
    return "".join(c for c in str(text) if c.isprintable())[:MAX_NAME_CHARS].strip()


def this_node(run: Run = output, sys: Path = SYS) -> NodeFacts:
    """Return what this machine shows of itself."""
    found: dict[str, Any] = {"memory": here.host_memory(), "cpus": os.cpu_count() or 0}
    sources, unseen = {"memory": "the kernel", "cpus": "the kernel"}, list[str]()
    for program, names in (("nvidia-smi", here.gpus()), ("rocm-smi", here.radeons())):
        if names:
            chip = plain(max(set(names), key=names.count)).removeprefix("NVIDIA ")
            found |= {"devices": len(names), "chip": chip}
            sources |= {"devices": program, "chip": program}
            break
        unseen.append(f"GPUs by {program}: " + ("it lists none" if shutil.which(program) else f"{program} is not installed here"))
    if found.get("devices", 0) > 1 and sources["chip"] == "nvidia-smi":
        try:
            found["link"], sources["link"] = weakest(topology(run("nvidia-smi", "topo", "-m"))), "nvidia-smi topo -m"
        except UserError as error:
            unseen.append(f"links between GPUs: {error}")
    ports = list(infiniband(sys)) or list(ethernet(sys))
    if ports:
        found |= {
            "network": sum(port[1] for port in ports),
            "network_name": " + ".join(port[0] for port in ports)[:MAX_NAME_CHARS],
        }
        sources["network"] = ports[0][2]
    else:
        unseen.append("network: no port in /sys/class/infiniband or /sys/class/net states its speed")
    return NodeFacts(os.environ.get("SLURMD_NODENAME") or socket.gethostname(), **found, sources=sources, unseen=tuple(unseen))


def topology(text: str) -> dict[tuple[int, int], str]:
    """Return how pairs of GPUs are joined, from the matrix of `nvidia-smi topo -m`."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    head = next((row for row in rows if row and row[0] == "GPU0"), list[str]())
    columns = {number: int(name[3:]) for number, name in enumerate(head) if re.fullmatch(r"GPU\d{1,4}", name)}
    found: dict[tuple[int, int], str] = {}
    for row in rows:
        if row and re.fullmatch(r"GPU\d{1,4}", row[0]) and row is not head:
            own = int(row[0][3:])
            found |= {(own, gpu): row[at + 1] for at, gpu in columns.items() if gpu > own and at + 1 < len(row)}
    return found


def weakest(pairs: Mapping[tuple[int, int], str]) -> str:
    """Return the weakest connection: fewer NVLinks are weaker, and any other way is weaker than NVLink."""
    order = ("SYS", "NODE", "PHB", "PXB", "PIX")

    def strength(name: str) -> int:
        return 100 + int(name[2:]) if re.fullmatch(r"NV\d{1,3}", name) else order.index(name) if name in order else -1

    return min(pairs.values(), key=strength, default="")


def _said(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def infiniband(sys: Path) -> Iterator[tuple[str, float, str]]:
    """Yield the active ports of InfiniBand and RoCE adapters: name, bytes per second, source."""
    for port in sorted(sys.glob("class/infiniband/*/ports/*")):
        match = re.match(r"([0-9.]{1,8}) Gb/sec", _said(port / "rate"))
        if match and "ACTIVE" in _said(port / "state"):
            yield f"{port.parts[-3]}", float(match[1]) * 1e9 / 8, "/sys/class/infiniband"


def ethernet(sys: Path) -> Iterator[tuple[str, float, str]]:
    """Yield the fastest network interface that is up; one of hardware before a virtual one."""
    found: list[tuple[bool, float, str]] = []
    for interface in sorted(sys.glob("class/net/*")):
        speed = _said(interface / "speed")
        if interface.name != "lo" and _said(interface / "operstate") == "up" and speed.isdecimal() and 0 < int(speed[:9]) < 10**8:
            found.append(((interface / "device").exists(), int(speed[:9]) * 1e6 / 8, interface.name))
    for hardware, rate, name in sorted(found)[-1:]:
        yield name, rate, "/sys/class/net" if hardware else "/sys/class/net, a virtual interface, which may state any speed"


def slurm(run: Run = output, partition: str = "") -> list[NodeFacts]:
    """Return the nodes that Slurm's controller lists."""
    words = ["sinfo", "-h", "-N", "-o", "%N", *(["-p", partition] if partition else [])]
    listed = set(run(*words).split()) if partition else None
    nodes: dict[str, NodeFacts] = {}
    for line in run("scontrol", "-o", "show", "node").splitlines():
        said = dict(re.findall(r"(?:^| )(\w+)=([^=]*)(?= \w+=|$)", line))
        name = plain(said.get("NodeName", ""))
        if not name or (listed is not None and name not in listed):
            continue
        gres = re.search(r"gpu:(?:([\w.-]+):)?(\d{1,4})", said.get("Gres", ""))
        state = plain(said.get("State", ""))
        ready = re.split(r"[^A-Z]", state)[0] in READY_STATES and not re.search(r"DRAIN|DOWN|FAIL|\*", state)
        nodes[name] = NodeFacts(
            name, int(gres[2]) if gres else 0, plain(gres[1] or "") if gres else "", memory=_whole(said.get("RealMemory")) * 2.0**20,
            cpus=_whole(said.get("CPUTot")), state="ready" if ready else f"{state.lower()} {plain(said.get('Reason', ''))}".strip(),
            sources=dict.fromkeys(("devices", "chip", "memory", "cpus"), "scontrol show node"))  # fmt: skip
    return list(nodes.values())


def _whole(text: str | None) -> int:
    """Return a whole number that a tool printed, cut where no machine has as many; 0 for anything else."""
    digits = (text or "").strip()
    return min(int(digits[:12]), MAX_COUNT) if digits.isdecimal() else 0


def kubernetes(run: Run = output) -> list[NodeFacts]:
    """Return the nodes that `kubectl get nodes` lists."""
    try:
        items: Any = json.loads(run("kubectl", "get", "nodes", "-o", "json"))["items"]
        return [_pod_host(item) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError("kubectl get nodes -o json: not the list of nodes that was expected") from None


def _pod_host(item: Any) -> NodeFacts:
    status, labels = item["status"], cast("dict[str, Any]", item["metadata"].get("labels") or {})
    free = cast("dict[str, Any]", status.get("allocatable") or {})
    count = next((value for key, value in free.items() if key in ("nvidia.com/gpu", "amd.com/gpu")), "0")
    chip = (
        labels.get("nvidia.com/gpu.product")
        or labels.get("amd.com/gpu.product-name")
        or labels.get("cloud.google.com/gke-accelerator")
    )
    healthy = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    state = "cordoned" if item.get("spec", {}).get("unschedulable") else "ready" if healthy else "not ready"
    memory = re.fullmatch(r"(\d{1,18})(Ki|Mi|Gi)?", str(free.get("memory", "")))
    scale = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": GIB}
    return NodeFacts(plain(item["metadata"]["name"]), _whole(str(count)), plain(chip or "").removeprefix("NVIDIA-"),
        memory=float(memory[1]) * scale.get(memory[2], 1.0) if memory else 0.0, cpus=_whole(str(free.get("cpu", ""))), state=state,
        sources=dict.fromkeys(("devices", "chip", "memory", "cpus"), "kubectl get nodes"))  # fmt: skip


def shown(facts: NodeFacts) -> list[tuple[str, str, str]]:
    """Return facts in words: what, value, and where it came from."""
    values = {
        "devices": f"{facts.devices}" if facts.devices else "", "chip": facts.chip, "link": facts.link,
        "network": f"{units.show(facts.network, 'bytes/s')} ({facts.network_name})" if facts.network else "",
        "memory": units.show(facts.memory, "bytes", binary=True) if facts.memory else "", "cpus": f"{facts.cpus}" if facts.cpus else "",
    }  # fmt: skip
    return [(what, value, facts.sources.get(what, "")) for what, value in values.items() if value]
