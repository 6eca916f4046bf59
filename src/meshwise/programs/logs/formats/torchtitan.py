"""torchtitan 0.1 to 0.3, and 2024's wps: `step: 10  loss: 7.1  memory: 30.9GiB(65.1%)  tps: 5,321  mfu: 31.5%`, and the lines above."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshwise.programs.logs.arguments import pairs, set_argument
from meshwise.programs.logs.lines import Line
from meshwise.programs.logs.series import Series
from meshwise.runs.numbers import amount
from meshwise.runs.reading import Reading

name = "torchtitan"
order = 50
_ARGUMENTS = {"local_batch_size": "per_device_batch"}
_STEP = re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s+loss:\s*(\S+)(.*)")
_FIGURE = re.compile(r"(\w+):\s*([\d.,]+)([A-Za-z]*)")
"""One figure of a step. Its unit follows without a space: after a space comes the name of the next figure."""
_SIZE = re.compile(r"Model (.+?) size: ([\d,]+) total parameters")
_CHIP = re.compile(r"(?:CUDA|GPU|XPU) capacity: (.+?) with ([\d.]+)\s*GiB")
_BATCH = {
    "per_device_batch": re.compile(r"local batch size:? (\d+)"), "batch": re.compile(r"global batch size:? (\d+)"),
    "seq": re.compile(r"sequence length:? (\d+)"), "accumulation": re.compile(r"gradient accumulation steps:? (\d+)"),
}  # fmt: skip
_MESH = re.compile(r"device mesh with \[([^\]]*)\], \[([\d, ]*)\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: (.*)")
_PIPELINE = re.compile(r"pipeline schedule \S+ with (\d{1,6}) microbatches and (\d{1,6}) stages")
_CHECKPOINTING = re.compile(r"Applied (full|selective)(?:AC)? activation checkpointing", re.IGNORECASE)
_DAY = re.compile(r"^\s*(?:\[\S+\]:?\s*)*(20\d\d-[01]\d-[0-3]\d)[ T]\d\d:")
"""The day that begins a line, behind the rank and '[titan]': it runs from its sources, whose facts have days."""
_DONE = {
    "Async TP is enabled": ("overlap", "tp"),
    "Compiling the loss function with torch.compile": ("loss", "compiled"),
    "Compiling each TransformerBlock with torch.compile": ("compile", "yes"),
}
"""Lines about the recipe, recalled from distributed/tensor_parallel.py, components/loss.py and models/llama3."""
_JSON = re.compile(r'"(\w+)":\s*(\d+)\s*,?\s*$')
_SAME = {axis: axis for axis in ("pp", "tp", "cp", "ep", "dp_shard", "dp_replicate")}
_AXES = _SAME | {"fsdp": "dp_shard", "dp": "dp_shard"}


def matches(head: str) -> bool:
    return bool(re.search(r"\bstep:\s*\d+.{0,20}loss:.*memory:.*\b(?:tps|wps):", head))


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    header = _Header(Series(reading, "torchtitan"))
    for line in lines:
        step = _STEP.search(line.text)
        if step:
            numbers = _figures(step[2], step[3])
            if line.cut or "tokens_per_second_per_device" not in numbers:
                reading.skipped.add("a step cut off" if line.cut else "a step without tps", f"line {line.number}")
            else:
                header.series.step(int(step[1]), f"line {line.number}", numbers)
        else:
            header.read_line(line.text)
    header.series.flush()
    return reading


def _figures(loss: str, rest: str) -> dict[str, float]:
    """Return the figures of a step; its memory is the peak that torch reserved."""
    value = amount(loss, "plain")
    numbers = {"loss": value.value if value else float("nan")}
    fields = {
        "tps": ("tokens_per_second_per_device", 1.0), "wps": ("tokens_per_second_per_device", 1.0), "tflops": ("tflops", 1e12),
        "mfu": ("mfu", 0.01),
    }  # fmt: skip
    for key, digits, unit in _FIGURE.findall(rest):
        if key in fields and (number := amount(digits.rstrip(",."), "plain")):
            field, scale = fields[key]
            numbers[field] = number.value * scale
        elif key == "memory" and (number := amount(f"{digits}{unit}", "bytes", "gib")):
            numbers["memory"] = number.value
    return numbers


@dataclass
class _Header:
    """Reads the lines above the steps into the facts of a series."""

    series: Series
    dim: float = 0.0
    micro_batches: float = 1.0  # pieces into which a pipeline cuts the local batch

    def read_line(self, text: str) -> None:
        series = self.series
        if "release" not in series.texts and (day := _DAY.match(text)):
            series.text("release", day[1])
        for words, (fact, value) in _DONE.items():
            if words in text:
                series.text(fact, value)
        if (size := _SIZE.search(text)) and (number := amount(size[2], "count")):
            series.fact("params", number.value)
            series.text("model", size[1])
            self._set_width(number.value)
        elif chip := _CHIP.search(text):
            series.text("chip", chip[1])
        elif "local batch size" in text:
            self._set_batch({field: float(number[1]) for field, form in _BATCH.items() if (number := form.search(text))})
        elif mesh := _MESH.search(text):
            axes = [axis.strip(" '\"") for axis in mesh[1].split(",")]
            degrees = [int(d) for d in re.findall(r"\d{1,9}", mesh[2])]
            self._set_mesh(dict(zip(axes, degrees, strict=False)))
        elif mesh := _PARALLELISM.search(text):
            self._set_mesh({axis: int(degree) for axis, degree in re.findall(r"(\w+)=(\d{1,9})", mesh[1])})
        elif pipeline := _PIPELINE.search(text):
            self.micro_batches = max(1.0, float(pipeline[1]))
            series.fact("vpp", max(1.0, float(pipeline[2]) // max(1.0, series.facts.get("pp", 1.0))))
        elif checkpointing := _CHECKPOINTING.search(text):
            series.text("recompute", checkpointing[1].lower())
        else:
            for key, value in _JSON.findall(text) or (pairs(text) if "--" in text or "seq_len" in text else []):
                set_argument(series, _ARGUMENTS.get(key, key), value)
                if key == "dim" and (number := amount(value, "count")):
                    self.dim = number.value

    def _set_width(self, params: float) -> None:
        """Set the widths of a Llama if they explain its exact size; if not, the name of the model decides. The feed-forward width is not
        printed. It follows from params = tables x vocab x dim + layers x (2 dim^2 (1 + kv heads / heads) + 3 dim x ffn + 2 dim) + dim."""
        facts, dim = self.series.facts, self.dim
        layers, heads, vocab = (facts.get(field, 0.0) for field in ("layers", "heads", "vocab"))
        if not (dim and layers and heads and vocab):
            return
        attention = 2 * dim * dim * (1 + facts.get("kv_heads", heads) / heads)
        for tables in (2, 1):
            ffn = ((params - dim - tables * vocab * dim) / layers - attention - 2 * dim) / (3 * dim)
            if ffn.is_integer() and dim <= ffn <= 8 * dim:
                self.series.fact("hidden", dim)
                self.series.fact("ffn", ffn)
                return

    def _set_batch(self, batch: dict[str, float]) -> None:
        """Set the batch. The micro-batches of a pipeline accumulate gradients in the same way as gradient accumulation steps."""
        if self.micro_batches > 1 and "per_device_batch" in batch:
            batch["mbs"] = batch.pop("per_device_batch") / self.micro_batches
            batch["accumulation"] = batch.get("accumulation", 1.0) * self.micro_batches
        for field, value in batch.items():
            self.series.fact(field, value)

    def _set_mesh(self, degrees: dict[str, int]) -> None:
        """Set the layout. FSDP gathers parameters again in the backward pass (ZeRO-3) unless there is a pipeline (ZeRO-2)."""
        series, self.micro_batches = self.series, 1.0
        axes = {_AXES[axis]: degree for axis, degree in degrees.items() if axis in _AXES}
        shard, replicate = axes.pop("dp_shard", 1), axes.pop("dp_replicate", 1)
        total = shard * replicate
        for axis, degree in axes.items():
            series.fact(axis, degree)
            total *= 1 if axis == "ep" else degree
        series.fact("dp", shard * replicate)
        series.fact("devices", total)
        if shard * replicate > 1:
            kind = "ddp" if shard == 1 else "hsdp" if replicate > 1 else "fsdp"
            series.text("sharding", kind + " zero2" * (shard > 1 and axes.get("pp", 1) > 1))
