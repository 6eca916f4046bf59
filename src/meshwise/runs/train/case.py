"""Training runs as cases: the model, cluster, task and layout that a run describes, and what was measured."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.frameworks import LOSSES, Framework
from meshwise.cost.axes import NAMES, OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import FULL, Finetune, parse
from meshwise.cost.precision import RECIPES, Precision
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.work import OPTIMIZER_BYTES, Train
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.model import Model
from meshwise.runs.derive import complete
from meshwise.runs.model import model_of
from meshwise.runs.run import Run, above_zero, amount, whole
from meshwise.runs.train import machine
from meshwise.runs.words import words_of

MEMORY_KINDS = ("", "allocated", "reserved", "device")
"""Bytes that measured memory counts: tensors; blocks of the allocator; both and the CUDA context (nvidia-smi). '': tensors and context."""
MAX_KEPT = 1 << 16
"""Tasks, layouts and notes of runs that are kept, so that equal ones are one object: a million rows differ in little but their times, and
`predict` evaluates rows of the same objects once."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run: its question, and the measured seconds and bytes, NaN where not stated."""

    row_id: str
    model: Model
    cluster: Cluster
    work: Train
    layout: dict[str, int]  # axes as in Layouts; mbs is 0 where the source does not state it
    seconds: float
    memory: float
    ran: bool  # whether it ran; otherwise it was out of memory
    date: str
    table: str = ""
    memory_kind: str = ""  # the kind of bytes that `memory` counts, one of MEMORY_KINDS
    assumed: tuple[str, ...] = ()  # notes on values that the run does not state
    open: tuple[str, ...] = ()
    """Axes that neither the run nor its framework's documentation states: `settle.settled` chooses them for a whole source."""

    @property
    def chip(self) -> Chip:
        return self.cluster.chip

    @property
    def timed(self) -> bool:
        return self.ran and math.isfinite(self.seconds)

    @property
    def has_memory(self) -> bool:
        return self.ran and math.isfinite(self.memory)

    @property
    def limit(self) -> float:
        """Bytes per device that a planner would use."""
        return self.chip.memory * (1 - self.work.reserve)

    @property
    def source(self) -> tuple[str, str, str, str]:
        """Table, chip, framework and precision: rows that share what no formula knows, such as a cluster's state and a release."""
        return (self.table, self.chip.key, self.work.framework.key, self.work.precision)

    @property
    def group(self) -> tuple[object, ...]:
        """Key of runs of one model on the same devices with the same program and batch: a planner chooses among these."""
        _, chip, framework, precision = self.source
        task = (self.work.batch, self.work.seq, self.work.finetune)
        return (self.model.name, self.cluster.devices, *task, chip, framework, precision)

    @property
    def setting(self) -> tuple[object, ...]:
        """Key of runs that a fit could memorize together: same day and model width, or same model and number of devices."""
        return (self.date, self.model.decoder.hidden) if self.date else (self.model.name, self.cluster.devices)


def case_of(run: Run, row_id: str, heads: dict[int, int] | None = None, table: str = "") -> Case:
    """Turn a run into a Case; refuse duplicates, flagged rows, failed runs, and runs that state no measurement."""
    if run.text("dup_of"):
        raise UserError("repeats another row")
    if run.text("chk_flag"):
        raise UserError("flagged in the table as not adding up")
    outcome = _word(run, "outcome") or "ok"
    if outcome not in ("ok", "oom"):
        raise UserError("failed for a reason the table does not tell" if outcome == "fail" else f"outcome is {quoted(outcome)}")
    case = setup(run, row_id, heads, table)
    ran = outcome == "ok"
    seconds = seconds_of(run, case) if ran else math.nan
    memory = amount(run, "peak", "memory")
    if ran and math.isnan(seconds) and math.isnan(memory):
        raise UserError("neither a time nor a memory is stated")
    kind = _axis_word(run, "memory_kind", MEMORY_KINDS)
    return replace(case, seconds=seconds, memory=memory, ran=ran, memory_kind=kind)


def setup(run: Run, row_id: str = "", heads: dict[int, int] | None = None, table: str = "") -> Case:
    """Return the question and the layout of a run, whatever was measured. UserError where something that it needs is not stated."""
    stated, run = run, complete(run)
    assumed: list[str] = []
    unstated: list[str] = []
    cluster = machine.cluster_of(run)
    model = model_of(run, heads or {}, assumed)
    framework = machine.framework_of(run, _stated_zero(run), cluster.chip.kind, assumed)
    layout = _layout(run, stated, framework, cluster, assumed, unstated)
    work = _work(run, framework, cluster.chip.kind, unstated)
    if work.finetune != FULL:
        finetuned(model, work.finetune)  # refuses targets, ranks and layers that the model lacks
    if layout["mbs"] == 0:
        assumed.append("micro-batch not stated: the fastest that fits")
    nothing = math.nan
    return Case(
        row_id, model, cluster, work, layout, nothing, nothing, True, run.text("date"), table, "", _notes(*assumed),
        _notes(*unstated),
    )  # fmt: skip


