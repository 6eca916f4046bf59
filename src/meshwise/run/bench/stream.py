"""Parse a recorded stream: bytes with arrival times -> HTTP -> server-sent events, after it has ended.

Nothing is parsed while tokens arrive, so that reading one does not delay the timestamp of the next.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

Arrival = tuple[float, bytes]
"""Seconds of a monotonic clock, and the bytes that arrived then."""
Fault = Literal["", "dropped", "malformed", "status", "silent", "refused", "empty"]
DONE = "[DONE]"
MOST_LINE = 1 << 20


class Malformed(ValueError):
    """Bytes that are not valid HTTP or server-sent events."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply to one request. Times are seconds of the client's clock."""

    begun: float
    ended: float
    status: int = 0
    fault: Fault = ""
    message: str = ""
    """The endpoint's error message, or the reason of a fault."""
    arrivals: tuple[float, ...] = ()
    """Arrival times of events with text."""
    text_bytes: int = 0
    """Bytes of text in all events."""
    claimed: int | None = None
    """Generated tokens by the endpoint's count."""
    prompt: int | None = None
    cached: int = 0
    """Prompt tokens that came from a cache."""
    timings: dict[str, float] | None = None
    """Timings that llama.cpp reports."""
    body: dict[str, Any] | None = None
    """The JSON of a reply that is not a stream."""

    @property
    def complete(self) -> bool:
        return not self.fault

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.begun


def status_of(head: bytes) -> int:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Malformed(f"not an HTTP reply: {head[:40]!r}")
    return int(words[1])


def _headers(head: bytes) -> dict[str, str]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.strip().lower().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in pairs}


@dataclass(frozen=True)
class Content:
    """The body of a reply in pieces, each with the arrival time of its last byte."""

    status: int
    headers: dict[str, str]
    pieces: tuple[Arrival, ...]
    whole: bool
    """Whether all bytes that its headers announce arrived."""


def content(arrivals: Sequence[Arrival], closed: bool) -> Content:
    """Return status, headers and body of an HTTP/1.1 reply; chunks are joined. `closed`: the connection was closed properly."""
    held, first = b"", 0
    while b"\r\n\r\n" not in held:
        if first == len(arrivals):
            raise Malformed("the reply ends within its headers") if held else Malformed("no reply")
        held += arrivals[first][1]
        first += 1
        if len(held) > MOST_LINE:
            raise Malformed("endless headers")
    head, _, rest = held.partition(b"\r\n\r\n")
    status, headers = status_of(head), _headers(head)
    pieces = [(arrivals[first - 1][0], rest), *arrivals[first:]]
    if "chunked" in headers.get("transfer-encoding", "").lower():
        chunks, whole = _chunks(pieces)
        return Content(status, headers, tuple(chunks), whole)
    length = headers.get("content-length", "")
    size = sum(len(data) for _, data in pieces)
    return Content(status, headers, tuple(pieces), size >= int(length) if length.isdecimal() else closed)


def _chunks(pieces: Sequence[Arrival]) -> tuple[list[Arrival], bool]:
    """Return the chunks of a chunked body (RFC 9112, 7.1), including an incomplete last one, and whether the whole body arrived."""
    chunks: list[Arrival] = []
    held, at, need = b"", 0, -1
    for when, data in pieces:
        held, at = held[at:] + data, 0
        while True:
            if need < 0:
                line = held.find(b"\r\n", at)
                if line < 0:
                    break
                digits = held[at:line].split(b";")[0].strip()
                if digits or line > at:
                    try:
                        need = int(digits, 16)
                    except ValueError:
                        raise Malformed(f"invalid chunk size {digits[:20]!r}") from None
                at = line + 2
                if not need:
                    return chunks, True
                continue
            if len(held) - at < need:
                break
            chunks.append((when, held[at : at + need]))
            at, need = at + need, -1
            if held[at : at + 2] not in (b"", b"\r", b"\r\n"):
                raise Malformed("a chunk is longer than its stated size")
    if need > 0:
        chunks.append((pieces[-1][0], held[at:]))
    return chunks, False


