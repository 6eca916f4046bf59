"""Ranks that meet at a store: those that do not come are named, and the others go on without them. All values are signed JSON."""

# pyright: reportUnknownMemberType=false
import json
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.secret import opened, signed
from meshwise.workers.store import LOOPBACK, serve

COLLECTIVE_SECONDS = 60.0  # seconds after which a collective or message has failed
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Place:
    """Where a rank is, by the environment variables of torchrun, Slurm or `meshwise preflight`."""

    rank: int
    world: int
    local: int
    per_node: int

    @property
    def node(self) -> int:
        return self.rank // self.per_node

    @staticmethod
    def here() -> "Place":
        """Read the environment; without it, this is the only rank."""
        rank, world, local = (int(os.environ.get(name, default)) for name, default in _PLACE)
        return Place(rank, world, local, int(os.environ.get("LOCAL_WORLD_SIZE", world)))


_PLACE = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


class Meeting:
    """The ranks of a preflight that came, in order, and what they tell each other."""

    def __init__(self, place: Place, patience: float) -> None:
        self.place, self.patience = place, patience
        host, port = os.environ.get("MASTER_ADDR", LOOPBACK), int(os.environ.get("MASTER_PORT", "29500"))
        hosted, wait = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True", timedelta(seconds=patience)
        hosts = place.rank == 0 and not hosted
        self.store = (
            serve(host, port, wait) if hosts else TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=wait)
        )
        self.present: list[int] = []

    def gather(self, problem: str) -> list[dict[str, Any]]:
        """Agree on the ranks that take part; return a row for each that does not. `problem`: why this rank cannot take part."""
        self._set(f"here/{self.place.rank}", problem)
        absent: list[dict[str, Any]] = []
        if self.place.rank == 0:
            came = self._wait_for([f"here/{rank}" for rank in range(self.place.world)])
            for rank in range(self.place.world):
                why = self._get(f"here/{rank}") if f"here/{rank}" in came else "did not join"
                absent += [{"kind": "absent", "rank": rank, "node": rank // self.place.per_node, "why": why}] if why else []
            gone = {row["rank"] for row in absent}
            self._set("present", [rank for rank in range(self.place.world) if rank not in gone])
        self.store.wait(["present"], timedelta(seconds=2 * self.patience))
        self.present = self._get("present")
        return absent

    def _set(self, key: str, value: object) -> None:
        self.store.set(key, signed(key, json.dumps(value).encode()))  # pyright: ignore[reportArgumentType]

    def _get(self, key: str) -> Any:
        """Return a value that a rank of this preflight set; Forged where somebody else did."""
        return json.loads(opened(key, self.store.get(key)))

    def _wait_for(self, keys: list[str]) -> set[str]:
        """Return the keys that were set before the patience ended."""
        until, missing = time.monotonic() + self.patience, set(keys)
        while missing and time.monotonic() < until:
            missing -= {key for key in missing if self.store.check([key])}
            time.sleep(POLL_SECONDS)
        return set(keys) - missing

    def tell(self, what: str, rows: list[dict[str, Any]]) -> None:
        """Publish rows of this rank under a name."""
        self._set(f"{what}/{self.place.rank}", rows)

    def told(self, what: str) -> list[dict[str, Any]]:
        """Return the rows that the present ranks published under a name."""
        came = self._wait_for([f"{what}/{rank}" for rank in self.present])
        return [row for rank in self.present if f"{what}/{rank}" in came for row in self._get(f"{what}/{rank}")]

    def announce(self, what: str, value: object = None) -> Any:
        """Return the value of the first present rank, on every rank."""
        if self.place.rank == self.present[0]:
            self._set(what, value)
        self.store.wait([what], timedelta(seconds=4 * COLLECTIVE_SECONDS))
        return self._get(what)

    def join(self, device: torch.device) -> None:
        """Make the process group of the present ranks."""
        cuda = device.type == "cuda"
        dist.init_process_group(
            "nccl" if cuda else "gloo", store=PrefixStore("group", self.store), rank=self.present.index(self.place.rank),
            world_size=len(self.present), timeout=timedelta(seconds=COLLECTIVE_SECONDS), device_id=device if cuda else None)  # fmt: skip

    def leave(self) -> None:
        """Wait until every rank is done with the store, which the first one hosts."""
        self.store.set(f"done/{self.place.rank}", "")
        if self.place.rank == 0:
            self._wait_for([f"done/{rank}" for rank in self.present])
