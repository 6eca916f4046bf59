"""Measurements of served models: rows of a table that say what was run, on what, and how fast it was or what it took."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from meshwise.calibrate.tables import Skipped, read_lines
from meshwise.catalogue.chips import GENERIC_CPU, Chip, Link, find_card, find_chip
from meshwise.catalogue.engines import Runtime, find_runtime, runtimes
from meshwise.cost.serve.buffers import Footprint, footprints
from meshwise.cost.serve.cache import CacheRequest, layer_caches
from meshwise.cost.serve.demand import Demand, Rig, demand
from meshwise.cost.serve.placement import Placement, split_layers, split_rows, split_tensors
from meshwise.cost.work import Serve
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.formats import Weights, as_gguf, find_format, weights
from meshwise.models.model import Model
from meshwise.units import GIB

Row = Mapping[str, str]

RATES = ("decode_tok_s", "prefill_tok_s")
SIZES = {"weights": ("weights_mib", "model_mib"), "cache": ("kv_mib", "context_mib"), "compute": ("compute_mib",)}
"""What one device holds: columns of a log, or of a dry run, in MiB."""
NEEDED = ("model", "quant")
SHORTEST = 512
"""The context of a run that names none and did not start: llama.cpp's default of its time."""

LATER = ("instruct", "chat", "it", "hf", "base", "gguf")
"""Words behind a model's name that change nothing of its shape."""
FIRST_LLAMA = {"30b": "33b"}
"""What Meta called 30B has 32.5 billion parameters, and the preset the name of its size."""


ILL = 3.0
"""A prompt that takes so many times as long as the same prompt in another format on the same devices tells of the machine, not the model:
one A100 SXM of May 2024 read prompts in F16 at 604 tokens/s, and in Q4_K_M at 5,948."""


@dataclass(frozen=True)
class ServeCase:
    """One measured run. What was not printed is NaN."""

    row_id: str
    table: str
    model: Model
    weights: Weights
    rig: Rig
    runtime: Runtime
    placement: Placement
    work: Serve
    held: CacheRequest
    decode: float
    prefill: float
    memory: float
    """Bytes on all devices together, as the log prints them: without the driver's context."""
    ran: bool
    sizes: Mapping[str, float]
    """MiB on one device by kind, where the row is of a log or a dry run."""
    device: int = 0
    cut_off: bool = False
    """Sizes are cut off to whole MiB."""
    ill: bool = False
    """Its prompt was ILL times slower than in another format: neither fitted to nor counted in a mean error."""
    assumed: tuple[str, ...] = ()

    @property
    def chip(self) -> Chip:
        return self.rig.chips[0]

    @property
    def group(self) -> tuple[object, ...]:
        """What a fit leaves out together: one card, and how many of it."""
        return (self.chip.key, len(self.rig.chips))

    @cached_property
    def demand(self) -> Demand:
        return demand(self.model, self.weights, self.placement, self.rig, self.runtime, self.work)

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        return footprints(self.model, self.runtime, self.placement, self.held, flash=self.work.flash)

    @property
    def fits(self) -> bool:
        return all(
            device.bytes - device.context <= self.runtime.room(chip)
            for device, chip in zip(self.footprints[1:], self.rig.chips, strict=True)
        )


def serves(path: Path) -> bool:
    """Whether a table is of served models: known by its columns."""
    header = read_lines(path)[0]
    return bool({*RATES, *(column for columns in SIZES.values() for column in columns)} & set(header))


def serve_cases(path: Path) -> tuple[list[ServeCase], list[Skipped]]:
    """Every row of a table as a case, or the reason why it is none."""
    header, lines = read_lines(path)
    for column in (*NEEDED, "n_devices" if "n_devices" in header else "n_gpus"):
        if column not in header:
            raise UserError(f"{path.name}: the column '{column}' is missing")
    used: list[ServeCase] = []
    skipped: list[Skipped] = []
    for number, (line_number, line) in enumerate(lines, 1):
        if len(line) != len(header):
            raise UserError(f"{path.name}, line {line_number}: {len(line)} fields, where the header has {len(header)}")
        row = dict(zip(header, map(str.strip, line), strict=True))
        row_id = row.get("row_id") or f"{path.stem}-{number}"
        try:
            used.append(_case(row, row_id, path.stem))
        except UserError as error:
            skipped.append(Skipped(row_id, str(error)))
    if not used:
        reason, times = Counter(skip.reason for skip in skipped).most_common(1)[0] if skipped else ("it is empty", 0)
        raise UserError(f"{path.name}: none of its {len(lines)} rows can be priced; {times} of them: {reason}")
    return _told_apart(used), skipped


