"""Streams of tokens are parsed from the bytes that arrived: cut anywhere, ended early, or malformed."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.run.bench.stream import Malformed, Reply, content, events, reply
from support.scripted_endpoint import END, STREAM, chunk, event, token, usage

WHOLE = STREAM + token("a") + token("é") + chunk(b": a comment\n\n") + token("c d") + usage(3, 7) + END


def cut(data: bytes, places: list[int]) -> list[tuple[float, bytes]]:
    """The bytes in pieces; the clock goes on by one with each."""
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [(float(i), data[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_a_stream_reads_the_same_wherever_its_bytes_are_cut(places: list[int]) -> None:
    found = reply(0.0, 99.0, cut(WHOLE, places), closed=True)
    assert (found.fault, len(found.arrivals), found.claimed, found.prompt) == ("", 3, 3, 7)
    assert found.text_bytes == len("aéc d".encode())
    assert list(found.arrivals) == sorted(found.arrivals)


def test_an_event_arrives_with_its_last_byte() -> None:
    first, second = token("a"), token("b")
    pieces = [(1.0, STREAM + first[:5]), (2.0, first[5:]), (3.0, second), (4.0, END)]
    assert reply(0.0, 4.0, pieces, closed=True).arrivals == (2.0, 3.0)


def test_lines_may_end_as_windows_ends_them_and_events_may_have_two_data_lines() -> None:
    body = b'data: {"choices":\r\ndata: [{"text": "x"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    (_, first), (_, last) = events([(0.0, body)])
    assert (json.loads(first), last) == ({"choices": [{"text": "x"}]}, "[DONE]")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    assert len(reply(0.0, 1.0, [(0.5, head + body)], closed=True).arrivals) == 1


def test_chat_messages_and_reasoning_count_as_text() -> None:
    said = [event({"choices": [{"delta": {key: "x"}}]}) for key in ("content", "reasoning_content", "reasoning")]
    empty = event({"choices": [{"delta": {"role": "assistant"}}]})
    assert len(reply(0.0, 1.0, [(0.5, STREAM + empty + b"".join(said) + END)], closed=True).arrivals) == 3


@pytest.mark.parametrize(
    ("data", "fault", "words"),
    [
        (STREAM + token() + token(), "dropped", "after 2 events"),
        (STREAM + token() + token()[:9], "dropped", "after 1 events"),
        (STREAM + token() + chunk(b"nonsense\n\n") + END, "malformed", "not an event field"),
        (STREAM + token() + chunk(b"data: {oops\n\n") + END, "malformed", "not JSON"),
        (STREAM + b"zz\r\nxx", "malformed", "invalid chunk size"),
        (STREAM + END, "empty", "no event had text"),
        (STREAM + event({"error": {"message": "context\nfull"}}) + END, "status", "context full"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "malformed", "not an HTTP reply"),
        (b"", "dropped", "no reply"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nboom", "status", "boom"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "dropped", ""),
    ],
)
def test_each_fault_has_its_kind_and_message(data: bytes, fault: str, words: str) -> None:
    found = reply(0.0, 1.0, [(0.5, data)] if data else [], closed=False)
    assert found.fault == fault
    assert words in found.message
    assert found.message.isprintable()


def test_silence_is_not_a_dropped_connection() -> None:
    assert reply(0.0, 9.0, [(0.5, STREAM + token())], closed=False, late=True).fault == "silent"
    assert reply(0.0, 9.0, [], closed=False, late=True).fault == "silent"


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_without_a_crash(data: bytes) -> None:
    for pieces, closed in (([(0.5, STREAM + data)], True), ([(0.5, data)], False)):
        assert isinstance(reply(0.0, 1.0, pieces, closed=closed), Reply)


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(Malformed, match="endless"):
        content([(0.0, b"x" * (1 << 21))], closed=False)
