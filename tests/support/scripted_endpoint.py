"""An endpoint that follows a script: it answers correctly, slowly, wrongly, or not at all."""

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter
Answer = Callable[[Writer, dict[str, Any]], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(values: dict[str, Any]) -> bytes:
    return chunk(b"data: " + json.dumps(values).encode() + b"\n\n")


def token(text: str = "word") -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


def usage(tokens: int, prompt: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": prompt}})


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def words(asked: dict[str, Any]) -> int:
    return len(str(asked.get("prompt", "")).split())


@dataclass
class Script:
    """Seconds before the first token and between tokens, and the fault to cause."""

    first: float = 0.0
    gap: float = 0.0
    fault: str = ""
    claim: int | None = None
    """Tokens it says it generated, whatever it did."""
    key: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, writer: Writer, asked: dict[str, Any]) -> None:
        writer.write(STREAM)
        await asyncio.sleep(self.first)
        count = int(asked["max_tokens"])
        for i in range(count):
            if i:
                await asyncio.sleep(self.gap)
            if count > 2 and i == count // 2 and await self.broken(writer):
                return
            writer.write(token())
        writer.write(usage(count if self.claim is None else self.claim, words(asked)) + END)

    async def broken(self, writer: Writer) -> bool:
        """A fault in the middle of a stream."""
        if self.fault == "drop":
            assert writer.transport
            await writer.drain()
            writer.transport.abort()
        elif self.fault == "malformed":
            writer.write(chunk(b"this is no event\n\n") + END)
        elif self.fault == "json":
            writer.write(chunk(b"data: {not json}\n\n") + END)
        elif self.fault == "stall":
            await asyncio.sleep(30)
        return self.fault in ("drop", "malformed", "json", "stall")

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
            )
            asked: dict[str, Any] = json.loads(await reader.readexactly(size)) if size else {}
            self.seen.append(asked)
            if self.key and f"Bearer {self.key}".encode() not in head:
                plain(writer, 401, {"error": {"message": f"the key is {self.key}, not yours"}})
            elif head.startswith(b"GET"):
                plain(writer, 200, {"data": [{"id": "scripted"}]})
            elif self.fault == "never":
                await asyncio.sleep(30)
            elif self.fault == "500" and int(asked["max_tokens"]) > 2:
                plain(writer, 500, {"error": {"message": "the model\nfell over"}})
            elif self.fault == "strict" and "ignore_eos" in asked:
                plain(writer, 400, {"error": {"message": "unknown field ignore_eos"}})
            else:
                await self.answer(writer, asked)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def plain(writer: Writer, status: int, values: dict[str, Any]) -> None:
    body = json.dumps(values).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


@contextmanager
def serving(handler: Callable[..., Any], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run a server in a thread, and yield its port."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(handler, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:

        async def end() -> None:
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.05)

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
