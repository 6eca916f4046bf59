"""nanotron: `iteration: 5 / 100 | elapsed_time_per_iteration_ms: 2.3K | ...`; figures are rough: it rounds to three digits."""

import re
from collections.abc import Iterable

from meshwise.programs.logs.arguments import Recipe, read_arguments
from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import amount
from meshwise.runs.reading import Reading

name = "nanotron"
order = 50
_ARGUMENTS = {"batch_accumulation_per_replica": "accumulation"}
_ITERATION = re.compile(r"iteration:\s*(\d{1,15})\s*/\s*\d+\s*\|(.*)")
_KEYS = {
    "elapsed_time_per_iteration_ms": ("seconds", 1e-3), "time_per_iteration_ms": ("seconds", 1e-3),
    "tokens_per_sec": ("tokens_per_second", 1.0), "tokens_per_sec_per_gpu": ("tokens_per_second_per_device", 1.0),
    "global_batch_size": ("batch", 1.0), "lm_loss": ("loss", 1.0), "model_tflops_per_gpu": ("tflops", 1e12),
    "hardware_tflops_per_gpu": ("hardware_tflops", 1e12), "cuda_max_memory_reserved": ("reserved", 1.0),
    "cuda_max_memory_allocated": ("memory", 1.0), "cuda_memory_allocated": ("allocated", 1.0),
}  # fmt: skip


def matches(head: str) -> bool:
    return bool(
        re.search(r"iteration:\s*\d+\s*/\s*\d+\s*\|.*elapsed_time_per_iteration_ms:|iteration:.*\|\s*tokens_per_sec:", head)
    )


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    series, recipe = Series(reading, "nanotron"), Recipe("nanotron", "accumulates")
    series.rough |= {
        "seconds", "tokens_per_second", "tokens_per_second_per_device", "batch", "memory", "reserved", "tflops",
    }  # fmt: skip
    for line in lines:
        match = _ITERATION.search(line.text)
        if match is None:
            if "=" in line.text:
                read_arguments(series, line.text, _ARGUMENTS)
                recipe.read(line.text)
            continue
        numbers = _numbers(match[2])
        if line.cut or not {"seconds", "tokens_per_second"} <= set(numbers):
            reading.skipped.add(f"an iteration {'cut off' if line.cut else 'without time and rate'}", f"line {line.number}")
            continue
        recipe.tell(series)
        series.step(int(match[1]), f"line {line.number}", numbers)
    series.flush()
    return reading


def _numbers(text: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for part in text.split("|"):
        key, _, value = part.partition(":")
        known = _KEYS.get(key.strip())
        number = amount(value, "count") if known else None
        if known and number is not None:
            numbers[known[0]] = number.value * known[1]
        elif known and known[0] == "loss" and value.strip().lower() in ("nan", "inf"):
            numbers["loss"] = float(value)
    if "memory" not in numbers and "reserved" in numbers:
        numbers["memory"] = numbers["reserved"]
    return numbers
