"""Where the workers of a run meet: a store that outlives them, and the place of each.

torchrun's own order of nodes is that of their addresses; ours is the one that was asked for, so that rank 0 is where a user looks.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

STORE = "MESHWISE_STORE"
"""HOST:PORT of a store that no worker hosts; the launcher of a run over several hosts sets it."""
NODE_RANK = "MESHWISE_NODE_RANK"
NODES = "MESHWISE_NODES"
STOP_FILE = "MESHWISE_STOP"
"""A file that the launcher makes when it is asked to stop."""


@dataclass(frozen=True)
class Place:
    """Which worker this is."""

    rank: int
    world: int
    node: int
    host: str
    """Its name, and over several hosts the number of the node."""
    round: str
    """A name that the workers of one start share, and those after a restart do not."""
    nodes: int

    @staticmethod
    def here() -> "Place":
        e = os.environ
        local, each = int(e.get("LOCAL_RANK", "0")), int(e.get("LOCAL_WORLD_SIZE", "1"))
        rank = int(e[NODE_RANK]) * each + local if NODE_RANK in e else int(e["RANK"])
        nodes, host = max(1, int(e["WORLD_SIZE"]) // each), socket.gethostname()
        # torchrun counts restarts on each host apart; over several hosts its new port tells one start from the next
        restarts = "" if STORE in e else f"/{e.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        start = f"{e['MASTER_ADDR']}:{e['MASTER_PORT']}{restarts}"
        return Place(
            rank, int(e["WORLD_SIZE"]), rank // each, f"node {rank // each} ({host})" if nodes > 1 else host, start, nodes
        )


def connect(place: Place, timeout: float, *, serve: bool = False) -> Store:
    """A connection to the store, in a room of this start's own. Where nobody hosts it, the one who may `serve` does on rank 0."""
    e = os.environ
    host, _, port = e.get(STORE, f"{e['MASTER_ADDR']}:{e['MASTER_PORT']}").rpartition(":")
    hosted = STORE in e or e.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        host.strip("[]"),
        int(port),
        is_master=serve and not hosted and place.rank == 0,
        wait_for_workers=False,
        multi_tenant=True,
        timeout=timedelta(seconds=timeout),
    )
    return PrefixStore(f"meshwise/{place.round}", store)


def meet(place: Place, device: torch.device, timeout: float) -> None:
    """Make the process group of all workers. Collectives may take longer than the watchdog, which has more to say, waits."""
    cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=connect(place, max(timeout, 60.0), serve=True),
        rank=place.rank,
        world_size=place.world,
        timeout=timedelta(seconds=2 * timeout + 60),
        device_id=device if cuda else None,
    )
