"""Reports which nodes are missing while the nodes of a run wait for each other, and stops at once if asked to."""

# pyright: reportUnknownMemberType=false
import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NoReturn

from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.trainer.contract.process.stop import requested, stop_file
from meshwise.workers.trainer.ranks.signed import SignedStore

PATIENCE_SECONDS = 3.0  # seconds before missing nodes are reported; a node that writes nothing new for as long counts as missing
TICK, LOOK = 0.25, 4  # seconds between checks whether to stop, and how many of these pass between reads of the store
WAITS, MISSING = "meshwise/waits/", "meshwise/missing"  # keys in the store


class RendezvousMonitor:
    """A thread of each node's agent. Waiting nodes write the time to node 0's store; torchrun's own list has no node numbers."""

    def __init__(
        self, node: int, nodes: int, endpoint: str, say: Callable[[str], None], stop: Callable[[str], NoReturn],
        patience: float = PATIENCE_SECONDS,
    ) -> None:  # fmt: skip
        self.node, self.nodes, self.endpoint, self.say, self.stop, self.patience = node, nodes, endpoint, say, stop, patience
        self.missing: list[int] = [] if node == 0 else [0]
        """Nodes that were missing at the last look; before the first one only node 0 can be."""
        self.stop_file = stop_file()
        self.since, self.connected, self.waiting = time.monotonic(), False, True
        self.store: SignedStore | None = None
        self.seen: dict[int, tuple[bytes, float]] = {}
        self.thread = self._start_thread()

    def begin(self) -> None:
        """Note that this node has reached the store and waits there for the others."""
        self.seen.clear()
        self.since, self.connected, self.waiting = time.monotonic(), True, True
        if not self.thread.is_alive():
            self.thread = self._start_thread()

    def end(self) -> None:
        """Note that all nodes have arrived."""
        self.waiting = False
        self.thread.join()

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        reported, ticks = list[int](), 0
        while self.waiting:
            if self.stop_file and requested(self.stop_file):
                self.stop(f"stopped by a signal while waiting for {format_nodes(self.missing)} at {self.endpoint}")
            if self.connected and ticks % LOOK == 0:
                self._look()
                if time.monotonic() - self.since > self.patience and self.missing and self.missing != reported:
                    reported = self.missing
                    self.say(f"waiting for {format_nodes(reported)} at {self.endpoint}")
            ticks += self.connected
            time.sleep(TICK)

    def _look(self) -> None:
        """Write that this node waits. Node 0 finds the missing nodes for all: if every node read all keys, its store would be busy."""
        try:
            store = self.store = self.store or _connect(self.endpoint)
            store.set(f"{WAITS}{self.node}", str(time.time()))
            if self.node == 0:
                self.missing = missing_nodes(store, self.nodes, self.seen, self.patience)
                store.set(MISSING, json.dumps(self.missing))
            elif found := store.find([MISSING]):
                self.missing = [other for other in json.loads(found[MISSING]) if other != self.node]
        except Exception:  # node 0 is gone, which torchrun reports when it notices
            self.store = None


def missing_nodes(store: SignedStore, nodes: int, seen: "dict[int, tuple[bytes, float]]", patience: float) -> list[int]:
    """Return the nodes from 1 on that wrote nothing new for `patience` seconds. `seen` keeps each node's last value and when it changed."""
    now = time.monotonic()
    for key, value in store.find([f"{WAITS}{node}" for node in range(1, nodes)]).items():
        node = int(key.removeprefix(WAITS))
        if value != seen.get(node, (b"", 0.0))[0]:
            seen[node] = value, now
    return [node for node in range(1, nodes) if node not in seen or now - seen[node][1] >= patience]


def format_nodes(nodes: Iterable[int], most: int = 8) -> str:
    """Return 'node 1', 'nodes 1 and 3', or 'nodes 1, 2, 3 and 60 more'."""
    words = [str(node) for node in nodes]
    if len(words) < 2:
        return f"node {words[0]}" if words else "the other nodes"
    shown = words if len(words) <= most else [*words[:most], f"{len(words) - most} more"]
    return f"nodes {', '.join(shown[:-1])} and {shown[-1]}"


def _connect(endpoint: str) -> SignedStore:
    host, _, port = endpoint.rpartition(":")
    store = TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
    return SignedStore(store, "")