def events(pieces: Sequence[Arrival]) -> Iterator[tuple[float, str]]:
    """Yield the data of every event and the arrival time of its last line (WHATWG HTML, 9.2). Comments and other fields are skipped."""
    held, data = b"", list[str]()
    for when, piece in pieces:
        held += piece
        if len(held) > MOST_LINE:
            raise Malformed("endless line")
        *lines, held = held.replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if not line and data:
                yield when, "\n".join(data)
                data = []
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise Malformed(f"not an event field: {line[:40].decode('utf-8', 'replace')!r}")
    if data or held.strip():
        yield pieces[-1][0] if pieces else 0.0, "\n".join(data) or held.decode("utf-8", "replace")


def reply(begun: float, ended: float, arrivals: Sequence[Arrival], *, closed: bool, late: bool = False) -> Reply:
    """Return the reply to one request. `late`: the client gave up because nothing arrived for too long."""
    try:
        received = content(arrivals, closed)
    except Malformed as error:
        fault: Fault = "silent" if late else "dropped" if not arrivals else "malformed"
        return Reply(begun=begun, ended=ended, fault=fault, message=str(error))
    kind = received.headers.get("content-type", "")
    if "text/event-stream" in kind and received.status == 200:
        return _stream_reply(begun, ended, received, late)
    text = b"".join(data for _, data in received.pieces).decode("utf-8", "replace")
    body = _json_object(text)
    if received.status != 200:
        return Reply(begun=begun, ended=ended, status=received.status, fault="status", message=_message(body, text), body=body)
    if body is None or not received.whole:
        fault = "silent" if late else "dropped" if not received.whole else "malformed"
        return Reply(begun=begun, ended=ended, status=200, fault=fault, message=text[:200], body=body)
    return Reply(begun=begun, ended=ended, status=200, body=body, claimed=_count(body, "completion_tokens"))


def _stream_reply(begun: float, ended: float, received: Content, late: bool) -> Reply:
    times: list[float] = []
    text_bytes, claimed, prompt, cached, done = 0, None, None, 0, False
    timings: dict[str, float] | None = None
    fault: Fault = ""
    message = ""
    try:
        for when, data in events(received.pieces):
            if data.strip() == DONE:
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
                text_bytes += len(text.encode())
            if not ("usage" in event or "timings" in event):
                continue
            claimed = _count(event, "completion_tokens", claimed)
            prompt = _count(event, "prompt_tokens", prompt)
            timings = _timings(event) or timings
            cached = _cached(event, cached)
    except Malformed as error:
        fault, message = "malformed", str(error)
    if not fault and not done and not received.whole:
        fault, message = "silent" if late else "dropped", f"after {len(times)} events"
    elif not fault and not times:
        fault, message = "empty", "no event had text"
    return Reply(
        begun=begun,
        ended=times[-1] if times and not fault else ended,
        status=received.status,
        fault=fault,
        message=message,
        arrivals=tuple(times),
        text_bytes=text_bytes,
        claimed=claimed,
        prompt=prompt,
        cached=cached,
        timings=timings,
    )


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
    return value if isinstance(value, int) and value >= 0 else known


def _cached(table: dict[str, Any], known: int) -> int:
    usage = table.get("usage")
    details = cast(dict[str, Any], usage).get("prompt_tokens_details") if isinstance(usage, dict) else None
    value = cast(dict[str, Any], details).get("cached_tokens") if isinstance(details, dict) else None
    return value if isinstance(value, int) and value > known else known


def _timings(table: dict[str, Any]) -> dict[str, float] | None:
    timings = table.get("timings")
    if not isinstance(timings, dict):
        return None
    return {name: float(value) for name, value in cast(dict[str, Any], timings).items() if isinstance(value, int | float)}


def _message(body: dict[str, Any] | None, text: str) -> str:
    """Return the endpoint's error message, shortened."""
    error = (body or {}).get("error")
    inner = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error
    return " ".join(str(inner or text).split())[:200]
