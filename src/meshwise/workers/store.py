"""torch's key-value store, through which ranks meet, on one address instead of all."""

import socket
from datetime import timedelta

from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

LOOPBACK = "127.0.0.1"


def serve(host: str, port: int, timeout: timedelta) -> TCPStore:
    """Start a store that listens on the address of `host` alone, and connect to it; port 0 is any free one."""
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    where = listener.getsockname()
    # the store closes the descriptor
    return TCPStore(
        where[0], where[1], is_master=True, wait_for_workers=False, multi_tenant=True, timeout=timeout,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
