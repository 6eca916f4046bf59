"""llama-bench: `-o jsonl`, `-o json`, `-o csv` and the Markdown table of `-o md`. Formats of llama.cpp's tools/llama-bench."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from meshwise.audit.logs.lines import Line
from meshwise.audit.logs.numbers import amount, figure
from meshwise.audit.logs.run import Reading, Run

name = "llama-bench"
COLUMNS = frozenset({"n_prompt", "n_gen", "avg_ts"})
_TEST = re.compile(r"(pp|tg)(\d+)(?:\+tg(\d+))?(?:\s*@\s*d(\d+))?")
_SPEED = re.compile(r"([\d.]+)\s*(?:±\s*[\d.]+)?")


def matches(head: str) -> bool:
    return ('"avg_ts":' in head and '"n_prompt":' in head) or bool(re.search(r"\|\s*model\s*\|.*\|\s*test\s*\|\s*t/s\s*\|", head))


def read(lines: Iterable[Line]) -> Reading:
    """Objects of JSON or JSONL wherever they stand, and tables wherever they stand; build lines and warnings are passed over."""
    reading, held, header = Reading(name), "", list[str]()
    for line in lines:
        text = line.text.strip()
        if text.startswith("|"):
            cells = [cell.strip() for cell in text.strip("|").split("|")]
            if "test" in cells and "t/s" in cells:
                header = cells
            elif header and not set(text) <= set("|-: "):
                _keep_cells(reading, header, cells, line)
            continue
        held = "" if text in ("[", "]") else held + text
        if held.startswith("{") and held.rstrip(",").endswith("}"):
            _keep_object(reading, held.rstrip(","), line)
            held = ""
        elif not held.startswith("{") or len(held) > 1 << 16:
            held = ""
    if held:
        reading.skipped.add("an object cut off", "the end of the file")
    return reading


def read_rows(header: Sequence[str], rows: Iterator[tuple[Line, list[str]]]) -> Reading:
    """`-o csv`."""
    reading = Reading(name)
    for line, cells in rows:
        if len(cells) != len(header):
            reading.skipped.add("a row cut off" if line.cut else "a row of another width than the header", f"line {line.number}")
            continue
        _keep_values(reading, dict(zip(header, cells, strict=True)), line)
    return reading


def _keep_object(reading: Reading, text: str, line: Line) -> None:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        reading.skipped.add("a line that is no JSON", f"line {line.number}")
        return
    if isinstance(values, dict):
        _keep_values(reading, cast(dict[str, object], values), line)


def _keep_values(reading: Reading, values: Mapping[str, object], line: Line) -> None:
    where = f"line {line.number}"
    found = {
        key: amount(str(values.get(key, "")), "plain")
        for key in ("n_prompt", "n_gen", "avg_ts", "model_size", "model_n_params", "n_depth")
    }
    speed = found["avg_ts"]
    if speed is None or not speed.value > 0:
        reading.skipped.add("no speed", where)
        return
    prompt, output, depth = (int(a.value) if a else 0 for a in (found["n_prompt"], found["n_gen"], found["n_depth"]))
    # Tokens are generated behind those that fill the cache, as behind a prompt.
    numbers = {"prompt": float(prompt or depth), "output": float(output), "users": 1.0}
    numbers |= (
        {"prefill" if prompt and not output else "decode": speed.value} if not (prompt and output) else {"mixed": speed.value}
    )
    numbers |= {
        name: a.value
        for name, key in (("model_bytes", "model_size"), ("params", "model_n_params"))
        if (a := found[key]) and a.value
    }
    gpus = [
        part.strip() for part in re.split(r"[,/]", str(values.get("gpu_info") or values.get("cpu_info") or "")) if part.strip()
    ]
    model = str(values.get("model_type", ""))
    reading.keep(
        _run(
            where, model, numbers, gpus, str(values.get("split_mode", "")), str(values.get("backends", values.get("backend", "")))
        )
    )


def _keep_cells(reading: Reading, header: Sequence[str], cells: Sequence[str], line: Line) -> None:
    where = f"line {line.number}"
    row = dict(zip(header, cells, strict=False))
    test, speed = _TEST.fullmatch(row.get("test", "")), _SPEED.match(row.get("t/s", ""))
    if len(cells) != len(header) or test is None or speed is None or not figure(speed[1]) > 0:
        reading.skipped.add("a row cut off" if len(cells) != len(header) else "no test and speed", where)
        return
    numbers = {
        "prompt": float(test[2] if test[1] == "pp" else test[4] or 0),
        "output": float(test[2] if test[1] == "tg" else test[3] or 0),
        "users": 1.0,
    }
    numbers |= {"mixed" if test[3] else "prefill" if test[1] == "pp" else "decode": figure(speed[1])}
    size, params = amount(row.get("size", ""), "bytes"), amount(row.get("params", ""), "count")
    numbers |= ({"model_bytes": size.value} if size else {}) | ({"params": params.value} if params else {})
    reading.keep(_run(where, row.get("model", ""), numbers, [], row.get("sm", ""), row.get("backend", "")))


def _run(where: str, model: str, numbers: dict[str, float], gpus: list[str], split: str, backend: str) -> Run:
    """'llama 8B Q4_K - Medium' is a kind of model, its size and its quantization."""
    words = model.split(" ", 2)
    quant = words[2].replace(" - Medium", "_M").replace(" - Small", "_S").replace(" - Large", "_L") if len(words) == 3 else ""
    counted = {"n_gpus": float(len(gpus))} if gpus else {}
    texts = {
        "model": " ".join(words[:2]),
        "quant": quant,
        "gpu": gpus[0] if gpus else "",
        "split": split,
        "engine": "llama.cpp",
        "backend": backend,
    }
    return Run(where=where, numbers=numbers | counted, texts={k: v for k, v in texts.items() if v}, section=model)
