"""Megatron-LM and Megatron-DeepSpeed: the lines of training_log, `iteration ... | elapsed time ...`, and the arguments above."""

import re
from collections.abc import Iterable
from functools import lru_cache

from meshwise.programs.logs.arguments import Recipe, read_arguments, read_release
from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import amount, number_or_nan
from meshwise.runs.reading import Reading
from meshwise.units import MIB

name = "megatron"
order = 50
_ITERATION = re.compile(r"\biteration:?\s+(\d+)\s*/\s*(\d+)\s*\|(.*)")
_FACT = re.compile(
    r"using world size: (\d+)|data-parallel size: (\d+)|tensor-model-parallel size: (\d+)|pipeline-model-parallel size: (\d+)"
)
_FACTS = ("devices", "dp", "tp", "pp")
_MEMORY = re.compile(r"memory \(MB\).*?max allocated: ([\d.]+)")
_KEYS = {
    "elapsed time per iteration (ms)": ("seconds", 1e-3), "elapsed time per iteration (s)": ("seconds", 1.0),
    "throughput per gpu (tflop/s/gpu)": ("tflops", 1e12), "tflops": ("tflops", 1e12), "tflops/gpu": ("tflops", 1e12),
    "samples per second": ("samples_per_second", 1.0), "tokens per gpu per second": ("tokens_per_second_per_device", 1.0),
    "tokens per gpu per second (tgs)": ("tokens_per_second_per_device", 1.0), "global batch size": ("batch", 1.0),
    "lm loss": ("loss", 1.0), "seqlen": ("seq", 1.0), "curriculum seqlen": ("seq", 1.0),
    "number of nan iterations": ("nans", 1.0), "consumed samples": ("consumed_samples", 1.0),
    "consumed tokens": ("consumed_tokens", 1.0),
}  # fmt: skip


def matches(head: str) -> bool:
    return bool(re.search(r"\biteration\s+\d+\s*/\s*\d+\s*\|.*elapsed time per iteration", head)) or (
        "tensor_model_parallel_size ..." in head and "world_size ..." in head
    )


@lru_cache(maxsize=256)
def _known(key: str) -> tuple[str, float] | None:
    """Return the field of a key as it is printed, with its factor."""
    return _KEYS.get(" ".join(key.lower().split()))


def step_of(text: str) -> tuple[int, dict[str, float]] | None:
    """Return the number and the figures of an iteration line; None if it is not one, or was cut off before its time."""
    match = _ITERATION.search(text)
    if match is None or len(match[1]) > 15:
        return None
    numbers: dict[str, float] = {}
    for part in match[3].split("|"):
        key, _, value = part.rpartition(":")
        known = _known(key)
        number = amount(value, "plain") if known else None
        if known and number is not None and not number.rest:
            numbers[known[0]] = number.value * known[1]
        elif known and known[0] == "loss" and value.strip().lower() in ("nan", "inf", "-inf"):
            numbers["loss"] = float(value)
    samples, tokens = numbers.pop("consumed_samples", 0.0), numbers.pop("consumed_tokens", 0.0)
    if samples and tokens:
        numbers.setdefault("seq", tokens / samples)
    return (int(match[1]), numbers) if "seconds" in numbers else None


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    series, recipe = Series(reading, "Megatron-LM"), Recipe("megatron", "ep")
    for line in lines:
        text = line.text
        if "iteration" in text and _ITERATION.search(text):
            _add_step(reading, series, line, recipe)
        elif "...." in text:
            read_arguments(series, text)
            recipe.read(text)
        elif "egatron" in text:
            read_release(series, text, r"megatron[._ -]core|mcore")
        elif "world size" in text:
            for groups in _FACT.findall(text):
                for fact, value in zip(_FACTS, groups, strict=True):
                    if value:
                        series.fact(fact, float(value))
        elif "memory (MB)" in text and (memory := _MEMORY.search(text)):
            # Megatron divides by 1024 twice and prints MB; the line comes once, after the first steps.
            series.raise_peak("memory", number_or_nan(memory[1]) * MIB)
        if "deepspeed" in text.lower():
            series.framework = "Megatron-DeepSpeed"
    series.flush()
    return reading


def _add_step(reading: Reading, series: Series, line: Line, recipe: Recipe) -> None:
    step = step_of(line.text)
    whole = line.text.rstrip().endswith("|") or not line.cut
    if step is None or not whole:
        reading.skipped.add("an iteration cut off" if line.cut else "an iteration without a time", f"line {line.number}")
        return
    number, numbers = step
    if "seq" in numbers:
        series.fact("seq", numbers.pop("seq"))
    if "samples_per_second" in numbers and "tflops" in numbers:
        series.framework = "Megatron-DeepSpeed"
    if series.framework == "Megatron-LM":  # the other's arguments of the same names mean less
        recipe.tell(series)
    series.step(number, f"line {line.number}", numbers)
