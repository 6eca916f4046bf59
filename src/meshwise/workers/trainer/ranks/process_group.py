"""The process group of a run: the rank of this worker, and the store that all workers share.

torchrun orders nodes by their addresses; we order them by --node-rank, so that rank 0 is on the node where the user looks.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.trainer.ranks import store as stores
from meshwise.workers.trainer.ranks.signed import sign_objects

STORE = "MESHWISE_STORE"  # HOST:PORT of a store that no worker hosts; set by the launcher of a run on several hosts
NODE_RANK = "MESHWISE_NODE_RANK"
NODES = "MESHWISE_NODES"
LABELS = "MESHWISE_NODE_LABELS"  # ranks of the nodes as the user numbered them, if some of them are missing


@dataclass(frozen=True)
class Worker:
    """This process among the workers of a run."""

    rank: int
    world: int
    node: int
    host: str  # host name, with the node's number if there are several
    start: str  # a name that all workers of one start share; after a restart it is another
    nodes: int
    first_label: str = "0"  # the rank of the first node, as the user numbered it

    @staticmethod
    def here() -> "Worker":
        """Read the environment variables that torchrun and the launcher set."""
        e = os.environ
        local, each = int(e.get("LOCAL_RANK", "0")), int(e.get("LOCAL_WORLD_SIZE", "1"))
        rank = int(e[NODE_RANK]) * each + local if NODE_RANK in e else int(e["RANK"])
        nodes, host = max(1, int(e["WORLD_SIZE"]) // each), socket.gethostname()
        # torchrun counts restarts per host; on several hosts its new port tells one start from the next
        restarts = "" if STORE in e else f"/{e.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        start = f"{e['MASTER_ADDR']}:{e['MASTER_PORT']}{restarts}"
        labels = e.get(LABELS, "").split()
        label = labels[rank // each] if rank // each < len(labels) else str(rank // each)
        where = f"node {label} ({host})" if nodes > 1 else host
        return Worker(rank, int(e["WORLD_SIZE"]), rank // each, where, start, nodes, (labels or ["0"])[0])


def store_address() -> str:
    """Return HOST:PORT of the store."""
    e = os.environ
    return e.get(STORE, f"{e['MASTER_ADDR']}:{e['MASTER_PORT']}")


def connect(worker: Worker, timeout: float, *, serve: bool = False) -> Store:
    """Connect to the store, with keys private to this start. If no other process hosts it, rank 0 does with `serve`: others wait a minute
    for it at least, since it may start later."""
    e = os.environ
    host, _, port = store_address().rpartition(":")
    hosted = STORE in e or e.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    patience = timedelta(seconds=timeout if hosted else max(timeout, 60.0))
    if serve and not hosted and worker.rank == 0:
        store = stores.serve(host, int(port), patience)
    else:
        store = TCPStore(
            host.strip("[]"), int(port), is_master=False, wait_for_workers=False, multi_tenant=True, timeout=patience
        )
    return PrefixStore(f"meshwise/{worker.start}", store)


def init_process_group(worker: Worker, store: Store, device: torch.device, timeout: float) -> None:
    """Create the process group of all workers. Collectives time out later than the heartbeat, which names the rank that hangs."""
    cuda = device.type == "cuda"
    sign_objects()
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=worker.rank, world_size=worker.world,
        timeout=timedelta(seconds=2 * timeout + 60), device_id=device if cuda else None,
    )  # fmt: skip
