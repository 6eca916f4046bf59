"""Start the server: on loopback, or on another address with a token; print where it is, and open a browser."""

import os
import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from meshwise.errors import UserError, quoted
from meshwise.ui.web import suggest
from meshwise.ui.web.app import create
from meshwise.ui.web.guard import LOOPBACK
from meshwise.ui.web.named import Named

MIN_TOKEN_CHARS = 16  # characters of a token, at least
MAX_WAITING_CONNECTIONS = 128  # connections that wait before they are taken
GRACE_SECONDS = 3  # seconds that open connections have to end when the server stops


def check(host: str, token: str) -> None:
    """Refuse an address that others can reach, without a token that they must know."""
    if host not in ("127.0.0.1", "localhost", "::1") and not token:
        raise UserError(
            f"--host {quoted(host)} is reachable by others: give --token too, a secret of {MIN_TOKEN_CHARS} letters or more"
        )
    if token and (
        len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or set(token) & set(' ";,\\&#%+')
    ):
        raise UserError(f"--token: expected at least {MIN_TOKEN_CHARS} letters, digits, '-' or '_'")


def hosts(host: str) -> frozenset[str]:
    """Return the names that the server answers to: loopback's, and those of this machine where it listens to others."""
    known = {*LOOPBACK}
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
        known |= {name.lower(), socket.getfqdn().lower(), *_addresses(name)}
    else:
        known.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(known)


def _addresses(name: str) -> set[str]:
    """Return the addresses of this machine, as a browser writes them."""
    try:
        found = socket.getaddrinfo(name, None)
    except OSError:
        return set()
    return {f"[{each[4][0]}]" if ":" in str(each[4][0]) else str(each[4][0]) for each in found}


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. UserError where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(MAX_WAITING_CONNECTIONS)
    except (OSError, OverflowError) as error:
        bound.close()
        raise UserError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}); --port 0 takes a free one"
        ) from None
    return bound


def address(bound: socket.socket, host: str, path: str, token: str) -> str:
    """Return the address to open, with the token where there is one."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    with_token = ("&" if "?" in path else "?") + f"token={token}" if token else ""
    return f"http://{name}:{bound.getsockname()[1]}{path}{with_token}"


def serve(
    named: Named, path: str, *, host: str, port: int, token: str = "", browser: bool = False, say: Callable[[str], None] = print
) -> None:
    """Serve pages until Ctrl-C. `path` is the page to open first."""
    check(host, token)
    bound = listen(host, port)
    where = address(bound, host, path, token)
    say(where)
    if browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.name != "posix"):
        threading.Timer(0.5, webbrowser.open, [where]).start()
    threading.Thread(target=suggest.warm, daemon=True).start()
    application = create(named, hosts=hosts(host), token=token)
    settings = uvicorn.Config(
        application, log_level="error", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=32768,
    )  # fmt: skip
    uvicorn.Server(settings).run(sockets=[bound])
