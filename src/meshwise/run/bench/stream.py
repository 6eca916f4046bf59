"""Parse a recorded stream after its end, so that no timestamp waits: bytes with arrival times -> HTTP -> server-sent events."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

Arrival = tuple[float, bytes]  # seconds of a monotonic clock, and the bytes that arrived then
Fault = Literal["", "dropped", "malformed", "status", "silent", "refused", "empty", "flooded"]
DONE_EVENT = "[DONE]"
MOST_LINE, MOST_HEAD, MOST_SIZE_LINE = 1 << 20, 1 << 16, 1 << 10
"""Bytes of an event, of headers, and of the line before a chunk, at most."""
MAX_INTERIM_REPLIES = 20  # replies such as 100 Continue before the reply itself, at most
MAX_BODY_BYTES = 1 << 22  # bytes of a reply that is not a stream, at most
MAX_TOKEN_COUNT = 2**53  # counts from here on are no counts of tokens
STATUS = re.compile(rb"HTTP/1\.[0-9] ([1-5][0-9][0-9])(?: |\r|$)")
CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
SIZE = re.compile(r"[0-9]{1,15}", re.ASCII)


class Malformed(ValueError):
    """Bytes that are not valid HTTP or server-sent events."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply to one request. Times are seconds of the client's clock."""

    begun: float
    ended: float
    status: int = 0
    fault: Fault = ""
    message: str = ""  # the endpoint's error message, or the reason of a fault
    arrivals: tuple[float, ...] = ()  # arrival times of events with text
    text_bytes: int = 0  # bytes of text in all events
    claimed: int | None = None  # generated tokens by the endpoint's count
    prompt: int | None = None
    cached: int = 0  # prompt tokens that came from a cache
    timings: dict[str, float] | None = None  # timings that llama.cpp reports
    body: dict[str, Any] | None = None  # the JSON of a reply that is not a stream

    @property
    def complete(self) -> bool:
        return not self.fault

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.begun


@dataclass(frozen=True)
class Head:
    """Status line and headers of a reply."""

    status: int
    headers: dict[str, str]
    end: int  # bytes before the body, those of interim replies included

    @property
    def length(self) -> int | None:
        """Bytes of the body, if they are stated and it is not chunked."""
        text = self.headers.get("content-length", "")
        return int(text) if SIZE.fullmatch(text) and not self.chunked else None

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()


def head_of(data: "bytes | bytearray") -> Head | None:
    """Return the head of a reply, after any interim ones such as 100 Continue; None if it has not arrived whole."""
    begin = interim = 0
    while (end := data.find(b"\r\n\r\n", begin)) >= 0:
        head = Head(status_of(bytes(data[begin:end])), _headers(bytes(data[begin:end])), end + 4)
        if head.status >= 200:
            return head
        begin, interim = end + 4, interim + 1
        if interim > MAX_INTERIM_REPLIES:
            raise Malformed("endless interim replies")
    if len(data) > MOST_HEAD:
        raise Malformed("endless headers")
    return None


def status_of(head: bytes) -> int:
    """Return the status of a reply; a code has three digits."""
    match = STATUS.match(head)
    if not match:
        raise Malformed(f"not an HTTP reply: {head[:40]!r}")
    return int(match[1])


def _headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.strip().lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in pairs}


@dataclass(frozen=True)
class Content:
    """The body of a reply in pieces, each with its arrival time."""

    status: int
    headers: dict[str, str]
    pieces: tuple[Arrival, ...]
    whole: bool  # whether all bytes that its headers announce arrived


