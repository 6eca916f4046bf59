"""Hosts: the machines of a run, from flags, or from the environment of torchrun, Slurm or Kubernetes."""

import errno
import fcntl
import re
import signal
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FrameType

from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.run.callbacks import Say
from meshwise.run.children import handle_signals
from meshwise.workers.trainer.contract.process.stop import stop_signals

DEFAULT_PORT = 29500  # default port of the rendezvous: torchrun's default for a master
NODE_RANGE = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?", re.ASCII)
PLACEHOLDER = f"NODE_0:{DEFAULT_PORT}"  # stands for the rendezvous in a dry run
JOIN_SECONDS = 600  # seconds that nodes wait for each other, at the start and after losing one
QUIET_SECONDS = 2.0  # seconds of waiting before a line is printed: users do not start all nodes at the same moment

ANSWERS, REFUSED, UNREACHED = "answers", "refused", "unreached"  # what a connection to a node finds


@dataclass(frozen=True)
class Hosts:
    """The number of machines, the rank of this one, and their rendezvous."""

    nodes: int = 1
    rank: int = 0
    rendezvous: str = ""  # HOST:DEFAULT_PORT on node 0; '' for one machine
    worker: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of this worker, if another program started every worker; empty if this process starts them."""
    least: int = 0  # nodes with which an elastic run goes on, at least; 0 if it needs all
    labels: tuple[int, ...] = ()  # ranks of the nodes as the user numbered them, if some are missing


def node_range(text: str) -> tuple[int, int]:
    """Read '4', or '2:4' as torchrun has it: the least and the most nodes of a run."""
    match = NODE_RANGE.fullmatch(text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < least <= most:
        raise UserError(f"{quoted(text)}: expected a number of nodes, such as 4, or MIN:MAX, such as 2:4")
    return least, most


def find(
    environment: Mapping[str, str], devices: int, *, nodes: str | int = "", node_rank: int | None = None, rendezvous: str = ""
) -> Hosts:
    """Return the hosts of a run on `devices` devices. Flags take precedence over the environment."""
    if nodes or node_rank is not None or rendezvous:
        least, most = node_range(str(nodes or 1))
        hosts = _elastic(_from_flags(most, node_rank, rendezvous), least)
    elif "WORLD_SIZE" in environment and "RANK" in environment:
        hosts = _from_torchrun(environment, devices)
    elif "PET_NNODES" in environment:  # torchrun's names for its own options, which Kubeflow sets
        port = environment.get("PET_MASTER_PORT", str(DEFAULT_PORT))
        endpoint = environment.get("PET_RDZV_ENDPOINT") or f"{environment.get('PET_MASTER_ADDR', '')}:{port}"
        least, most = node_range(environment["PET_NNODES"])
        hosts = _elastic(_nodes_at(most, _number(environment, "PET_NODE_RANK"), endpoint), least)
    elif "SLURM_STEP_ID" in environment:
        hosts = _from_slurm(environment, devices)
    else:
        hosts = Hosts()
    if devices % hosts.nodes:
        raise UserError(f"the layout is for {devices} devices, which {hosts.nodes} nodes cannot share evenly")
    return hosts


def _elastic(hosts: Hosts, least: int) -> Hosts:
    return replace(hosts, least=least) if least < hosts.nodes else hosts


def _from_flags(nodes: int, rank: int | None, rendezvous: str) -> Hosts:
    if nodes == 1:
        if rank or rendezvous:
            raise UserError("--node-rank and --rendezvous only apply with --nodes above 1")
        return Hosts()
    if rank is None or not rendezvous:
        raise UserError(
            f"--nodes {nodes} needs --node-rank (0 to {nodes - 1}) and --rendezvous HOST:PORT of node 0, the same on all nodes"
        )
    if not 0 <= rank < nodes:
        raise UserError(f"--node-rank {rank}: expected 0 to {nodes - 1}")
    hosts = _nodes_at(nodes, rank, rendezvous)
    _check_host_known(hosts.rendezvous, rendezvous)
    return hosts


def _check_host_known(endpoint: str, given: str) -> None:
    """Refuse an unknown host first: it usually means that the argument is wrong altogether."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            f"--rendezvous {quoted(given)}: expected HOST:PORT of node 0, such as node-a:{DEFAULT_PORT}; "
            f"this machine does not know the host {quoted(host)} ({error.strerror})"
        ) from None


