"""An HTTP client for streams of tokens: a timestamp per arrival and nothing else while they come. Standard library alone."""

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
"""What the last bytes of a stream look like, whether or not the endpoint closes the connection behind them."""
LAST = (b"\n\n", b"\n\r\n")
"""How each of them ends, with the end of its chunk or without: a first look that most arrivals do not need."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where an endpoint is. Its key is kept out of everything that is printed or stored."""

    host: str
    port: int
    base: str = ""
    """What stands before /v1."""
    secure: bool = False
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.base}"

    def hides(self, text: str) -> str:
        """The same text without the key."""
        return text.replace(self.key, "***") if self.key else text


def address(url: str, key: str = "") -> Address:
    """The parts of 'http://127.0.0.1:8080' or 'https://host/prefix/v1'."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UserError(f"{quoted(url)} is no URL; expected one such as http://127.0.0.1:8080") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{quoted(url)} is no URL; expected one such as http://127.0.0.1:8080")
    if parts.username or parts.password or parts.query:
        raise UserError(
            "a URL with a name, password or query in it is not taken: put the key into the variable that --key-env names"
        )
    if any(c in key for c in "\r\n"):
        raise UserError("the key has a line break in it")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Address(host=parts.hostname, port=port or (443 if secure else 80), base=base, secure=secure, key=key)


SO_TIMESTAMPNS = 35
"""Linux, asm-generic/socket.h. Python has no name for it."""
AT_ONCE = 16384
"""Bytes of a read, many events. asyncio asks for 256 KiB, and to have that much made for each token takes longer than to read it."""
_WHEN = struct.Struct("qq")


class _Stamped(socket.socket):
    """A socket that knows when what it read last had come, by the kernel's stamp where it gives one (socket(7)).

    So it does not matter to a time how long this process waited for a core, or how many streams were read before.
    """

    arrived = 0.0

    def ask_for_stamps(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data, told, _, _ = self.recvmsg(min(bufsize, AT_ONCE), 64, flags)
        self._stamp(told)
        return data

    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        size, told, _, _ = self.recvmsg_into([buffer], 64, flags)
        self._stamp(told)
        return size

    def _stamp(self, told: list[tuple[int, int, bytes]]) -> None:
        """The kernel's clock is the wall's: what counts is how long ago that was."""
        self.arrived = perf_counter()
        for level, kind, data in told:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == 16:
                seconds, nanoseconds = _WHEN.unpack(data)
                self.arrived -= max(0.0, time() - seconds - nanoseconds * 1e-9)


class _Stream(asyncio.Protocol):
    """One connection: what came and when, until its end."""

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
    """One request and all that came back. It is given up when nothing has come for `patience` seconds."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()
    body = json.dumps(values).encode() if values is not None else b""
    begun = perf_counter()
    context = ssl.create_default_context() if where.secure else None
    try:
        async with asyncio.timeout(patience):
            source = await _connected(where)
            name = where.host if where.secure else None
            transport, stream = await loop.create_connection(
                lambda: _Stream(over, source), sock=source, ssl=context, server_hostname=name
            )
    except TimeoutError:
        return Reply(begun=begun, ended=perf_counter(), fault="silent", words=f"no connection within {patience:g} s")
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message or "unknown"
        return Reply(begun=begun, ended=perf_counter(), fault="refused", words=f"its certificate is not trusted ({reason})")
    except (OSError, ssl.SSLError) as error:
        return Reply(begun=begun, ended=perf_counter(), fault="refused", words=error.strerror or type(error).__name__)
    begun = perf_counter()
    transport.write(_request(where, method, path, body))
    late = await _ended(stream, begun, patience)
    ended = perf_counter()
    transport.abort() if late else transport.close()
    closed = over.done() and over.result()
    return reply(begun, ended, stream.arrivals, closed=closed, late=late)


async def _connected(where: Address) -> _Stamped:
    """To the first of its addresses that takes a connection."""
    loop = asyncio.get_running_loop()
    problem = OSError("it has no address")
    for family, kind, protocol, _, place in await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM):
        found = _Stamped(family, kind, protocol)
        found.setblocking(False)
        try:
            await loop.sock_connect(found, place)
        except OSError as error:
            found.close()
            problem = error
            continue
        except BaseException:
            found.close()
            raise
        found.ask_for_stamps()
        return found
    raise problem


async def _ended(stream: _Stream, begun: float, patience: float) -> bool:
    """Waits for the end of a stream; True where nothing came for too long."""
    while True:
        last = stream.arrivals[-1][0] if stream.arrivals else begun
        left = last + patience - perf_counter()
        if left <= 0:
            return True
        done, _ = await asyncio.wait([stream.over], timeout=left)
        if done:
            return False


async def together(where: Address, path: str, requests: Sequence[dict[str, Any]], *, patience: float) -> list[Reply]:
    """All requests at once, each on a connection of its own."""
    return list(await asyncio.gather(*(ask(where, "POST", path, one, patience=patience) for one in requests)))
