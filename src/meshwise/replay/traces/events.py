"""Traces as JSON lines: Mooncake's and AIPerf's (milliseconds), GuideLLM's (seconds), AIPerf's records, and OpenTelemetry GenAI spans."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from meshwise.errors import UserError, quoted
from meshwise.replay.traces import text
from meshwise.replay.traces.request import Row, seconds_of, tokens_of

TIMES = {
    "timestamp": 0.0, "timestamp_ms": 1e-3, "arrival_time": 1.0, "arrived_at": 1.0, "start_time": 1.0, "request_start_time": 1.0,
    "time": 1.0, "seconds": 1.0, "request_start_ns": 1e-9,
}  # fmt: skip
"""Keys of a time, and seconds per unit; 0: milliseconds where it is a whole number, seconds otherwise."""
PROMPTS = ("input_length", "prompt_tokens", "input_tokens", "prompt_len", "input_sequence_length", "prompt", "isl")
OUTPUTS = (
    "output_length", "output_tokens", "completion_tokens", "output_len", "output_sequence_length", "generated_tokens", "output", "osl",
)  # fmt: skip
BLOCKS = ("hash_ids", "blocks", "block_hash_ids")
SPAN_PROMPTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
SPAN_OUTPUTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")

Table = dict[str, Any]


def looks_like(head: str) -> bool:
    """Return whether the first line of a file is a JSON object."""
    return head.startswith("{") and head.endswith("}")


def kind_of(head: str) -> str:
    """Return whose lines these are, by the keys of the first."""
    if "resourceSpans" in head or "gen_ai." in head:
        return "OpenTelemetry spans"
    if "hash_ids" in head:
        return "Mooncake JSONL"
    return "AIPerf records" if "request_start_ns" in head else "JSONL"


def sorted_by_start(head: str) -> bool:
    """Return whether lines are written when requests end, so that their starts are not in order."""
    return kind_of(head) in ("OpenTelemetry spans", "AIPerf records")


def rows(path: Path) -> Iterator[Row]:
    """Yield the requests of a file of JSON lines."""
    for number, line in text.lines(path):
        where = f"{path.name}, row {number}"
        try:
            table: object = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{where}: {quoted(line)}; expected a JSON object") from None
        if not isinstance(table, dict):
            raise UserError(f"{where}: {quoted(line)}; expected a JSON object")
        found = cast(Table, table)
        if "resourceSpans" in found or _is_span(found):
            yield from spans(found, number, where)
        else:
            yield request(found, number, where)


def request(table: Table, number: int, where: str) -> Row:
    """Return the request of one object; its numbers may stand under `metadata` and `metrics`, as AIPerf writes them."""
    flat = {**table, **_inner(table, "metadata"), **_inner(table, "metrics")}
    key = next((name for name in TIMES if flat.get(name) is not None), None)
    if key is None:
        raise UserError(f"{where}: no time; expected one of {', '.join(TIMES)}")
    value, scale = flat[key], TIMES[key]
    if not scale:
        scale = 1e-3 if isinstance(value, int) else 1.0
    prompt, output = (next((flat[name] for name in names if name in flat), None) for names in (PROMPTS, OUTPUTS))
    ids: object = next((flat[name] for name in BLOCKS if flat.get(name)), list[int]())
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in cast(list[object], ids)):
        raise UserError(f"{where}: blocks {quoted(cast(object, ids))}; expected a list of whole numbers")
    return Row(
        number, seconds_of(value, where, scale), tokens_of(_value(prompt), "prompt", where),
        tokens_of(_value(output), "output", where), tuple(cast(list[int], ids)),
    )  # fmt: skip


def _inner(table: Table, name: str) -> Table:
    found = table.get(name)
    return cast(Table, found) if isinstance(found, dict) else {}


def _value(cell: object) -> object:
    """Return the value of a metric: {'value': 12, 'unit': 'tokens'} or the number itself."""
    return cast(Table, cell).get("value") if isinstance(cell, dict) else cell


# OpenTelemetry.


def _is_span(table: Table) -> bool:
    return "attributes" in table and ("start_time" in table or "startTimeUnixNano" in table)


def spans(table: Table, number: int, where: str) -> Iterator[Row]:
    """Yield the requests among spans: those with a usage of tokens, as OTLP or as the SDK's own export. Other spans are skipped."""
    for span in _spans(table):
        facts = _attributes(span.get("attributes"))
        prompt = next((facts[key] for key in SPAN_PROMPTS if key in facts), None)
        output = next((facts[key] for key in SPAN_OUTPUTS if key in facts), None)
        if prompt is None or output is None:
            continue
        start, scale = (span["startTimeUnixNano"], 1e-9) if "startTimeUnixNano" in span else (span.get("start_time"), 1.0)
        yield Row(number, seconds_of(start, where, scale), tokens_of(prompt, "prompt", where), tokens_of(output, "output", where))


def _spans(table: Table) -> Iterator[Table]:
    if "resourceSpans" not in table:
        yield table
        return
    for resource in _tables(table["resourceSpans"]):
        for scope in _tables(resource.get("scopeSpans", ())):
            yield from _tables(scope.get("spans", ()))


def _tables(values: object) -> Iterable[Table]:
    return [cast(Table, one) for one in cast(list[object], values) if isinstance(one, dict)] if isinstance(values, list) else []


def _attributes(found: object) -> Mapping[str, object]:
    """Return attributes by key: of OTLP's list of keys and typed values, or of a plain object."""
    if isinstance(found, dict):
        return cast(Table, found)
    pairs = ((one.get("key"), one.get("value")) for one in _tables(found))
    return {str(key): next(iter(cast(Table, value).values()), None) for key, value in pairs if isinstance(value, dict)}
