"""torchtitan: `step: 10  loss: 7.1  memory: 30.9GiB(65.1%)  tps: 5,321  tflops: 311.8  mfu: 31.5%`; older versions say wps for tps."""

import re
from collections.abc import Iterable

from meshwise.audit.logs import arguments
from meshwise.audit.logs.lines import Line
from meshwise.audit.logs.numbers import amount
from meshwise.audit.logs.run import Reading
from meshwise.audit.logs.series import Series

name = "torchtitan"
_STEP = re.compile(r"\bstep:\s*(\d{1,15})\s+loss:\s*(\S+)(.*)")
_PART = re.compile(r"(\w+):\s*([\d.,]+)\s*([A-Za-z]*)")
_SIZE = re.compile(r"Model (.+?) size: ([\d,]+) total parameters")
_CHIP = re.compile(r"(?:CUDA|GPU|XPU) capacity: (.+?) with ([\d.]+)\s*GiB")
_START = re.compile(
    r"local batch size:? (\d+), global batch size:? (\d+), sequence length:? (\d+)(?:, gradient accumulation steps:? (\d+))?"
)
_MESH = re.compile(r"device mesh with \[([^\]]*)\], \[([\d, ]*)\]")
_AXES = {
    "pp": "pp",
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "dp_shard": "dp_shard",
    "dp_replicate": "dp_replicate",
    "fsdp": "dp_shard",
    "dp": "dp_shard",
}


def matches(head: str) -> bool:
    return bool(re.search(r"\bstep:\s*\d+.{0,20}loss:.*memory:.*\b(?:tps|wps):", _bare(head)))


def _bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    series = Series(reading, "torchtitan")
    for line in lines:
        step = _STEP.search(line.text)
        if step:
            numbers = _numbers(step[2], step[3])
            if line.cut or "tokens_per_second_per_gpu" not in numbers:
                reading.skipped.add("a step cut off" if line.cut else "a step without tps", f"line {line.number}")
            else:
                series.step(int(step[1]), f"line {line.number}", numbers)
        else:
            _fact(series, line.text)
    series.flush()
    return reading


def _numbers(loss: str, rest: str) -> dict[str, float]:
    value = amount(loss, "plain")
    numbers = {"loss": value.value if value else float("nan")}
    kinds = {
        "tps": ("tokens_per_second_per_gpu", "plain"),
        "wps": ("tokens_per_second_per_gpu", "plain"),
        "mfu": ("mfu", "plain"),
    }
    for key, digits, unit in _PART.findall(rest):
        if key in kinds and (found := amount(digits.rstrip(",."), "plain")):
            numbers[kinds[key][0]] = found.value * (0.01 if key == "mfu" else 1.0)
        elif key == "tflops" and (found := amount(digits.rstrip(",."), "plain")):
            numbers["tflops"] = found.value * 1e12
        elif key == "memory" and (found := amount(f"{digits}{unit}", "bytes", "gib")):
            numbers["memory"] = found.value
    return numbers


def _fact(series: Series, text: str) -> None:
    if (size := _SIZE.search(text)) and (found := amount(size[2], "count")):
        series.fact("params", found.value)
        series.text("model", size[1])
    elif chip := _CHIP.search(text):
        series.text("gpu", chip[1])
    elif start := _START.search(text):
        for name, value in zip(("per_device_batch", "global_batch_seqs", "seq_len", "grad_accum"), start.groups(), strict=True):
            if value:
                series.fact(name, float(value))
    elif mesh := _MESH.search(text):
        axes = [axis.strip(" '\"") for axis in mesh[1].split(",")]
        degrees = [int(d) for d in re.findall(r"\d{1,9}", mesh[2])]
        _mesh(series, dict(zip(axes, degrees, strict=False)))
    elif "--" in text or "seq_len" in text:
        arguments.take(series, text)


def _mesh(series: Series, degrees: dict[str, int]) -> None:
    found = {_AXES[axis]: degree for axis, degree in degrees.items() if axis in _AXES}
    dp = found.pop("dp_shard", 1) * found.pop("dp_replicate", 1)
    total = dp
    for axis, degree in found.items():
        series.fact(axis, degree)
        total *= 1 if axis == "ep" else degree
    series.fact("dp", dp)
    series.fact("n_gpus", total)
