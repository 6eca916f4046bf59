"""Traces in the formats that services and benchmarks write are read as seconds, prompt, output and blocks."""

import gzip
import json
import time
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.replay.traces.facts import facts
from meshwise.replay.traces.request import Request
from meshwise.replay.traces.trace import open_trace

TWO = [Request(0.0, 100, 10), Request(1.5, 200, 20)]
NANOS = 1_700_000_000_000_000_000


def span(start: int, prompt: int, output: int) -> dict[str, object]:
    usage = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output}
    listed = [{"key": key, "value": {"intValue": str(value)}} for key, value in usage.items()]
    return {"name": "chat", "startTimeUnixNano": str(start), "attributes": listed}


def record(start: int, prompt: int, output: int) -> str:
    metrics = {"input_sequence_length": {"value": prompt, "unit": "tokens"}, "output_sequence_length": {"value": output}}
    return json.dumps({"metadata": {"request_start_ns": start}, "metrics": metrics})


def sdk_span(start: str, prompt: int, output: int) -> str:
    usage = {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output}
    return json.dumps({"name": "chat", "start_time": start, "attributes": usage})


FILES = {
    "our CSV": "seconds,prompt,output\n5,100,10\n6.5,200,20\n",
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,100,10\n2023-11-16 18:17:05.4799600,200,20\n",
    "Azure 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,100,10\n2024-05-10 00:00:01.509930+00:00,200,20\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,GPT-4,100,10,110,API log\n6.5,GPT-4,200,20,220,API log\n",
    "AIPerf trace": '{"timestamp": 0, "input_length": 100, "output_length": 10}\n'
    '{"timestamp": 1500, "input_length": 200, "output_length": 20}\n',
    "GuideLLM trace": '{"timestamp": 0.5, "prompt_tokens": 100, "output_tokens": 10}\n'
    '{"timestamp": 2.0, "prompt_tokens": 200, "output_tokens": 20}\n',
    # written when requests end: the longer one comes first
    "AIPerf records": record(NANOS + 1_500_000_000, 200, 20) + "\n" + record(NANOS, 100, 10) + "\n",
    "vLLM results": json.dumps({"input_lens": [200, 100], "output_lens": [20, 10], "start_times": [11.5, 10.0], "ttfts": [0.1, 0.2]}),
    "GuideLLM results": json.dumps({"benchmarks": [{"requests": {"successful": [
        {"start_time": 10.0, "prompt_tokens": 100, "output_tokens": 10}, {"start_time": 11.5, "prompt_tokens": 200, "output_tokens": 20}],
        "errored": [{"start_time": 12.0, "prompt_tokens": None, "output_tokens": None}]}}]}, indent=1),
    "OTLP": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [
        span(NANOS + 1_500_000_000, 200, 20), span(NANOS, 100, 10), {"name": "tool", "startTimeUnixNano": "1", "attributes": []}]}]}]}),
    "spans of the SDK": sdk_span("2025-01-01T00:00:00.000000Z", 100, 10) + "\n" + sdk_span("2025-01-01T00:00:01.500000Z", 200, 20) + "\n",
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_two_requests(name: str, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text(FILES[name])
    found = list(open_trace(file))
    assert [one[1:] for one in found] == [one[1:] for one in TWO]
    assert [one.at for one in found] == pytest.approx([0.0, 1.5], abs=1e-5)


def test_mooncakes_lines_are_milliseconds_with_blocks(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl.gz"
    rows = [{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]},
            {"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2353]}]  # fmt: skip
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    first, second = open_trace(file)
    assert first == Request(0.0, 6955, 52, (46, 47))
    assert second[1:] == (6472, 26, (46, 2353))
    assert second.at == pytest.approx(3.053)


LOG = (
    '10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] "POST /v1/chat/completions HTTP/1.1" 200 512 '
    "prompt_tokens=100 completion_tokens=10 request_time=1.0\n"
    '10.0.0.1 - - [10/Oct/2025:13:55:36 +0000] "GET /health HTTP/1.1" 200 2\n'
    '10.0.0.1 - - [10/Oct/2025:13:55:38 +0000] "POST /v1/chat/completions HTTP/1.1" 200 99 '
    "prompt_tokens=200 completion_tokens=20 request_time=1.5\n"
)


def test_a_log_of_nginx_states_ends_and_durations(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text(LOG)
    assert list(open_trace(file, read="nginx")) == TWO


def test_a_log_by_a_pattern_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.log"
    file.write_text("t=5 in=100 out=10\nhello\nt=6.5 in=200 out=20\n")
    assert list(open_trace(file, read=r"t=(?P<time>\S+) in=(?P<prompt>\d+) out=(?P<output>\d+)")) == TWO
    with pytest.raises(UserError, match="no group"):
        open_trace(file, read="t=(.*)")
    with pytest.raises(UserError, match="not a pattern"):
        open_trace(file, read="t=(")
    with pytest.raises(UserError, match="no line matches"):
        open_trace(file, read="nginx")


def test_requests_of_one_second_are_spread_over_it(tmp_path: Path) -> None:
    file = tmp_path / "own.log"
    file.write_text("t=5 in=1 out=1\nt=5 in=1 out=1\nt=6 in=1 out=1\n")
    found = open_trace(file, read=r"t=(?P<time>\S+) in=(?P<prompt>\d+) out=(?P<output>\d+)")
    assert [one.at for one in found] == [0.0, 0.5, 1.0]


# What is wrong with a trace is one line with the number of the row.

BAD = {
    "not sorted": ("seconds,prompt,output\n5,1,1\n4,1,1\n", "row 3: it is 1.000 s earlier"),
    "negative tokens": ("seconds,prompt,output\n5,-1,1\n", "row 2: -1 prompt tokens"),
    "a billion tokens": ("seconds,prompt,output\n5,1,1\n6,1,1000000000\n", "row 3: 1,000,000,000 output tokens"),
    "no tokens": ("seconds,prompt,output\n5,,1\n", "row 2: no prompt tokens"),
    "half a token": ("seconds,prompt,output\n5,1.5,1\n", "row 2: prompt '1.5'"),
    "no number": ("seconds,prompt,output\nyesterday,1,1\n", "row 2: time 'yesterday'"),
    "not a time": ("seconds,prompt,output\nnan,1,1\n", "row 2: time 'nan'"),
    "a gap of years": ("seconds,prompt,output\n0,1,1\n99999999,1,1\n", "row 3: 1,157 days after the row before"),
    "too few cells": ("seconds,prompt,output\n5,1\n", "row 2: 2 cells"),
    "no column": ("when,prompt,output\n5,1,1\n", "no column of time"),
    "no JSON": ('{"timestamp": 1, "input_length": 5, "output_length": 5}\nhello\n', "row 2: 'hello'"),
    "no time": ('{"input_length": 5, "output_length": 5}\n', "row 1: no time"),
    "blocks in words": ("seconds,prompt,output,blocks\n0,1,1,a b\n", "row 2: blocks 'a b'"),
    "an endless range": ("seconds,prompt,output,blocks\n0,1,1,0-99999999999\n", "row 2: blocks"),
    "ranges of gigabytes": ("seconds,prompt,output,blocks\n" + "0,1,1,0-30000000 0-30000000\n", "row 2: blocks"),
    "years": ("seconds,prompt,output\n" + "".join(f"{6 * 86400 * i},1,1\n" for i in range(99)), "row 64: more than"),
    "empty": ("", "has no requests"),
    "a header alone": ("seconds,prompt,output\n", "has no requests"),
    "prose": ("It was a dark and stormy night\n", "row 1: 'It was"),
    "other JSON": ('{"a":\n 1}\n', "JSON of no known trace"),
    "vLLM without starts": (json.dumps({"input_lens": [1], "output_lens": [1]}), "without start_times"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_with_the_row(name: str, tmp_path: Path) -> None:
    text, words = BAD[name]
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        list(open_trace(file))
    assert words in str(raised.value)
    assert "trace" in str(raised.value)


def test_a_file_that_is_too_large_or_damaged_is_refused(tmp_path: Path) -> None:
    sparse, damaged, bomb = tmp_path / "large.csv", tmp_path / "damaged.csv.gz", tmp_path / "line.csv"
    with sparse.open("wb") as file:
        file.truncate(10 * 10**9)
    with pytest.raises(UserError, match=r"has 10\.0 GB; expected at most 4 GiB"):
        open_trace(sparse)
    damaged.write_bytes(gzip.compress(b"seconds,prompt,output\n" + b"1,1,1\n" * 10_000)[:-60])
    with pytest.raises(UserError, match=r"row .*: damaged"):
        list(open_trace(damaged))
    bomb.write_bytes(b"seconds,prompt,output\n" + b"1" * (5 * 2**20))
    with pytest.raises(UserError, match="row 2: longer than 4 MiB"):
        list(open_trace(bomb))
    with pytest.raises(UserError, match="cannot read"):
        open_trace(tmp_path)


def test_small_files_that_stand_for_gigabytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty lines that compress a thousandfold, and more different blocks than the caches of `facts` may hold."""
    monkeypatch.setattr("meshwise.replay.traces.text.MAX_TRACE_BYTES", 2**20)
    lines = tmp_path / "lines.csv.gz"
    lines.write_bytes(gzip.compress(b"seconds,prompt,output\n" + b"\n" * 2**19))
    with pytest.raises(UserError, match="too many lines"):
        list(open_trace(lines))
    monkeypatch.setattr("meshwise.replay.traces.facts.MAX_DISTINCT_BLOCKS", 1000)
    blocks = tmp_path / "blocks.csv"
    blocks.write_text("seconds,prompt,output,blocks\n0,600,1,0-600\n1,600,1,601-1200\n")
    with pytest.raises(UserError, match="different blocks"):
        facts(open_trace(blocks))


@pytest.mark.parametrize("line", [
    "[a] prompt_tokens=1 " * 20_000 + "completion_tokens=1 rt=" * 20_000, "[" * 400_000, "[x] " + "prompt_tokens= " * 30_000,
], ids=["words", "brackets", "names"])  # fmt: skip
def test_a_line_that_a_visitor_wrote_is_read_in_linear_time(line: str, tmp_path: Path) -> None:
    """What a browser sends as its name stands in the log: the pattern of nginx took a minute for 40 kB of it."""
    (tmp_path / "access.log").write_text(line + "\n")
    begun = time.process_time()
    with pytest.raises(UserError):
        list(open_trace(tmp_path / "access.log", read="nginx"))
    assert time.process_time() - begun < 5
