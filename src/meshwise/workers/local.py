"""`python -m meshwise.workers.local COUNT MODULE ARGUMENT...`: start a program once per device of this machine.

What `torchrun --standalone` does, but with a store on loopback alone, and without its rendezvous, which unpickles what whoever reaches its
port writes there.
"""

import os
import subprocess
import sys
import time
from datetime import timedelta

from meshwise.workers.store import LOOPBACK, serve
from meshwise.workers.trainer.contract.process.parent import die_with


def main(count: int, command: list[str]) -> int:
    """Start the ranks, and wait for them. The first that fails ends the others; return its exit code."""
    store, parent = serve(LOOPBACK, 0, timedelta(seconds=60)), os.getpid()
    shared = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port),
              "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # the store of whoever started it  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", *command], env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=lambda: die_with(parent),
        )
        for rank in range(count)
    ]  # fmt: skip
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.05)
    code = next((rank.returncode for rank in ranks if rank.returncode), 0)
    for rank in ranks:
        rank.kill()
        rank.wait()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