def _told_apart(cases: list[ServeCase]) -> list[ServeCase]:
    """The same, prompts that were ill marked."""
    best: dict[tuple[object, ...], float] = {}
    for case in cases:
        if case.ran and case.prefill > 0:
            best[_same(case)] = max(best.get(_same(case), 0.0), case.prefill)
    return [replace(case, ill=True) if case.ran and 0 < case.prefill * ILL < best[_same(case)] else case for case in cases]


def _same(case: ServeCase) -> tuple[object, ...]:
    """What two rows share that differ in their format alone."""
    return (*case.group, case.model.name, case.work.prompt, case.work.users, case.placement.split)


def serve_case(row: Row, row_id: str) -> ServeCase:
    """One row that stands in no table."""
    return _case(row, row_id, "")


def _case(row: Row, row_id: str, table: str) -> ServeCase:
    outcome = row.get("outcome", "").lower() or "ok"
    if outcome not in ("ok", "oom"):
        raise UserError(f"outcome is {quoted(outcome)}")
    assumed: list[str] = []
    model, runtime = _model(row.get("model", "")), _runtime(row, assumed)
    stored = _weights(model.source if model.tensors else model.name, row.get("quant", ""), runtime.gguf, runtime.files_by_order)
    rig = _rig(row)
    sizes = {kind: size for kind, columns in SIZES.items() if not math.isnan(size := _number(row, *columns))}
    work = _work(row, bool(sizes), assumed)
    decode, prefill = _number(row, "decode_tok_s"), _number(row, "prefill_tok_s")
    memory = _number(row, "mem_gb") * GIB
    if outcome == "ok" and not sizes and all(map(math.isnan, (decode, prefill, memory))):
        raise UserError("neither a speed nor a memory is stated")
    held = CacheRequest(context=work.context, sequences=work.users, key=work.kv, value=work.kv)
    return ServeCase(
        row_id=row_id,
        table=table,
        model=model,
        weights=stored,
        rig=rig,
        runtime=runtime,
        placement=_placement(row, model, stored, rig, runtime, held),
        work=work,
        held=held,
        decode=decode,
        prefill=prefill,
        memory=memory,
        ran=outcome == "ok",
        sizes=sizes,
        device=_device(row.get("device", "")),
        cut_off="model_mib" in row,
        assumed=tuple(assumed),
    )


def _number(row: Row, *columns: str) -> float:
    for column in columns:
        text = row.get(column, "")
        if text:
            try:
                value = float(text)
            except ValueError:
                raise UserError(f"{column} is {quoted(text)}, not a number") from None
            if not 0 <= value < math.inf:
                raise UserError(f"{column} is {quoted(text)}; expected a number above zero")
            return value
    return math.nan


def _whole(row: Row, *columns: str, default: int) -> int:
    value = _number(row, *columns)
    if math.isnan(value):
        return default
    if value != int(value) or value > 2**31:
        raise UserError(f"{columns[0]} is {value:g}, not a whole number")
    return int(value)


@cache
def _model(name: str) -> Model:
    """A preset by the name that people write: 'Llama 3.1 8B Instruct', 'LLaMA 1 30B'."""
    if name.endswith(".gguf"):
        return find.find_model(name)
    words = name.replace("-", " ").split()
    while words and words[-1].lower() in LATER:
        words.pop()
    if len(words) > 2 and words[0].lower() == "llama" and words[1] == "1":
        words = ["llama", FIRST_LLAMA.get(words[2].lower(), words[2])]
    if not words:
        raise UserError("the model is not stated")
    return find.find_model(name if find.find_preset(name) else "-".join(words))


@cache
def _weights(model: str, quant: str, gguf: bool, by_file: bool) -> Weights:
    found = find.find_model(model)
    if found.tensors:  # a .gguf is in the types that it has
        return weights(found)
    if not quant:
        raise UserError("the quantization is not stated")
    fmt = find_format(quant)
    return weights(found, as_gguf(fmt) if gguf else fmt, by_file=by_file)


def _runtime(row: Row, assumed: list[str]) -> Runtime:
    """The engine; of llama.cpp the build of the row's time, where a date is stated."""
    text = row.get("engine", "").lower()
    if not text or "llama" in text:
        dated = re.search(r"\b(20\d\d-\d\d)", f"{row.get('source', '')} {row.get('date', '')} {row.get('note', '')}")
        builds = sorted(key for key in runtimes() if key.startswith("llama.cpp-"))
        later = [key for key in builds if dated and dated[1] <= key.removeprefix("llama.cpp-")]
        return find_runtime(later[0] if later else "llama.cpp")
    for name in ("vllm", "transformers"):
        if name in text:
            return find_runtime(name)
    # Of another engine this much is known: what runs GGUF files, or on a Mac, is nearer to llama.cpp.
    quant = row.get("quant", "")
    local = (find_format(quant).gguf if quant else False) or find_card(row.get("gpu", "")).kind in ("apple", "cpu")
    found = find_runtime("llama.cpp" if local else "vllm")
    assumed.append(f"engine {quoted(text)} priced as {found.name}")
    return found


