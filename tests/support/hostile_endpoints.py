"""Endpoints that would hang, flood, crash or deceive a client: each misbehaves at the first request, or in the middle of a measurement."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from support.scripted_endpoint import END, STREAM, Script, Writer, chunk, event, plain, token, usage

KEY = "sk-Tr0ub4dor-and-3-correct-horses"
ESCAPE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r\nsecond line"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Misbehave = Callable[[Writer], Awaitable[None]]


async def forever(writer: Writer, data: bytes, gap: float = 0.0) -> None:
    while not writer.is_closing():
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(gap)


def once(data: bytes) -> Misbehave:
    async def send(writer: Writer) -> None:
        writer.write(data)
        await writer.drain()

    return send


def then(first: bytes, data: bytes, gap: float = 0.0) -> Misbehave:
    """Send `first`, then `data` until the client leaves."""

    async def send(writer: Writer) -> None:
        writer.write(first)
        await forever(writer, data, gap)

    return send


async def silence(writer: Writer) -> None:
    while not writer.is_closing():
        await asyncio.sleep(0.05)


async def reset(writer: Writer) -> None:
    assert writer.transport
    writer.write(STREAM + token())
    await writer.drain()
    writer.transport.abort()


def answer(values: dict[str, Any]) -> bytes:
    body = json.dumps(values).encode()
    return JSON + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def error(message: str, status: str = "500 X") -> bytes:
    body = json.dumps({"error": {"message": message}}).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


HUGE = 10**400
FAULTS: dict[str, Misbehave] = {
    "silence": silence,
    "a trickle of headers": then(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.02),
    "a trickle of a body": then(JSON + b"Content-Length: 100000\r\n\r\n", b" ", 0.02),
    "pings": then(STREAM, chunk(b": ping\n\n"), 0.02),
    "slow endless tokens": then(STREAM, token(), 0.02),
    "fast endless tokens": then(STREAM, 1000 * token()),
    "a flood": then(b"", b"\0" * 65536),
    "a flood of line breaks": then(STREAM, chunk(b"\n" * 60000)),
    "a gigabyte of JSON": then(JSON + b"Content-Length: 1000000000\r\n\r\n[", b"[],[],[],[]," * 5000),
    "a chunk of 64 MB": then(STREAM + b"4000000\r\n", b"data: x" * 9000),
    "a chunk without end": then(STREAM + b"fffffffffffff\r\n", b":" * 60000),
    "headers without end": then(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 5000),
    "one endless line": then(STREAM, chunk(b"data: " + b"x" * 60000)),
    "an event of 2 MB": once(STREAM + chunk(b"data: " + b"9" * 2**21 + b"\n\n") + END),
    "a status of 5,000 digits": once(b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n"),
    "a chunk size of 5,000 digits": once(STREAM + b"f" * 5000 + b"\r\n"),
    "a negative chunk size": once(STREAM + b"-5\r\nhello"),
    "a length of 5,000 digits": once(JSON + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}"),
    "100 Continue without end": then(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "NaN": once(STREAM + event({"choices": [{"text": "x"}], "timings": {"predicted_ms": float("nan"), "cache_n": float("inf")}}) + token()
        + event({"usage": {"completion_tokens": float("nan"), "prompt_tokens": float("-inf")}}) + END),
    "numbers of 400 digits": once(STREAM + token() + event({"choices": [{"text": "x"}], "timings": {"predicted_ms": HUGE, "cache_n": HUGE},
        "usage": {"completion_tokens": HUGE, "prompt_tokens": HUGE, "prompt_tokens_details": {"cached_tokens": HUGE}}}) + END),
    "half surrogate pairs": once(STREAM + token("\ud800") + event({"error": {"message": "\udfff" + ESCAPE}}) + END),
    "escape codes": once(error(ESCAPE)),
    "escape codes in an event": once(STREAM + token() + event({"error": {"message": ESCAPE}}) + END),
    "escape codes as a model": once(answer({"data": [{"id": ESCAPE}]})),
    "the key in pieces": once(error(f"your key begins {KEY[:9]} and ends {KEY[9:]}", "500 " + KEY)),
    "the key backwards": once(error(f"{KEY[::-1]} {KEY.upper()}")),
    "the key as a model": once(answer({"data": [{"id": KEY[5:]}]})),
    "brackets 100,000 deep": once(JSON + b"\r\n" + b"[" * 100_000),
    "no HTTP": once(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "compressed": once(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\0\xff\xff"),
    "a redirect": once(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"),
    "a reset": reset,
}  # fmt: skip


class Hostile:
    """An endpoint that misbehaves at the first request, or (`late`) at the first one that is measured."""

    def __init__(self, fault: str, *, late: bool) -> None:
        self.fault, self.late, self.good = FAULTS[fault], late, Script()

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
            )
            asked: dict[str, Any] = json.loads(await reader.readexactly(size)) if size else {}
            if self.late and head.startswith(b"GET"):
                plain(writer, 200, {"data": [{"id": "scripted"}]})
            elif self.late and int(asked["max_tokens"]) <= 2:
                writer.write(STREAM + token() + token() + usage(2, 8) + END)
            else:
                await self.fault(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
