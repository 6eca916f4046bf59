"""DeepSpeed: throughput lines (`RunningAvgSamplesPerSec=..., CurrSamplesPerSec=..., MaxMemAllocated=...`) and the flops profiler."""

import math
import re
from collections.abc import Iterable

from meshwise.programs.logs.arguments import read_arguments
from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import amount, number_or_nan
from meshwise.runs.reading import Reading
from meshwise.runs.run import Run
from meshwise.units import GIB

name = "deepspeed"
order = 60  # after megatron: Megatron-DeepSpeed prints the lines of both
_STEP = re.compile(r"global_step=(\d{1,15})(.*)")
_OLD = re.compile(r"\d+/(\d{1,15}), (.*)")
_RATE = re.compile(r"(RunningAvgSamplesPerSec|CurrSamplesPerSec|SamplesPerSec)=([\d.]+)")
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)\s*GB")
_PIPELINE = re.compile(r"steps:\s*(\d{1,15}) loss:\s*(\S+) iter time \(s\):\s*([\d.]+) samples/sec:\s*([\d.]+)")
_OVERLAP = re.compile(r"overlap_comm[\"']?\s*[=:]\s*(True|False|true|false)\b")
"""In the line about zero_config, as printed before the first step."""
_PROFILE = {
    "world size": ("devices", "count", ""), "data parallel size": ("dp", "count", ""),
    "model parallel size": ("tp", "count", ""), "batch size per gpu": ("per_device_batch", "count", ""),
    "params of model = params per gpu * mp_size": ("params", "count", ""), "fwd latency": ("forward_seconds", "seconds", "s"),
    "iter latency": ("seconds", "seconds", "s"), "samples/second": ("samples_per_second", "plain", ""),
    "flops per gpu = 3 * fwd flops per gpu / iter latency": ("tflops", "flops", "t"),
}  # fmt: skip


def matches(head: str) -> bool:
    return "SamplesPerSec=" in head or "DeepSpeed Flops Profiler" in head or bool(_PIPELINE.search(head))


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    series = Series(reading, "DeepSpeed")
    profile: dict[str, float] | None = None
    for line in lines:
        text = line.text
        if "SamplesPerSec=" in text:
            _add_step(reading, series, line)
        elif pipeline := _PIPELINE.search(text):
            _add_pipeline_step(reading, series, line, pipeline)
        elif "DeepSpeed Flops Profiler" in text:
            profile = {}
        elif profile is not None and ":" in text:
            _read_profile_line(profile, text)
            if text.lower().startswith("samples/second") or "Aggregated Profile" in text:
                _add_profile(reading, series, profile, line)
                profile = None
        elif "...." in text:
            read_arguments(series, text)
        if "overlap_comm" in text and (overlap := _OVERLAP.search(text)):
            series.text("overlap", "reduce" if overlap[1].lower() == "true" else "no-reduce")
    series.flush()
    return reading


def _add_step(reading: Reading, series: Series, line: Line) -> None:
    rates = {key: rate for key, value in _RATE.findall(line.text) if math.isfinite(rate := number_or_nan(value))}
    step = _STEP.search(line.text) or _OLD.search(line.text)
    if step is None or not rates or line.cut:
        reading.skipped.add(f"a throughput line {'cut off' if line.cut else 'without a step'}", f"line {line.number}")
        return
    rate = rates.get("CurrSamplesPerSec", rates.get("RunningAvgSamplesPerSec", rates.get("SamplesPerSec", 0.0)))
    numbers = {"samples_per_second": rate}
    memory = _MEMORY.search(line.text)
    if memory:  # DeepSpeed divides by 1024 three times and prints GB
        numbers["memory"] = number_or_nan(memory[1]) * GIB
    series.step(int(step[1]), f"line {line.number}", numbers)


def _add_pipeline_step(reading: Reading, series: Series, line: Line, match: re.Match[str]) -> None:
    """Read a step of the pipeline engine, which has no throughput timer."""
    values = [amount(text, "plain") for text in match.groups()[1:]]
    if line.cut or values[1] is None or values[2] is None:
        reading.skipped.add("a step cut off", f"line {line.number}")
        return
    loss = values[0].value if values[0] else float("nan")
    figures = {"loss": loss, "seconds": values[1].value, "samples_per_second": values[2].value}
    series.step(int(match[1]), f"line {line.number}", figures)


def _read_profile_line(profile: dict[str, float], text: str) -> None:
    key, _, value = text.rpartition(":")
    known = _PROFILE.get(" ".join(key.lower().split()))
    number = amount(value, known[1], known[2]) if known else None
    if known and number is not None:
        profile[known[0]] = number.value


def _add_profile(reading: Reading, series: Series, profile: dict[str, float], line: Line) -> None:
    if "seconds" not in profile:
        reading.skipped.add("a profile without a step time", f"line {line.number}")
        return
    told = {"framework": "DeepSpeed", **series.texts, **series.facts, **profile, "steps_seen": 1.0}
    reading.add_run(Run.told(f"line {line.number}", told, section="profile"))