def _work(row: Row, held_only: bool, assumed: list[str]) -> Serve:
    prompt, output = _whole(row, "prompt_len", default=0), _whole(row, "gen_len", default=0)
    users = max(1, _whole(row, "batch_or_concurrency", "n_seq", default=1))
    noted = re.search(r"\bn_ctx (\d+)", row.get("note", ""))
    context = _whole(row, "n_ctx", default=int(noted[1]) if noted else 0) or prompt + output or SHORTEST
    if held_only or not prompt + output:
        prompt, output = 0, context
    if prompt + output > context:
        # The program drops old tokens when its context is full, and goes on.
        prompt = min(prompt, context)
        output = context - prompt
    flash = {"on": True, "yes": True, "off": False, "no": False}.get(row.get("flash_attn", "").lower())
    return Serve(prompt=prompt, output=output, users=users, context=context, kv=row.get("kv_type") or "f16", flash=flash)


def _device(name: str) -> int:
    """CUDA0, RPC1 and Metal are devices; CPU, Host and CUDA_Host are the host: 0 here, devices from 1."""
    number = "".join(c for c in name if c.isdecimal())
    return 1 + int(number or 0) if number or name == "Metal" else 0


def _rig(row: Row) -> Rig:
    devices, hosts = _whole(row, "n_gpus", "n_devices", default=1), _whole(row, "n_hosts", default=1)
    if not devices or not hosts or devices % hosts or devices > 4096:
        raise UserError(f"{devices} devices in {hosts} hosts")
    # A dry run has devices of no kind; what they hold does not depend on it.
    chip = _capped(find_card(row["gpu"]), row.get("note", "")) if row.get("gpu") else _anything(row)
    words = row.get("link", "").lower()
    named = re.search(r"([\d.]+)\s*(gbe|gbps|gbit|g\b)", words)
    network = Link(name=words, bandwidth=float(named[1]) * 1e9 / 8) if named else chip.network
    link = (chip.link or chip.bridge) if "nvlink" in words else chip.host if "pcie" in words else chip.link or chip.host
    owners = tuple(i * hosts // devices for i in range(devices))
    cpu = find_chip(GENERIC_CPU)
    return Rig(chips=(chip,) * devices, hosts=owners, cpu=cpu, link=link, network=network if hosts > 1 else None)


def _anything(row: Row) -> Chip:
    if "n_devices" not in row:
        raise UserError("the card is not stated")
    return find_chip("a100-80gb-sxm")


def _capped(chip: Chip, note: str) -> Chip:
    """A card that is held below its power: clocks, and with them FLOP/s, fall as about the square root of it (220 W of 350: 0.8)."""
    caps = re.search(r"power caps W ([\d/]+)", note)
    least = min((float(cap) for cap in caps[1].split("/") if cap), default=0.0) if caps else 0.0
    if not least or not chip.tdp or least >= chip.tdp:
        return chip
    return replace(chip, flops={kind: rate * (least / chip.tdp) ** 0.5 for kind, rate in chip.flops.items()})


def _placement(row: Row, model: Model, stored: Weights, rig: Rig, runtime: Runtime, held: CacheRequest) -> Placement:
    """The split that the row names; the engine's default where it names none."""
    split, n = row.get("split", "").lower(), len(rig.chips)
    caches = layer_caches(model, runtime, held)
    if runtime.gguf:
        if split == "row":
            return split_rows(stored, caches, [1.0] * n)
        if split in ("", "none", "layer"):
            return split_layers(stored, caches, [1.0] * n)
        raise UserError(f"llama.cpp has no split {quoted(split)}")
    tp, pp = _degrees(split, n)
    return split_tensors(model, stored, caches, tp, pp)


def _degrees(split: str, n: int) -> tuple[int, int]:
    """'tp4 pp2', 'tensor', 'pipeline': tensor parallelism over all devices where it says nothing."""
    found: dict[Literal["tp", "pp"], int] = {}
    for axis in ("tp", "pp"):
        number = re.search(rf"{axis}\W*(\d+)", split)
        if number:
            found[axis] = int(number[1])
    pp = found.get("pp") or (n if split in ("pipeline", "layer") else 1)
    tp = found.get("tp") or n // pp
    if tp * pp != n:
        raise UserError(f"tp {tp} and pp {pp} are not {n} devices")
    return tp, pp