@lru_cache(MAX_KEPT)
def _notes(*words: str) -> tuple[str, ...]:
    return words


@lru_cache(MAX_KEPT)
def _task(work: Train) -> Train:
    return work


@lru_cache(MAX_KEPT)
def _axes(*values: int) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True))


def _shared(layout: Mapping[str, int]) -> dict[str, int]:
    """Return the layout, as the one object that equal layouts share."""
    return _axes(*(layout[axis] for axis in NAMES))


def _word(run: Run, name: str) -> str:
    return run.text(name).lower()


def seconds_of(run: Run, case: Case) -> float:
    """Return the seconds of a step; NaN if unstated; HFU, and Megatron's FLOP/s (arXiv:2104.04473, eq. 3), count the recompute."""
    work, cluster = case.work, case.cluster
    tokens, devices = float(work.batch_tokens), cluster.devices
    stated = amount(run, "seconds")
    if math.isnan(stated):
        stated = tokens / (amount(run, "tokens_per_second_per_device") * devices)
    if math.isnan(stated):
        stated = tokens / amount(run, "tokens_per_second")
    if math.isnan(stated):
        stated = float(work.batch) / amount(run, "samples_per_second")
    if math.isnan(stated):
        mfu, hfu = amount(run, "mfu"), amount(run, "hfu")
        counts_recompute = _word(run, "recompute") == "full" and math.isnan(mfu)
        flops = case.model.flops_megatron(tokens, work.seq, recompute=counts_recompute)
        peak = cluster.chip.flops.get(RECIPES[work.precision].rate) or cluster.chip.flops.get("bf16", math.nan)
        share = hfu if math.isnan(mfu) else mfu
        rate = amount(run, "tflops")
        stated = flops / ((share * peak if math.isnan(rate) else rate) * devices)
    return stated


def _stated_zero(run: Run) -> int | None:
    """Return the ZeRO stage from its own field, or from `sharding` ('zero1', 'fsdp', 'hsdp'); None where neither states one."""
    sharding = _word(run, "sharding")
    named = re.search(r"zero-?\s?(\d)", sharding)
    stated = int(named[1]) if named else 3 if "fsdp" in sharding or "hsdp" in sharding else None
    if "zero" in run:
        return min(3, whole(run, "zero"))
    return stated


def _zero(run: Run, framework: Framework, ranks: int, unstated: list[str]) -> int:
    """Return the ZeRO stage: stated, documented, or 0 for copies; 'ddp' says none where the framework's own shards the optimizer."""
    stated = _stated_zero(run)
    if stated is not None:
        return stated
    if ranks == 1:
        return 0
    if framework.default("zero"):
        unstated.append("zero")
        return int(framework.default("zero"))
    if "ddp" in _word(run, "sharding"):
        return 0
    unstated.append("zero")
    return 3 if framework.shards_master else 0


def _work(run: Run, framework: Framework, kind: str, unstated: list[str]) -> Train:
    batch, seq = whole(run, "batch"), whole(run, "seq")
    if not batch or not seq:
        raise UserError("the batch or the sequence is empty")
    precision = machine.precision_of(run, kind)
    if precision is None:
        unstated.append("precision")
    capacity = amount(run, "capacity")
    if math.isnan(capacity):  # tokens beyond an expert's capacity are dropped, so no rank has more than the mean
        capacity = 1.0 if re.search(r"drop(?!.?less)", _word(run, "router")) else math.nan
    compiled = machine.is_yes(run.text("compile")) or (
        "compile" not in run and framework.compiles_narrow and (precision or "bf16") not in ("bf16", "fp16")
    )
    stated = _word(run, "optimizer")
    work = Train(
        batch=batch, seq=seq, framework=framework, precision=precision or "bf16", compiled=compiled,
        loss=_axis_word(run, "loss", LOSSES), optimizer=stated if stated in OPTIMIZER_BYTES else "adamw",
        in_backward=machine.is_yes(run.text("in_backward")), finetune=_finetune(run, framework),
    )  # fmt: skip
    return _task(work if math.isnan(capacity) else replace(work, imbalance=max(1.0, capacity)))


def _finetune(run: Run, framework: Framework) -> Finetune:
    """Return which weights are trained; adapters are on the program's usual modules where the run names none."""
    text, base = run.text("finetune"), run.text("base")
    method = parse(text, base) if text else FULL
    return (
        parse(f"{text}:{framework.adapter_targets}", base)
        if method.adapts and framework.adapter_targets and text.count(":") < 2
        else method
    )


