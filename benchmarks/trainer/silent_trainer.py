"""The trainer with collectives that return at once and move nothing: `torchrun -m silent_trainer settings.json`.

Every rank does its own share of the work, on wrong values where other ranks' are missing: the time of a step without communication.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend)

from meshwise.workers.trainer.__main__ import main
from meshwise.workers.trainer.ranks import heartbeat
from meshwise.workers.trainer.ranks.process_group import Worker


def init_process_group(worker: Worker, store: Store, device: torch.device, timeout: float) -> None:
    dist.init_process_group("fake", store=store, rank=worker.rank, world_size=worker.world)


if __name__ == "__main__":
    heartbeat.init_process_group = init_process_group
    main(Path(sys.argv[1]))
