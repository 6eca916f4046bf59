"""Which user of this machine is at the other end of a connection over loopback, as the kernel lists it."""

import socket
from pathlib import Path

TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
"""Linux, proc(5): the connections of this machine with their users."""
ADDRESS, PEER, USER = 1, 2, 7  # columns of the tables


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user whose process has the client's end of a connection; None where that is not known."""
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    try:
        wanted = _written(family, *client), _written(family, *server)
        lines = TABLES[family].read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return None
    found = (row for row in map(str.split, lines) if (row[ADDRESS], row[PEER]) == wanted)
    return next((int(row[USER]) for row in found), None)


def _written(family: int, host: str, port: int) -> str:
    """Return an address as the tables have it: words of 4 bytes in the machine's order, in hexadecimal."""
    packed = socket.inet_pton(family, host)
    words = [int.from_bytes(packed[i : i + 4], "big") for i in range(0, len(packed), 4)]
    return "".join(f"{socket.ntohl(word):08X}" for word in words) + f":{port:04X}"