def content(arrivals: Sequence[Arrival], closed: bool) -> Content:
    """Return status, headers and body of an HTTP/1.1 reply; chunks are taken apart. `closed`: the connection was closed properly."""
    held, first, head = bytearray(), 0, None
    while head is None:
        if first == len(arrivals):
            raise Malformed("the reply ends within its headers") if held else Malformed("no reply")
        held += arrivals[first][1]
        first += 1
        # a head ends with a line break: looking at every byte of a trickle would take the square of its length
        if b"\n" in arrivals[first - 1][1] or len(held) > MOST_HEAD:
            head = head_of(held)
    pieces = [(arrivals[first - 1][0], bytes(held[head.end :])), *arrivals[first:]]
    if head.chunked:
        chunks = _Chunks()
        parts = [(when, part) for when, data in pieces for part in chunks.take(data)]
        return Content(head.status, head.headers, tuple(parts), chunks.over)
    size = sum(len(data) for _, data in pieces)
    return Content(head.status, head.headers, tuple(pieces), closed if head.length is None else size >= head.length)


class _Chunks:
    """Takes a chunked body apart (RFC 9112, 7.1), one arrival after the other."""

    def __init__(self) -> None:
        self.line = bytearray()
        """The part of a size line that has arrived."""
        self.need = 0
        """Bytes of the chunk that are missing."""
        self.inside = self.over = False

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield the parts of the body in this arrival."""
        at = 0
        while at < len(data) and not self.over:
            if self.need:
                part = data[at : at + self.need]
                self.need -= len(part)
                at += len(part)
                yield part
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            self.line += data[at:stop]
            at = stop
            if len(self.line) > MOST_SIZE_LINE:
                raise Malformed("a chunk has an endless size")
            if end >= 0:
                self._size(bytes(self.line))
                self.line.clear()

    def _size(self, line: bytes) -> None:
        digits = line.split(b";")[0].strip()
        if self.inside:
            if digits:
                raise Malformed("a chunk is longer than its stated size")
            self.inside = False
            return
        if not CHUNK_SIZE.fullmatch(digits):
            raise Malformed(f"invalid chunk size {digits[:20]!r}")
        self.need = int(digits, 16)
        self.inside, self.over = True, self.need == 0


def events(pieces: Sequence[Arrival]) -> Iterator[tuple[float, str]]:
    """Yield the data of every event and the arrival time of its last line (WHATWG HTML, 9.2). Comments and other fields are skipped."""
    held, data, length = bytearray(), list[str](), 0
    for when, piece in pieces:
        *lines, rest = piece.split(b"\n")
        for part in lines:
            line = (bytes(held) + part).removesuffix(b"\r")
            held.clear()
            if not line and data:
                yield when, "\n".join(data)
                data, length = [], 0
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
                length += len(line)
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise Malformed(f"not an event field: {line[:40].decode('utf-8', 'replace')!r}")
        held += rest
        if len(held) > MOST_LINE or length > MOST_LINE:
            raise Malformed("endless line")
    if data or held.strip():
        yield pieces[-1][0] if pieces else 0.0, "\n".join(data) or held.decode("utf-8", "replace")


def reply(begun: float, ended: float, arrivals: Sequence[Arrival], *, closed: bool, late: bool = False) -> Reply:
    """Return the reply to one request. `late`: the client gave up because it took too long."""
    try:
        received = content(arrivals, closed)
    except Malformed as error:
        fault: Fault = "silent" if late else "dropped" if not arrivals else "malformed"
        return Reply(begun=begun, ended=ended, fault=fault, message=printable(str(error)))
    kind = received.headers.get("content-type", "")
    if "text/event-stream" in kind and received.status == 200:
        return _stream_reply(begun, ended, received, late)
    if sum(len(data) for _, data in received.pieces) > MAX_BODY_BYTES:
        return Reply(
            begun=begun,
            ended=ended,
            status=received.status,
            fault="flooded",
            message=f"more than {MAX_BODY_BYTES >> 20} MiB of JSON",
        )
    text = b"".join(data for _, data in received.pieces).decode("utf-8", "replace")
    body = _json_object(text)
    if received.status != 200:
        return Reply(begun=begun, ended=ended, status=received.status, fault="status", message=_message(body, text), body=body)
    if body is None or not received.whole:
        fault = "silent" if late else "dropped" if not received.whole else "malformed"
        return Reply(begun=begun, ended=ended, status=200, fault=fault, message=printable(text), body=body)
    return Reply(begun=begun, ended=ended, status=200, body=body, claimed=_count(body, "completion_tokens"))


def _stream_reply(begun: float, ended: float, received: Content, late: bool) -> Reply:
    times: list[float] = []
    text_bytes, claimed, prompt, cached, done = 0, None, None, 0, False
    timings: dict[str, float] | None = None
    fault: Fault = ""
    message = ""
    try:
        for when, data in events(received.pieces):
            if data.strip() == DONE_EVENT:
                done = True
                break
            event = _json_object(data)
            if event is None:
                # an incomplete last line is the fault of a dropped connection, not of a malformed event
                if not received.whole and when == received.pieces[-1][0]:
                    break
                raise Malformed(f"event data is not JSON: {data[:60]!r}")
            if event.get("error"):
                fault, message = "status", _message(event, data)
                break
            text = _text(event)
            if text:
                times.append(when)
                text_bytes += len(text.encode("utf-8", "replace"))  # JSON may hold half of a surrogate pair
            if not ("usage" in event or "timings" in event):
                continue
            claimed = _count(event, "completion_tokens", claimed)
            prompt = _count(event, "prompt_tokens", prompt)
            timings = _timings(event) or timings
            cached = _cached(event, cached)
    except Malformed as error:
        fault, message = "malformed", printable(str(error))
    if not fault and not done and not received.whole:
        fault, message = "silent" if late else "dropped", f"after {len(times)} events"
    elif not fault and not times:
        fault, message = "empty", "no event had text"
    return Reply(
        begun=begun, ended=times[-1] if times and not fault else ended, status=received.status, fault=fault, message=message,
        arrivals=tuple(times), text_bytes=text_bytes, claimed=claimed, prompt=prompt, cached=cached, timings=timings,
    )  # fmt: skip


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        values: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], values) if isinstance(values, dict) else None


def _text(table: dict[str, Any]) -> str:
    """Return the text of an event: a completion, a chat message, or reasoning before the answer."""
    choices = table.get("choices")
    first: object = cast(list[object], choices)[0] if isinstance(choices, list) and choices else {}
    if not isinstance(first, dict):
        return ""
    values = cast(dict[str, Any], first)
    delta = cast(dict[str, Any], values["delta"]) if isinstance(values.get("delta"), dict) else {}
    parts = (values.get("text"), delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning"))
    return "".join(part for part in parts if isinstance(part, str))


def _count(table: dict[str, Any], key: str, known: int | None = None) -> int | None:
    usage = table.get("usage")
    value = cast(dict[str, Any], usage).get(key) if isinstance(usage, dict) else None
    return value if _is_count(value) else known


def _cached(table: dict[str, Any], known: int) -> int:
    usage = table.get("usage")
    details = cast(dict[str, Any], usage).get("prompt_tokens_details") if isinstance(usage, dict) else None
    value = cast(dict[str, Any], details).get("cached_tokens") if isinstance(details, dict) else None
    return value if _is_count(value) and value > known else known


def _timings(table: dict[str, Any]) -> dict[str, float] | None:
    timings = table.get("timings")
    if not isinstance(timings, dict):
        return None
    numbers = {name: value for name, value in cast(dict[str, Any], timings).items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if abs(value) < MAX_TOKEN_COUNT}  # neither NaN nor 400 digits


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_COUNT


def _message(body: dict[str, Any] | None, text: str) -> str:
    """Return the endpoint's error message, shortened."""
    error = (body or {}).get("error")
    inner = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error
    return printable(inner if isinstance(inner, str) and inner else text)


def printable(text: str) -> str:
    """Return the first 200 characters of a text in one line, without escape codes and half surrogate pairs."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:1000]).split())[:200]
