"""An HTTP client for token streams: while one arrives, only timestamps are recorded. Uses the standard library only."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from meshwise.errors import UserError, quoted
from meshwise.run.bench.stream import Arrival, Reply, reply

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ENDS = (b"[DONE]\n\n", b"[DONE]\r\n\r\n", b"\r\n0\r\n\r\n")
"""The last bytes of a stream, whether or not the endpoint then closes the connection."""
LAST = (b"\n\n", b"\n\r\n")
"""The last bytes of every entry of ENDS: a quick test that most arrivals fail."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of an endpoint. Its key is never printed or stored."""

    host: str
    port: int
    base: str = ""
    """The path before /v1."""
    secure: bool = False
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.base}"

    def redact(self, text: str) -> str:
        """Return the text without the key."""
        return text.replace(self.key, "***") if self.key else text


def address(url: str, key: str = "") -> Address:
    """Read 'http://127.0.0.1:8080' or 'https://host/prefix/v1'."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UserError(f"{quoted(url)} is not a URL; expected one such as http://127.0.0.1:8080") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{quoted(url)} is not a URL; expected one such as http://127.0.0.1:8080")
    if parts.username or parts.password or parts.query:
        raise UserError(
            "a URL must not contain a user name, password or query: name the environment variable that holds the key with --key-env"
        )
    if any(c in key for c in "\r\n"):
        raise UserError("the key contains a line break")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port or (443 if secure else 80), base=base, secure=secure, key=key)


SO_TIMESTAMPNS = 35
"""Linux, asm-generic/socket.h; Python does not define it."""
AT_ONCE = 16384
"""Bytes per read, enough for many events. asyncio asks for 256 KiB, and allocating that for each token takes longer than reading it."""
_WHEN = struct.Struct("qq")


class _Stamped(socket.socket):
    """A socket that records when its last bytes arrived, by the kernel's timestamp where there is one (socket(7)).

    Times then do not depend on how long this process waited for a core, or on how many streams it read before this one.
    """

    arrived = 0.0

    def request_timestamps(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data, ancillary, _, _ = self.recvmsg(min(bufsize, AT_ONCE), 64, flags)
        self._stamp(ancillary)
        return data

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        size, ancillary, _, _ = self.recvmsg_into([buffer], 64, flags)
        self._stamp(ancillary)
        return size

    def _stamp(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        """Set `arrived`. The kernel's timestamps are wall-clock time: subtract how long ago they were from the monotonic clock."""
        self.arrived = perf_counter()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == 16:
                seconds, nanoseconds = _WHEN.unpack(data)
                self.arrived -= max(0.0, time() - seconds - nanoseconds * 1e-9)


class _Stream(asyncio.Protocol):
    """One connection: all bytes and when they arrived."""

    def __init__(self, over: "asyncio.Future[bool]", source: _Stamped) -> None:
        self.arrivals: list[Arrival] = []
        self.over = over
        self.source = source
        self.tail = b""

    def data_received(self, data: bytes) -> None:
        self.arrivals.append((self.source.arrived, data))
        self.tail = data[-32:] if len(data) >= 32 else (self.tail + data)[-32:]
        if self.tail.endswith(LAST) and any(end in self.tail for end in ENDS) and not self.over.done():
            self.over.set_result(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(exc is None)


def _request(where: Address, method: str, path: str, body: bytes) -> bytes:
    lines = [f"{method} {where.base}{path} HTTP/1.1", f"Host: {where.host}:{where.port}", "Connection: close", "Accept: */*"]
    lines += [f"Authorization: Bearer {where.key}"] if where.key else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def ask(where: Address, method: str, path: str, values: dict[str, Any] | None = None, *, patience: float) -> Reply:
    """Send one request and return the whole reply. Gives up when nothing has arrived for `patience` seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()
    body = json.dumps(values).encode() if values is not None else b""
    begun = perf_counter()
    context = ssl.create_default_context() if where.secure else None
    try:
        async with asyncio.timeout(patience):
            source = await _connect(where)
            name = where.host if where.secure else None
            transport, stream = await loop.create_connection(
                lambda: _Stream(over, source), sock=source, ssl=context, server_hostname=name
            )
    except TimeoutError:
        return Reply(begun=begun, ended=perf_counter(), fault="silent", message=f"no connection within {patience:g} s")
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message or "unknown"
        return Reply(begun=begun, ended=perf_counter(), fault="refused", message=f"its certificate is not trusted ({reason})")
    except (OSError, ssl.SSLError) as error:
        return Reply(begun=begun, ended=perf_counter(), fault="refused", message=error.strerror or type(error).__name__)
    begun = perf_counter()
    transport.write(_request(where, method, path, body))
    late = await _wait_for_end(stream, begun, patience)
    ended = perf_counter()
    transport.abort() if late else transport.close()
    closed = over.done() and over.result()
    return reply(begun, ended, stream.arrivals, closed=closed, late=late)


async def _connect(where: Address) -> _Stamped:
    """Connect to the first of its addresses that accepts."""
    loop = asyncio.get_running_loop()
    problem = OSError("no address found")
    for family, kind, protocol, _, place in await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM):
        connection = _Stamped(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, place)
        except OSError as error:
            connection.close()
            problem = error
            continue
        except BaseException:
            connection.close()
            raise
        connection.request_timestamps()
        return connection
    raise problem


async def _wait_for_end(stream: _Stream, begun: float, patience: float) -> bool:
    """Wait for the end of a stream; return True if nothing arrived for too long."""
    while True:
        last = stream.arrivals[-1][0] if stream.arrivals else begun
        left = last + patience - perf_counter()
        if left <= 0:
            return True
        done, _ = await asyncio.wait([stream.over], timeout=left)
        if done:
            return False


async def ask_all(where: Address, path: str, requests: Sequence[dict[str, Any]], *, patience: float) -> list[Reply]:
    """Send all requests at once, each on its own connection."""
    return list(await asyncio.gather(*(ask(where, "POST", path, request, patience=patience) for request in requests)))