def _axis_word(run: Run, name: str, values: tuple[str, ...]) -> str:
    """Return the value of an axis that a word stands for; '' where the run states none. Refuse an unknown word."""
    text, words = _word(run, name), words_of(name)
    if not text or text in values:
        return text
    plain = re.sub(r"[^a-z0-9]", "", text)
    found = words.get(plain) or next((value for value in values if re.sub(r"[^a-z0-9]", "", value) == plain), "")
    if not found:
        raise UserError(
            f"{run.word(name)} is {quoted(text)}{nearest(text, (*values, *words))}; expected one of {', '.join(values)}"
        )
    return found


def _recompute(run: Run, framework: Framework, assumed: list[str], unstated: list[str]) -> str:
    stated = _axis_word(run, "recompute", RECOMPUTE)
    if stated:
        return stated
    documented = framework.default("recompute")
    if documented:
        assumed.append(f"recompute not stated: {documented}, the default of {framework.name}")
        return documented
    unstated.append("recompute")
    return "none"


def _layout(
    run: Run, stated: Run, framework: Framework, cluster: Cluster, assumed: list[str], unstated: list[str]
) -> dict[str, int]:
    """Return the axes of a completed run; `stated` is the run before it was completed."""
    devices = cluster.devices
    tp, pp, cp = (above_zero(run, axis, default=1) for axis in ("tp", "pp", "cp"))
    if devices % (tp * pp * cp):
        raise UserError(f"tp {tp}, pp {pp} and cp {cp} do not divide {devices} devices")
    dp = above_zero(run, "dp", default=devices // (tp * pp * cp))
    if dp * tp * pp * cp != devices:
        raise UserError(f"dp {dp}, tp {tp}, pp {pp} and cp {cp} do not multiply to {devices} devices")
    zero = _zero(run, framework, dp * cp, unstated)
    shard = _shard(stated, cluster, dp, zero)
    ep = above_zero(run, "ep", default=1)
    etp = _expert_tp(run, framework, tp, ep, shard * cp)
    sequence_parallel, vpp = _word(run, "sp"), above_zero(run, "vpp", default=1)
    usual = framework.sequence_parallel == "always" or framework.default("sp") == "yes"
    return _shared({
        "dp_replicate": dp // shard, "dp_shard": shard, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp,
        "mbs": above_zero(run, "mbs", default=0), "vpp": vpp, "zero": zero if shard * cp > 1 else 0,
        "recompute": RECOMPUTE.index(_recompute(run, framework, assumed, unstated)),
        "sp": int(tp > 1 and (machine.is_yes(sequence_parallel) or (not sequence_parallel and usual))),
        "schedule": int(vpp > 1), "offload": OFFLOAD.index(_offload(run)),
    })  # fmt: skip


def _offload(run: Run) -> str:
    if "offload" in _word(run, "recompute"):  # MaxText's policies, such as qkv_proj_offloaded
        return "activations"
    return _axis_word(run, "offload", OFFLOAD) or "none"


def _shard(run: Run, cluster: Cluster, dp: int, zero: int) -> int:
    """Return the data-parallel ranks that shard one copy: as stated, inside a node for hybrid sharding, inside a slice for pods, or all."""
    stated = above_zero(run, "dp_shard", default=0)
    if stated:
        if dp % stated:
            raise UserError(f"dp_shard {stated} does not divide dp {dp}")
        return stated
    if not zero:
        return 1
    sharding = _word(run, "sharding")
    if "hsdp" in sharding or "hybrid" in sharding:
        return math.gcd(dp, cluster.node.devices)
    if cluster.torus and ("slice" in sharding or cluster.node_count > 1):
        return max(1, dp // cluster.node_count)
    return dp


def _expert_tp(run: Run, framework: Framework, tp: int, ep: int, ranks: int) -> int:
    """Return the tensor parallelism of experts: as stated; 1 where expert groups must span tensor ranks; else the framework's default."""
    stated = above_zero(run, "etp", default=0)
    etp = stated or (1 if ep > ranks or framework.expert_tp == "1" else tp)
    if ranks * tp % (ep * etp):
        raise UserError(f"ep {ep} with etp {etp} does not divide the {ranks * tp} devices of a pipeline stage")
    return etp


def assumed_layout(case: Case, notes: Sequence[str], **axes: int) -> Case:
    """Return a case with axes that were open, and notes on them."""
    return replace(case, layout=_shared(case.layout | axes), assumed=_notes(*case.assumed, *notes))


def with_precision(case: Case, precision: Precision, note: str) -> Case:
    """Return a case with a precision that was open, and a note on it."""
    return replace(case, work=_task(replace(case.work, precision=precision)), assumed=_notes(*case.assumed, note))
