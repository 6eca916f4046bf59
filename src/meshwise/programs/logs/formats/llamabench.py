"""llama-bench (llama.cpp's tools/llama-bench): `-o jsonl`, `-o json`, `-o csv`, and the Markdown table of `-o md`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from meshwise.programs.logs.formats import csv
from meshwise.programs.logs.lines import Line
from meshwise.runs.numbers import amount, number_or_nan
from meshwise.runs.reading import Reading
from meshwise.runs.run import Run

name = "llama-bench"
order = 10
COLUMNS = frozenset({"n_prompt", "n_gen", "avg_ts"})  # columns by which `-o csv` is recognized
_TEST = re.compile(r"(pp|tg)(\d+)(?:\+tg(\d+))?(?:\s*@\s*d(\d+))?")
_SPEED = re.compile(r"([\d.]+)\s*(?:±\s*[\d.]+)?")


def matches(head: str) -> bool:
    first = next((line for line in head.splitlines() if line.strip()), "")
    return (
        ('"avg_ts":' in head and '"n_prompt":' in head)
        or bool(re.search(r"\|\s*model\s*\|.*\|\s*test\s*\|\s*t/s\s*\|", head))
        or set(csv.split(first, csv.delimiter(first))) >= COLUMNS
    )


def read(lines: Iterable[Line]) -> Reading:
    stream = iter(lines)
    first = next((line for line in stream if line.text.strip()), None)
    if first is None:
        return Reading(name)
    delimiter = csv.delimiter(first.text)
    header = csv.split(first.text, delimiter)
    if set(header) >= COLUMNS:
        return _read_csv(header, delimiter, csv.records(stream))
    return _read_text(chain([first], stream))


def _read_text(lines: Iterable[Line]) -> Reading:
    """Read JSON objects and Markdown tables anywhere in the text; build lines and warnings between them are ignored."""
    reading, held, header = Reading(name), "", list[str]()
    for line in lines:
        text = line.text.strip()
        if text.startswith("|"):
            cells = [cell.strip() for cell in text.strip("|").split("|")]
            if "test" in cells and "t/s" in cells:
                header = cells
            elif header and not set(text) <= set("|-: "):
                _add_cells(reading, header, cells, line)
            continue
        held = "" if text in ("[", "]") else held + text
        if held.startswith("{") and held.rstrip(",").endswith("}"):
            _add_object(reading, held.rstrip(","), line)
            held = ""
        elif not held.startswith("{") or len(held) > 1 << 16:
            held = ""
    if held:
        reading.skipped.add("an object cut off", "the end of the file")
    return reading


def _read_csv(header: Sequence[str], delimiter: str, lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    for line in lines:
        cells = csv.split(line.text, delimiter)
        if len(cells) != len(header):
            reason = "a row cut off" if line.cut else "a row with more or fewer cells than its header"
            reading.skipped.add(reason, f"line {line.number}")
            continue
        _add_values(reading, dict(zip(header, cells, strict=True)), line)
    return reading


def _add_object(reading: Reading, text: str, line: Line) -> None:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        reading.skipped.add("a line that is not JSON", f"line {line.number}")
        return
    if isinstance(values, dict):
        _add_values(reading, cast(dict[str, object], values), line)


def _add_values(reading: Reading, values: Mapping[str, object], line: Line) -> None:
    where = f"line {line.number}"
    keys = ("n_prompt", "n_gen", "avg_ts", "model_size", "model_n_params", "n_depth")
    amounts = {key: amount(str(values.get(key, "")), "plain") for key in keys}
    speed = amounts["avg_ts"]
    if speed is None or not speed.value > 0:
        reading.skipped.add("a row without speed", where)
        return
    prompt, output, depth = (int(a.value) if a else 0 for a in (amounts["n_prompt"], amounts["n_gen"], amounts["n_depth"]))
    # Tokens generated after `n_depth` tokens in the cache are counted as generated after a prompt of that length.
    numbers = {"prompt": float(prompt or depth), "output": float(output), "users": 1.0}
    numbers["mixed" if prompt and output else "prefill" if prompt else "decode"] = speed.value
    for field, key in (("model_bytes", "model_size"), ("params", "model_n_params")):
        numbers |= {field: a.value} if (a := amounts[key]) and a.value else {}
    devices = str(values.get("gpu_info") or values.get("cpu_info") or "")
    gpus = [part.strip() for part in re.split(r"[,/]", devices) if part.strip()]
    model, split = str(values.get("model_type", "")), str(values.get("split_mode", ""))
    backend = str(values.get("backends", values.get("backend", "")))
    reading.add_run(_run(where, model, numbers, gpus, split, backend))


def _add_cells(reading: Reading, header: Sequence[str], cells: Sequence[str], line: Line) -> None:
    where = f"line {line.number}"
    row = dict(zip(header, cells, strict=False))
    test, speed = _TEST.fullmatch(row.get("test", "")), _SPEED.match(row.get("t/s", ""))
    if len(cells) != len(header) or test is None or speed is None or not number_or_nan(speed[1]) > 0:
        reading.skipped.add("a row cut off" if len(cells) != len(header) else "a row without test and speed", where)
        return
    numbers = {
        "prompt": float(test[2] if test[1] == "pp" else test[4] or 0),
        "output": float(test[2] if test[1] == "tg" else test[3] or 0),
        "users": 1.0,
    }
    numbers |= {"mixed" if test[3] else "prefill" if test[1] == "pp" else "decode": number_or_nan(speed[1])}
    size, params = amount(row.get("size", ""), "bytes"), amount(row.get("params", ""), "count")
    numbers |= ({"model_bytes": size.value} if size else {}) | ({"params": params.value} if params else {})
    reading.add_run(_run(where, row.get("model", ""), numbers, [], row.get("sm", ""), row.get("backend", "")))


def _run(where: str, model: str, numbers: dict[str, float], gpus: list[str], split: str, backend: str) -> Run:
    """Return a Run; the model name 'llama 8B Q4_K - Medium' holds family, size and quantization."""
    words = model.split(" ", 2)
    quant = words[2].replace(" - Medium", "_M").replace(" - Small", "_S").replace(" - Large", "_L") if len(words) == 3 else ""
    counted = {"devices": float(len(gpus))} if gpus else {}
    texts = {
        "model": " ".join(words[:2]), "weights": quant, "chip": gpus[0] if gpus else "", "split": split,
        "engine": "llama.cpp", "backend": backend,
    }  # fmt: skip
    return Run.told(where, {**numbers, **counted, **texts}, section=model)
