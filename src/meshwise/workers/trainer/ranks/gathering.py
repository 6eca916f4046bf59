"""While the nodes of a run wait for each other: who is not there yet is said, and a wish to stop is obeyed at once."""

# pyright: reportUnknownMemberType=false
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.trainer.ranks.meeting import STOP_FILE

PATIENCE = 3.0
"""Seconds before a word is said of who is missing; and without a sign of life, those after which a node is."""
TICK, LOOK = 0.25, 4
"""Seconds between looks at whether to stop, and how many of these go by between looks into the store."""
WAITS, MISSING = "meshwise/waits/", "meshwise/missing"
"""Keys in the store."""


class Gathering:
    """A thread of each node's agent. Nodes that wait write the time to the store of node 0; torchrun's own list has no numbers of nodes."""

    def __init__(
        self,
        node: int,
        nodes: int,
        where: str,
        say: Callable[[str], None],
        stop: Callable[[str], NoReturn],
        patience: float = PATIENCE,
    ) -> None:
        self.node, self.nodes, self.where, self.say, self.stop, self.patience = node, nodes, where, say, stop, patience
        self.missing: list[int] = [] if node == 0 else [0]
        """Who was not there when last looked; at first nothing is known but of node 0."""
        self.stop_file = Path(os.environ[STOP_FILE]) if STOP_FILE in os.environ else None
        self.since, self.met, self.waiting = time.monotonic(), False, True
        self.store: TCPStore | None = None
        self.seen: dict[int, tuple[bytes, float]] = {}
        self.thread = self._started()

    def begin(self) -> None:
        """This node has reached the store, and waits for the others there."""
        self.seen.clear()
        self.since, self.met, self.waiting = time.monotonic(), True, True
        if not self.thread.is_alive():
            self.thread = self._started()

    def end(self) -> None:
        """All are here."""
        self.waiting = False
        self.thread.join()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="gathering", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        told, ticks = list[int](), 0
        while self.waiting:
            if self.stop_file and self.stop_file.exists():
                self.stop(f"stopped by a signal while waiting for {named(self.missing)} at {self.where}")
            if self.met and ticks % LOOK == 0:
                self._look()
                if time.monotonic() - self.since > self.patience and self.missing and self.missing != told:
                    told = self.missing
                    self.say(f"waiting for {named(told)} at {self.where}")
            ticks += self.met
            time.sleep(TICK)

    def _look(self) -> None:
        """Say that this node waits. Node 0 looks who else does and tells all: if each looked at each, its store would have much to do."""
        try:
            store = self.store = self.store or _connected(self.where)
            store.set(f"{WAITS}{self.node}", str(time.time()))
            if self.node == 0:
                self.missing = absent(store, self.nodes, self.seen, self.patience)
                store.set(MISSING, json.dumps(self.missing))
            elif store.check([MISSING]):
                self.missing = [other for other in json.loads(store.get(MISSING)) if other != self.node]
        except Exception:  # node 0 is gone, which torchrun will say when it notices
            self.store = None


def absent(store: TCPStore, nodes: int, seen: "dict[int, tuple[bytes, float]]", patience: float) -> list[int]:
    """Nodes but the first that have said nothing new for so many seconds. `seen` keeps what each said last, and since when."""
    now = time.monotonic()
    for node in range(1, nodes):
        key = f"{WAITS}{node}"
        if store.check([key]) and (said := store.get(key)) != seen.get(node, (b"", 0.0))[0]:
            seen[node] = said, now
    return [node for node in range(1, nodes) if node not in seen or now - seen[node][1] >= patience]


def named(nodes: Iterable[int], most: int = 8) -> str:
    """'node 1', 'nodes 1 and 3', 'nodes 1, 2, 3 and 60 more'."""
    words = [str(node) for node in nodes]
    if len(words) < 2:
        return f"node {words[0]}" if words else "the other nodes"
    shown = words if len(words) <= most else [*words[:most], f"{len(words) - most} more"]
    return f"nodes {', '.join(shown[:-1])} and {shown[-1]}"


def _connected(where: str) -> TCPStore:
    host, _, port = where.rpartition(":")
    return TCPStore(host.strip("[]"), int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