def _nodes_at(nodes: int, rank: int, rendezvous: str) -> Hosts:
    if nodes == 1:
        return Hosts()
    host, colon, port = rendezvous.rpartition(":")
    host, port = (host, port) if colon and not rendezvous.endswith("]") else (rendezvous, str(DEFAULT_PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--rendezvous {quoted(rendezvous)}: expected HOST:PORT of node 0, such as node-a:{DEFAULT_PORT}")
    return Hosts(nodes, rank, f"{host}:{port}")


def _from_torchrun(e: Mapping[str, str], devices: int) -> Hosts:
    """Read the variables of torchrun, which starts every worker; Kubernetes sets them for one pod per node, without LOCAL_RANK."""
    world, rank = _number(e, "WORLD_SIZE"), _number(e, "RANK")
    if "LOCAL_RANK" not in e:
        return _nodes_at(world, rank, f"{e.get('MASTER_ADDR', '')}:{e.get('MASTER_PORT', DEFAULT_PORT)}")
    if world != devices:
        raise UserError(
            f"the layout is for {devices} devices, but torchrun started {world} workers: choose axes that multiply to {world}"
        )
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return Hosts(worker={name: e[name] for name in names if name in e})


def _from_slurm(e: Mapping[str, str], devices: int) -> Hosts:
    """Read the variables of an srun step: one task per node starts that node's workers, one task per device is a worker."""
    nodes = _number(e, "SLURM_STEP_NUM_NODES", e.get("SLURM_NNODES", "1"))
    tasks = _number(e, "SLURM_STEP_NUM_TASKS", e.get("SLURM_NTASKS", str(nodes)))
    listed = e.get("SLURM_STEP_NODELIST") or e.get("SLURM_JOB_NODELIST", "")
    master = first_host(listed) or e.get("SLURM_LAUNCH_NODE_IPADDR", "")
    port = DEFAULT_PORT + _number(e, "SLURM_JOB_ID", "0") % 1000
    if tasks == nodes:
        return _nodes_at(nodes, _number(e, "SLURM_NODEID", "0"), f"{master}:{port}")
    if tasks != devices:
        raise UserError(
            f"srun started {tasks} tasks on {nodes} nodes, but the layout is for {devices} devices: "
            "start one task per node (--ntasks-per-node=1), or one per device"
        )
    worker = {"RANK": e.get("SLURM_PROCID", "0"), "LOCAL_RANK": e.get("SLURM_LOCALID", "0"), "WORLD_SIZE": str(tasks)}
    return Hosts(worker=worker | {"LOCAL_WORLD_SIZE": str(tasks // nodes), "MASTER_ADDR": master, "MASTER_PORT": str(port)})


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: gpu07 for 'gpu[07-09,12],login'."""
    match = re.match(r"([^,\[]*)(?:\[([^\]-]*?)(?:[-,][^\]]*)?\])?([^,\[]*)", nodes)
    return f"{match[1]}{match[2] or ''}{match[3]}" if match else ""


def _number(e: Mapping[str, str], name: str, default: str = "") -> int:
    text = e.get(name, default)
    if not text.isdecimal():
        raise UserError(f"{name}={quoted(text)} in the environment: expected a whole number")
    return int(text)


def address_towards(rendezvous: str) -> str:
    """Return this machine's address on the route to the rendezvous."""
    host, _, port = rendezvous.rpartition(":")
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as route:
            route.connect(target)  # sends nothing, but finds the route
            return route.getsockname()[0]
    except OSError as error:
        raise UserError(f"--rendezvous {quoted(rendezvous)} cannot be reached from this machine ({error.strerror})") from None


def interface_of(address: str) -> str:
    """Return the network interface with this IPv4 address; '' if there is none."""
    get_address = 0x8915  # SIOCGIFADDR of <linux/sockios.h>
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def network(hosts: Hosts, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the workers' environment variables of rendezvous and network interface (one machine: loopback), unless they are set."""
    if hosts.worker:
        return {}
    if not hosts.rendezvous:
        return _sockets(interface_of("127.0.0.1"), environment)
    variables = {
        "MESHWISE_STORE": hosts.rendezvous,
        "MESHWISE_NODE_RANK": str(hosts.rank),
        "MESHWISE_NODES": str(hosts.nodes),
        "MESHWISE_NODE_LABELS": " ".join(map(str, hosts.labels)),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # with it, a restarted node would wait for an address that is published only once
        "TORCH_CPP_LOG_LEVEL": environment.get("TORCH_CPP_LOG_LEVEL", "FATAL"),  # C++ frames of torch are reported in words
    }
    return variables | _sockets(interface_of(address_towards(hosts.rendezvous)), environment)


def _sockets(interface: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the interface on which ranks listen, as far as they are not set."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: interface for name in names if interface and name not in environment}


def rendezvous_options(hosts: Hosts, timeout: float) -> list[str]:
    """Return torchrun's options for the rendezvous of its nodes."""
    if not hosts.rendezvous:
        return ["--standalone"]
    interval = round(min(5.0, max(1.0, timeout / 20)))
    rules = f"is_host={str(hosts.rank == 0).lower()},join_timeout={JOIN_SECONDS},read_timeout={JOIN_SECONDS},keep_alive_interval={interval}"
    return [*_rendezvous_flags(hosts), "--rdzv-conf", rules, "--local-addr", address_towards(hosts.rendezvous)]


def _rendezvous_flags(hosts: Hosts) -> list[str]:
    endpoint = ["--rdzv-backend", "c10d", "--rdzv-id", "meshwise", "--rdzv-endpoint", hosts.rendezvous]
    return ["--nnodes", str(hosts.nodes), *endpoint]


def placeholder_options(hosts: Hosts) -> list[str]:
    """Return the options that a dry run prints for any node of several: NODE_RANK stands for its rank."""
    nodes, count, *endpoint = _rendezvous_flags(hosts)
    return [nodes, count, "--node-rank", "NODE_RANK", *endpoint]


def wait_for_node_0(hosts: Hosts, say: Say, patience: float = JOIN_SECONDS) -> None:
    """Wait until node 0 answers at the rendezvous; a signal ends the wait. On node 0, check that its port is free."""
    if not hosts.rendezvous:
        return
    host, _, port = hosts.rendezvous.rpartition(":")
    first = f"node {hosts.labels[0] if hosts.labels else 0}"
    if hosts.rank == 0:
        _check_free(hosts.rendezvous, int(port))
        return

    begun, reported = time.monotonic(), False
    with _stopped(f"{first} at {hosts.rendezvous}: stopped, nothing was started"):
        while _connected(host.strip("[]"), int(port)) != ANSWERS:
            waited = time.monotonic() - begun
            if waited > patience:
                raise DoesNotFit(f"{first} did not answer at {hosts.rendezvous} within {patience:g} s; is its command running?")
            if waited > QUIET_SECONDS and not reported:
                say(f"waiting for {first} at {hosts.rendezvous}, up to {patience:g} s")
                reported = True
            time.sleep(0.2)


def comes_back(hosts: Hosts, say: Say, patience: float = JOIN_SECONDS) -> bool:
    """Wait until node 0, whose link was cut, can be reached; return False if it cannot within the patience, or its run has ended."""
    host, _, port = hosts.rendezvous.rpartition(":")
    first = f"node {hosts.labels[0] if hosts.labels else 0} at {hosts.rendezvous}"
    say(f"{first} could not be reached: waiting for the link, up to {patience:g} s")
    until = time.monotonic() + patience
    with _stopped(f"the link to {first}: stopped; node 0 has what was saved"):
        while (found := _connected(host.strip("[]"), int(port))) == UNREACHED and time.monotonic() < until:
            time.sleep(0.5)
    if found == ANSWERS:
        say(f"{first} answers again: starting the workers of this node")
    return found == ANSWERS


def _stopped(waiting: str) -> AbstractContextManager[None]:
    """Have a signal end a wait, in words."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise DoesNotFit(f"{signal.Signals(number).name} while waiting for {waiting}")

    return handle_signals(stop, *stop_signals())


def _connected(host: str, port: int) -> str:
    """Return what a connection finds: something that answers, a machine on which nothing listens there, or nothing."""
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except ConnectionRefusedError:
        return REFUSED
    except OSError:
        return UNREACHED
    return ANSWERS


def _check_free(rendezvous: str, port: int) -> None:
    with socket.socket(socket.AF_INET) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError(
                    f"--rendezvous {quoted(rendezvous)}: another program on this node uses port {port}; choose another on all nodes"
                ) from None
