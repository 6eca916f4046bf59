"""Traces in one JSON document: results of `vllm bench serve --save-detailed` and of GuideLLM, a list of requests, spans of one export."""

from collections.abc import Iterator
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.replay.traces import events
from meshwise.replay.traces.request import Row, seconds_of, tokens_of

Table = dict[str, Any]
VLLM_KEYS = ("start_times", "input_lens", "output_lens")


def kind_of(document: object) -> str:
    """Return whose document it is."""
    table = cast(Table, document) if isinstance(document, dict) else {}
    if "input_lens" in table:
        return "vLLM results"
    return "GuideLLM results" if "benchmarks" in table else "OpenTelemetry spans" if "resourceSpans" in table else "JSON"


def rows(document: object, name: str) -> list[Row]:
    """Return the requests of a document in the order of their start."""
    return sorted(_rows(document, name), key=lambda row: row.seconds)


def _rows(document: object, name: str) -> Iterator[Row]:
    if isinstance(document, list):
        for number, one in enumerate(cast(list[object], document), 1):
            yield _row(one, number, name)
        return
    table = cast(Table, document) if isinstance(document, dict) else {}
    if "input_lens" in table:
        yield from _vllm(table, name)
    elif "benchmarks" in table:
        yield from _guidellm(table, name)
    elif "resourceSpans" in table:
        yield from events.spans(table, 1, name)
    else:
        raise UserError(f"{name}: JSON of no known trace; expected results of vLLM or GuideLLM, spans, or a list of requests")


def _row(one: object, number: int, name: str) -> Row:
    if not isinstance(one, dict):
        raise UserError(f"{name}, request {number}: expected an object")
    table, where = cast(Table, one), f"{name}, request {number}"
    if "attributes" in table:
        found = list(events.spans(table, number, where))
        if not found:
            raise UserError(f"{where}: a span without gen_ai.usage.input_tokens and output_tokens")
        return found[0]
    return events.request(table, number, where)


def _vllm(table: Table, name: str) -> Iterator[Row]:
    """Yield the requests of vLLM's own results."""
    columns = [table.get(key) for key in VLLM_KEYS]
    if not all(isinstance(column, list) for column in columns):
        raise UserError(
            f"{name}: vLLM's results without start_times; run 'vllm bench serve --save-detailed' of a version that has them"
        )
    for number, (start, prompt, output) in enumerate(zip(*cast(list[list[object]], columns), strict=False), 1):
        where = f"{name}, request {number}"
        yield Row(number, seconds_of(start, where), tokens_of(prompt, "prompt", where), tokens_of(output, "output", where))


def _guidellm(table: Table, name: str) -> Iterator[Row]:
    """Yield the requests of every benchmark of a GuideLLM report; later ones follow in time."""
    for bench in (cast(Table, one) for one in cast(list[object], table["benchmarks"]) if isinstance(one, dict)):
        found = bench.get("requests", [])
        groups = cast(Table, found).values() if isinstance(found, dict) else [found]
        every = (one for group in groups if isinstance(group, list) for one in cast(list[object], group))
        for number, one in enumerate(every, 1):
            where = f"{name}, request {number}"
            facts = cast(Table, one) if isinstance(one, dict) else {}
            if not facts.get("prompt_tokens") or not facts.get("output_tokens"):  # a request that failed
                continue
            yield events.request(facts, number, where)
