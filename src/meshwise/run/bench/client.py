"""An HTTP client for token streams: while one arrives, only timestamps are recorded. Uses the standard library only."""

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter, time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from meshwise.errors import UserError, quoted
from meshwise.run.bench.stream import MOST_HEAD, Arrival, Malformed, Reply, head_of, reply

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ENDS = (b"[DONE]\n\n", b"[DONE]\r\n\r\n", b"\r\n0\r\n\r\n")
"""The last bytes of a stream, whether or not the endpoint then closes the connection."""
LAST_BYTES = (b"\n\n", b"\n\r\n")  # the last bytes of every entry of ENDS: a quick test that most arrivals fail


BASE, PER_TOKEN = 1 << 23, 1 << 12
"""Bytes that a reply may have at most, and more for each token that was asked for: an event of a token has 200 to 400."""
ARRIVAL_BYTES = 160  # bytes that an arrival takes beside its data


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of an endpoint. Its key is never printed or stored."""

    host: str
    port: int
    base: str = ""  # the path before /v1
    secure: bool = False
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.base}"

    def redact(self, text: str) -> str:
        """Return the text, or what stands for it if it repeats part of the key: as it is, reversed or encoded."""
        plain = _letters(text)
        if any(piece in plain for form, size in _forms(self.key) for piece in _pieces(_letters(form), size)):
            return "(not shown: it repeats part of the key)"
        return text


PIECE_CHARS = 4  # letters and digits in a row that count as part of a key


def _letters(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _forms(key: str) -> list[tuple[str, int]]:
    """Return a key as an endpoint may echo it (as it is, reversed, in hex, in base64 from three offsets), and the length of a part."""
    data = key.encode("utf-8", "replace")
    # the first and the last letters of base64 depend on the bytes beside the key
    encoded = [base64.b64encode(bytes(offset) + data).decode()[4:-4] for offset in range(3)]
    return [
        (key, PIECE_CHARS),
        (key[::-1], PIECE_CHARS),
        (data.hex(), 2 * PIECE_CHARS),
        *((text, PIECE_CHARS + 2) for text in encoded),
    ]


def _pieces(text: str, size: int) -> set[str]:
    size = min(size, len(text))
    return {text[i : i + size] for i in range(len(text) - size + 1)} if size else set()


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


SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h; Python does not define it
READ_BYTES = 16384
"""Bytes per read, enough for many events. asyncio asks for 256 KiB, and allocating that for each token takes longer than reading it."""
_WHEN = struct.Struct("qq")


class _Stamped(socket.socket):
    """A socket that records when its last bytes arrived, by the kernel's timestamp (socket(7)), however long this process waited."""

    arrived = 0.0

    def request_timestamps(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        data, ancillary, _, _ = self.recvmsg(min(bufsize, READ_BYTES), 64, flags)
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
    """One connection: all bytes and when they arrived, up to a limit."""

    def __init__(self, over: "asyncio.Future[bool]", source: _Stamped, most: int) -> None:
        self.arrivals: list[Arrival] = []
        self.over, self.source, self.left = over, source, most
        self.tail = b""
        self.head: bytearray | None = bytearray()
        """The beginning of the reply, until its headers are complete."""
        self.missing: int | None = None
        """Bytes of the body that have not arrived, if the headers state its length."""

    @property
    def flooded(self) -> bool:
        return self.left < 0

    def data_received(self, data: bytes) -> None:
        self.left -= len(data) + ARRIVAL_BYTES
        if self.over.done():
            return
        if self.left < 0:
            self.over.set_result(False)
            return
        self.arrivals.append((self.source.arrived, data))
        self._count(data)
        self.tail = data[-32:] if len(data) >= 32 else (self.tail + data)[-32:]
        if self.tail.endswith(LAST_BYTES) and any(end in self.tail for end in ENDS) and not self.over.done():
            self.over.set_result(True)

    def _count(self, data: bytes) -> None:
        """End the wait when a body of stated length is complete: not every endpoint closes the connection."""
        if self.head is not None:
            self.head += data
            if b"\n" not in data and len(self.head) <= MOST_HEAD:
                return
            try:
                head = head_of(self.head)
            except Malformed:
                self.over.set_result(False)
                return
            if head is None:
                return
            if head.length is not None:
                self.missing = head.length - (len(self.head) - head.end)
            self.head = None
        elif self.missing is not None:
            self.missing -= len(data)
        if self.missing is not None and self.missing <= 0 and not self.over.done():
            self.over.set_result(True)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(exc is None)


def _request(where: Address, method: str, path: str, body: bytes) -> bytes:
    lines = [f"{method} {where.base}{path} HTTP/1.1", f"Host: {where.host}:{where.port}", "Connection: close", "Accept: */*"]
    lines += [f"Authorization: Bearer {where.key}"] if where.key else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def ask(
    where: Address, method: str, path: str, values: dict[str, Any] | None = None, *, patience: float, tokens: int = 0
) -> Reply:
    """Send one request and return the whole reply. Give up after `patience` seconds, or when more arrives than `tokens` tokens need."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[bool] = loop.create_future()
    body = json.dumps(values).encode() if values is not None else b""
    begun, most = perf_counter(), BASE + PER_TOKEN * tokens
    deadline = begun + patience
    context = ssl.create_default_context() if where.secure else None
    try:
        async with asyncio.timeout(patience):
            source = await _connect(where)
            name = where.host if where.secure else None
            transport, stream = await loop.create_connection(
                lambda: _Stream(over, source, most), sock=source, ssl=context, server_hostname=name
            )
    except TimeoutError:
        return Reply(begun=begun, ended=perf_counter(), fault="silent", message=f"no connection within {patience:g} s")
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message or "unknown"
        return Reply(begun=begun, ended=perf_counter(), fault="refused", message=f"its certificate is not trusted ({reason})")
    except (OSError, ssl.SSLError) as error:
        return Reply(begun=begun, ended=perf_counter(), fault="refused", message=error.strerror or type(error).__name__)
    begun = perf_counter()
    try:
        transport.write(_request(where, method, path, body))
        await asyncio.wait([over], timeout=max(0.0, deadline - begun))
    finally:
        transport.abort()
    ended = perf_counter()
    if stream.flooded:
        return Reply(begun=begun, ended=ended, fault="flooded", message=f"more than {most / 2**20:.0f} MiB for one request")
    received = reply(begun, ended, stream.arrivals, closed=over.done() and over.result(), late=not over.done())
    if received.complete and not received.arrivals and values and values.get("stream"):
        return replace(received, fault="malformed", message="JSON, and no stream of events")
    return received


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


async def ask_all(where: Address, path: str, requests: Sequence[dict[str, Any]], *, patience: float) -> list[Reply]:
    """Send all requests at once, each on its own connection."""
    asked = [ask(where, "POST", path, request, patience=patience, tokens=int(request["max_tokens"])) for request in requests]
    return list(await asyncio.gather(*asked))
