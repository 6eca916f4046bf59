"""The nodes of an elastic run (`--nodes MIN:MAX`): who is there, who can reach whom, and which of them train together.

Each launcher writes a heartbeat into `.nodes/` of the run's folder, which all nodes share, and answers connections. The lowest node of
those that wait and reach each other leads: it locks the folder and writes the next generation, a list of nodes and where they meet. So any
node may be lost, node 0 too.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

from meshwise.errors import DoesNotFit
from meshwise.run.callbacks import Say
from meshwise.run.children import handle_signals
from meshwise.run.train.hosts import JOIN_SECONDS, Hosts, address_towards
from meshwise.workers.trainer.contract.process.stop import stop_signals

FOLDER, GENERATION = ".nodes", "generation.json"
HEARTBEAT_SECONDS = 1.0  # seconds between heartbeats
LOST_SECONDS = 10.0  # seconds without a new heartbeat after which a node counts as lost
SETTLE_SECONDS = 3.0  # seconds to wait for the other nodes that lost the same peer
FIRST_SECONDS = 30.0  # seconds that a start waits for more nodes once there are enough, as torchrun's last call
ANSWER_SECONDS = 2.0  # seconds in which a node that can be reached answers
RENDEZVOUS_PORTS = 100
"""Ports that successive generations cycle through, so that a port that is still closing does not block the next one."""


@dataclass(frozen=True)
class Generation:
    """The nodes that train together, until one is lost or joins."""

    number: int = 0
    members: tuple[int, ...] = ()  # their ranks, in order; the first leads
    rendezvous: str = ""
    over: bool = False  # whether the run is done
    regroup: bool = False  # whether the leader asks all to form the next generation


@dataclass
class Node:
    """The last known state of another node."""

    rank: int
    host: str = ""
    address: str = ""
    waiting: bool = False
    left: int = 0  # the generation that its workers have left, and when this was first seen
    left_at: float = 0.0
    beat: str = ""
    changed: float = -LOST_SECONDS  # when its heartbeat last changed, by this node's clock

    def live(self, now: float) -> bool:
        return now - self.changed < LOST_SECONDS


@dataclass
class Membership:
    """This node among the nodes of an elastic run. Use as a context: its heartbeat lasts as long."""

    out: Path
    hosts: Hosts
    say: Say
    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    current: Generation = field(default_factory=Generation)
    waiting: bool = True
    _beat: int = 0

    def __enter__(self) -> "Membership":
        self.folder = self.out / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = address_towards(self.hosts.rendezvous)
        self.server = socket.create_server((self.address, 0), family=socket.AF_INET6 if ":" in self.address else socket.AF_INET)
        self.name = f"meshwise {os.getpid()} {time.time_ns()}"
        self.current = Generation(number=self._generation().number)  # of an earlier run in this folder
        self.ended = threading.Event()
        self.threads = [
            threading.Thread(target=task, name=f"nodes-{task.__name__}", daemon=True) for task in (self._answer, self._live)
        ]
        self._write()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.server.close()
        (self.folder / f"{self.hosts.rank}.json").unlink(missing_ok=True)

    # threads

    def _answer(self) -> None:
        """Answer every connection with this node's name: a link that is cut answers nothing."""
        while not self.ended.is_set():
            try:
                connection, _ = self.server.accept()
                with connection:
                    connection.settimeout(ANSWER_SECONDS)
                    connection.sendall(self.name.encode())
            except OSError:
                if self.ended.is_set():
                    return
                time.sleep(0.05)

    def _live(self) -> None:
        while not self.ended.wait(HEARTBEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        self._beat += 1
        port = self.server.getsockname()[1] if self.server.fileno() >= 0 else 0
        values = {
            "beat": f"{self.name} {self._beat}", "host": socket.gethostname(), "address": f"{self.address} {port}",
            "waiting": self.waiting, "generation": self.current.number,
        }  # fmt: skip
        try:
            _replace(self.folder / f"{self.hosts.rank}.json", values)
        except OSError:
            return  # a full disk or a lost file system: the others will notice

    # what is known of the others

    def look(self) -> list[Node]:
        """Read the heartbeats; return the other nodes that are alive."""
        now = time.monotonic()
        for rank in range(self.hosts.nodes):
            if rank == self.hosts.rank:
                continue
            node = self.nodes.setdefault(rank, Node(rank))
            values = _read(self.folder / f"{rank}.json")
            beat = str(values.get("beat", ""))
            if beat and node.beat and beat != node.beat:
                node.changed = now
            if beat != node.beat:
                node.beat, node.host, node.address = beat, str(values.get("host", "")), str(values.get("address", ""))
                node.waiting, generation = values.get("waiting") is True, int(values.get("generation") or 0)
                if node.waiting and node.left != generation:
                    node.left, node.left_at = generation, now
        return [node for node in self.nodes.values() if node.live(now)]

    def reaches(self, node: Node) -> bool:
        """Return whether a node answers."""
        host, _, port = node.address.rpartition(" ")
        try:
            with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as connection:
                connection.settimeout(ANSWER_SECONDS)
                return connection.recv(200).decode("ascii", "replace") == " ".join(node.beat.split(" ")[:3])
        except (OSError, ValueError):
            return False

    def names(self, ranks: Sequence[int]) -> str:
        """Return nodes with their hosts, as far as they are known."""
        known = [
            f"node {rank}" + (f" ({self.nodes[rank].host})" if rank in self.nodes and self.nodes[rank].host else "")
            for rank in ranks
        ]
        return " and ".join(filter(None, [", ".join(known[:-1]), known[-1]])) if known else "no node"

    # generations

    def form(self, lead: Callable[[Generation], bool]) -> Generation | None:
        """Wait for the next generation of which this node is a member; None after the run; `lead` prepares it where it leads."""
        self.waiting, begun, reported = True, time.monotonic(), ""
        self._write()
        enough = 0.0

        def stop(number: int, frame: FrameType | None) -> None:
            raise DoesNotFit(f"{signal.Signals(number).name} while waiting for other nodes: stopped, nothing was started")

        with handle_signals(stop, *stop_signals()):
            while True:
                latest = self._generation()
                if latest.number > self.current.number and latest.over:
                    return None
                if latest.number > self.current.number and self.hosts.rank in latest.members and not latest.regroup:
                    return self._join(latest)
                now = time.monotonic()
                group, missing = self._group()
                if group:
                    enough = enough or now
                    complete = len(group) == self.hosts.nodes or now - enough > (
                        FIRST_SECONDS if not self.current.members else SETTLE_SECONDS
                    )
                    if complete and group[0] == self.hosts.rank and lead(made := self._next(group)):
                        _replace(self.folder / GENERATION, asdict(made))
                        return self._join(made)
                else:
                    enough = 0.0
                words = f"waiting for {self.names(missing)}" if missing else "waiting for the other nodes to stop"
                if now - begun > SETTLE_SECONDS and words != reported:
                    self.say(f"{words}, up to {JOIN_SECONDS} s")
                    reported = words
                if now - begun > JOIN_SECONDS:
                    raise DoesNotFit(
                        f"{self.names(missing)} did not join within {JOIN_SECONDS} s; at least {self.hosts.least} nodes are needed"
                    )
                time.sleep(HEARTBEAT_SECONDS / 4)

    def _group(self) -> tuple[list[int], list[int]]:
        """Return the nodes that can train together from now on, none if there are too few or some still run; and the missing ones."""
        reached = [node for node in self.look() if self.reaches(node)]
        waiting = sorted([self.hosts.rank, *(node.rank for node in reached if node.waiting)])
        missing = [
            rank for rank in range(self.hosts.nodes) if rank not in waiting and rank not in {node.rank for node in reached}
        ]
        running = any(not node.waiting for node in reached)
        return ([] if running or len(waiting) < self.hosts.least else waiting), missing

    def _next(self, group: list[int]) -> Generation:
        number = max(self._generation().number, self.current.number) + 1
        port = int(self.hosts.rendezvous.rpartition(":")[2])
        address = f"[{self.address}]" if ":" in self.address else self.address
        port = 1024 + (port - 1024 + number % RENDEZVOUS_PORTS) % (65536 - 1024)
        return Generation(number, tuple(group), f"{address}:{port}")

    def _join(self, generation: Generation) -> Generation:
        self.current, self.waiting = generation, False
        self._write()
        return generation

    def _generation(self) -> Generation:
        values = _read(self.folder / GENERATION)
        try:
            members: dict[str, Any] = {"members": tuple(int(rank) for rank in values.get("members", ()))}
            return Generation(**(values | members))
        except (TypeError, ValueError):
            return Generation()

    @property
    def leads(self) -> bool:
        return self.current.members[:1] == (self.hosts.rank,)

    def announce(self, *, over: bool = False, regroup: bool = False) -> None:
        """Tell the others that the run is done, or that they form the next generation. Only the leader does."""
        if self.leads:
            _replace(self.folder / GENERATION, asdict(self.current) | {"over": over, "regroup": regroup})

    def asked_to_regroup(self) -> bool:
        latest = self._generation()
        return latest.number > self.current.number or (latest.number == self.current.number and latest.regroup)

    def lost(self) -> list[int]:
        """Return members of the current generation that are gone, or that wait for the next one."""
        self.look()
        now, mine = time.monotonic(), self.current.number
        others = [node for rank, node in self.nodes.items() if rank in self.current.members]
        return [node.rank for node in others if not node.live(now) or (node.left == mine and now - node.left_at > SETTLE_SECONDS)]

    def joining(self) -> list[int]:
        """Return nodes that wait to join the current generation and can be reached."""
        return [n.rank for n in self.look() if n.waiting and n.rank not in self.current.members and self.reaches(n)]


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            values: object = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _replace(path: Path, values: dict[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(values), encoding="utf-8")
    partial.replace(path)
