"""vLLM: the result of `vllm bench serve` as text or as the JSON of --save-result, and the log of its server."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from meshwise.programs.logs.lines import Line
from meshwise.runs.numbers import number_or_nan
from meshwise.runs.reading import Reading, Sample
from meshwise.runs.run import Run

name = "vllm"
order = 12
_RESULT = "Serving Benchmark Result"
_LABEL = re.compile(r"^([A-Z][\w ()/.]+?):\s+([\d.]+|inf)\s*$")
_RATES = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs, Waiting: (\d+) reqs"
)
_FACT = re.compile(
    r"""['"]?\b(model|tensor_parallel_size|pipeline_parallel_size|max_concurrency|quantization)\b['"]?\s*[=:]\s*['"]?([\w./-]+)"""
)
_FACTS = {
    "model": "model", "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "max_concurrency": "users",
    "quantization": "weights",
}  # fmt: skip
_KEYS = {
    "Successful requests": "completed", "Total input tokens": "total_input_tokens", "Total generated tokens": "total_output_tokens",
    "Output token throughput (tok/s)": "output_throughput", "Mean TTFT (ms)": "mean_ttft_ms", "P95 TTFT (ms)": "p95_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms", "Maximum request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate", "Model": "model_id",
}  # fmt: skip
"""Labels of the text by the keys of the JSON."""
MIN_LINES = 2  # lines of a log with as many running requests from which on their median is a run
MAX_OBJECT_CHARS = 1 << 20


def matches(head: str) -> bool:
    return _RESULT in head or bool(_RATES.search(head)) or ('"mean_ttft_ms"' in head and '"output_throughput"' in head)


def read(lines: Iterable[Line]) -> Reading:
    """Read every result and the rates of the log; facts of the server hold for all that follows."""
    reading, facts, held = Reading(name), dict[str, Any](), dict[str, str]()
    rates: dict[int, Sample] = {}
    start, text = "", ""
    for line in lines:
        if line.text.lstrip().startswith("{") or text:
            text = _object(reading, text + line.text, f"line {line.number}")
            continue
        if _RESULT in line.text:
            _add(reading, held, start, facts)
            held, start = {}, f"line {line.number}"
        elif start and (label := _LABEL.match(line.text.strip())):
            held[_KEYS.get(label[1], label[1])] = label[2]
        elif rate := _RATES.search(line.text):
            if int(rate[3]) and not int(rate[4]):
                rates.setdefault(int(rate[3]), Sample()).add(float(rate[2]))
        elif "args" in line.text or "config" in line.text or "Namespace(" in line.text:
            facts |= {_FACTS[key]: _plain(value) for key, value in _FACT.findall(line.text) if value != "None"}
    _add(reading, held, start, facts)
    for users, sample in sorted(rates.items()):
        if sample.seen >= MIN_LINES:
            where = f"{sample.seen} lines with {users} running requests"
            numbers = {"users": float(users), "decode": sample.median()}
            reading.add_run(_run(where, {**facts, **numbers}))
    return reading


def _run(where: str, values: dict[str, Any]) -> Run:
    """Return a run of vLLM; where no quantization is stated, its weights are what the model's name says, or bf16 (`--dtype auto`)."""
    model = str(values.get("model", ""))
    named = next((form for form in ("fp8", "awq", "gptq", "nvfp4") if form in model.lower()), "bf16")
    return Run.told(where, {"engine": "vllm", "weights": named, **values}, section=model)


def _plain(value: str) -> Any:
    return float(value) if value.isdecimal() else value


def _object(reading: Reading, text: str, where: str) -> str:
    """Add the run of a JSON result once its text is whole, and return the text that is still open."""
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > MAX_OBJECT_CHARS:
            reading.skipped.add("an object that is not JSON", where)
            return ""
        return text
    if isinstance(values, dict):
        stated = cast(dict[str, Any], values)
        _add(reading, {key: str(value) for key, value in stated.items() if isinstance(value, str | int | float)}, where, {})
    return ""


def _add(reading: Reading, values: Mapping[str, str], where: str, facts: Mapping[str, Any]) -> None:
    """Add the run of one result: mean lengths, load, throughput and latencies."""

    def number(key: str) -> float:
        return number_or_nan(values.get(key, ""))

    requests = number("completed")
    if not values or not requests > 0:
        return
    found = {
        "requests": requests, "prompt": number("total_input_tokens") / requests, "output": number("total_output_tokens") / requests,
        "decode": number("output_throughput"), "ttft": number("mean_ttft_ms") / 1000, "ttft_p95": number("p95_ttft_ms") / 1000,
        "tpot": number("mean_tpot_ms") / 1000, "users": number("max_concurrency"), "rate": number("request_rate"),
    }  # fmt: skip
    told = {key: value for key, value in found.items() if 0 < value < float("inf")}
    if "users" in told:  # both are stated where a rate is bounded by users
        told.pop("rate", None)
    model = {"model": values["model_id"]} if values.get("model_id") else {}
    reading.add_run(_run(where, {**facts, **model, **told}))
