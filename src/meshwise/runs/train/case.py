"""Measured training runs: a row of a table as a Case, with the model, cluster, task and layout that it describes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import NAMES, OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import FULL, parse
from meshwise.cost.precision import RECIPES, Precision
from meshwise.cost.train.parameters import finetuned
from meshwise.cost.work import OPTIMIZER_BYTES, Train
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.model import Model
from meshwise.runs.table import Row, above_zero, number, whole
from meshwise.runs.train import machine, shapes
from meshwise.units import GIB, MIB

UNIT_OF_MEMORY = {"": GIB, "gib": GIB, "gb": 1e9, "mib": MIB, "mb": 1e6}
RECOMPUTE_WORDS = {
    "no": "none",
    "false": "none",
    "off": "none",
    "yes": "full",
    "true": "full",
    "on": "full",
    "block": "full",
    "uniform": "full",
    "selectiveop": "selective",
    "selectivelayer": "selective",
    "coreattn": "selective",
    "minimalflash": "minimal",
    "minimalwithcontext": "minimal",
    "savedotexceptmlp": "minimal",
    "saveqkvproj": "save_qkv_proj",
    "qkvprojoffloaded": "save_qkv_proj",
    "saveoutproj": "save_out_proj",
    "savedotswithnobatchdims": "minimal",
    "layernorm": "layernorm",
    "moeact": "moe_act",
}
"""Words of tables and programs for values of the axis `recompute`."""
OFFLOAD_WORDS = {
    "no": "none",
    "false": "none",
    "cpu": "optimizer",
    "optim": "optimizer",
    "optimiser": "optimizer",
    "yes": "optimizer",
}


MOST_KEPT = 1 << 16
"""Tasks, layouts and notes of rows that are kept, so that equal ones are one object: a million rows differ in little but their times, and
`predict` evaluates rows of the same objects once."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run: its question, and the measured seconds and bytes, NaN where not stated."""

    row_id: str
    model: Model
    cluster: Cluster
    work: Train
    layout: dict[str, int]
    """Axes as in Layouts; mbs is 0 where the source does not state it."""
    seconds: float
    memory: float
    ran: bool
    """Whether it ran; otherwise it was out of memory."""
    date: str
    table: str = ""
    assumed: tuple[str, ...] = ()
    """Notes on values that the row does not state."""
    open: tuple[str, ...] = ()
    """Axes that neither the row nor its framework's documentation states: `reading.settled` chooses them for a whole source."""

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
        return (
            self.model.name,
            self.cluster.devices,
            self.work.batch,
            self.work.seq,
            self.work.finetune,
            chip,
            framework,
            precision,
        )

    @property
    def setting(self) -> tuple[object, ...]:
        """Key of runs that a fit could memorize together: same day and model width, or same model and number of devices."""
        return (self.date, self.model.decoder.hidden) if self.date else (self.model.name, self.cluster.devices)


def case_of(row: Row, row_id: str, heads: dict[int, int] | None = None, table: str = "") -> Case:
    """Turn a row into a Case; refuse duplicates, flagged rows, failed runs, and rows that state no measurement."""
    if row.get("dup_of"):
        raise UserError("repeats another row")
    if row.get("chk_flag"):
        raise UserError("flagged in the table as not adding up")
    outcome = _word(row, "outcome") or "ok"
    if outcome not in ("ok", "oom"):
        raise UserError("failed for a reason the table does not tell" if outcome == "fail" else f"outcome is {quoted(outcome)}")
    assumed: list[str] = []
    unstated: list[str] = []
    model, cluster = shapes.model_of(row, heads or {}, assumed), machine.cluster_of(row)
    framework = machine.framework_of(row, _stated_zero(row), cluster.chip.kind, assumed)
    layout = _layout(row, framework, cluster, assumed, unstated)
    work = _work(row, framework, layout, cluster.chip.kind, unstated)
    if work.finetune != FULL:
        finetuned(model, work.finetune)  # refuses targets, ranks and layers that the model lacks
    if layout["mbs"] == 0:
        assumed.append("micro-batch not stated: the fastest that fits")
    ran = outcome == "ok"
    seconds = _seconds(row, model, work, cluster) if ran else math.nan
    memory = number(row, "mem_gb") * UNIT_OF_MEMORY.get(_word(row, "mem_unit"), 1e9)
    if ran and math.isnan(seconds) and math.isnan(memory):
        raise UserError("neither a time nor a memory is stated")
    return Case(
        row_id,
        model,
        cluster,
        work,
        layout,
        seconds,
        memory,
        ran,
        row.get("date", ""),
        table,
        _notes(*assumed),
        _notes(*unstated),
    )


@lru_cache(MOST_KEPT)
def _notes(*words: str) -> tuple[str, ...]:
    return words


@lru_cache(MOST_KEPT)
def _task(work: Train) -> Train:
    return work


@lru_cache(MOST_KEPT)
def _axes(*values: int) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True))


def _shared(layout: Mapping[str, int]) -> dict[str, int]:
    """Return the layout, as the one object that equal layouts share."""
    return _axes(*(layout[axis] for axis in NAMES))


def _word(row: Row, column: str) -> str:
    return row.get(column, "").lower()


def _seconds(row: Row, model: Model, work: Train, cluster: Cluster) -> float:
    """Return the seconds of a step from whichever column states it.

    FLOP/s and utilization count the recompute forward where the row calls them HFU, or where they are Megatron's (arXiv:2104.04473,
    eq. 3) and no MFU is stated.
    """
    tokens, devices = float(work.batch_tokens), cluster.devices
    stated = number(row, "sec_per_iter")
    if math.isnan(stated):
        stated = number(row, "ms_per_iter") / 1000
    if math.isnan(stated):
        stated = tokens / (number(row, "tokens_per_sec_per_gpu") * devices)
    if math.isnan(stated):
        mfu, hfu = number(row, "mfu"), number(row, "hfu")
        counts_recompute = _word(row, "recompute") == "full" and math.isnan(mfu)
        flops = model.flops_megatron(tokens, work.seq, recompute=counts_recompute)
        peak = cluster.chip.flops.get(RECIPES[work.precision].rate) or cluster.chip.flops.get("bf16", math.nan)
        share = hfu if math.isnan(mfu) else mfu
        rate = number(row, "tflops_per_gpu") * 1e12
        stated = flops / ((share / 100 * peak if math.isnan(rate) else rate) * devices)
    return stated


def _stated_zero(row: Row) -> int | None:
    """Return the ZeRO stage from its own column, or from `sharding` ('zero1', 'fsdp', 'hsdp'); None where neither states one."""
    sharding = _word(row, "sharding")
    named = re.search(r"zero-?\s?(\d)", sharding)
    stated = int(named[1]) if named else 3 if "fsdp" in sharding or "hsdp" in sharding else None
    if row.get("zero_stage"):
        return min(3, whole(row, "zero_stage"))
    return stated


def _zero(row: Row, framework: Framework, ranks: int, unstated: list[str]) -> int:
    """Return the ZeRO stage: as stated, as the framework documents, or 0 if the row calls its ranks copies. 'ddp' states none where the
    framework's own data parallelism shards the optimizer."""
    stated = _stated_zero(row)
    if stated is not None:
        return stated
    if ranks == 1:
        return 0
    if framework.default("zero"):
        unstated.append("zero")
        return int(framework.default("zero"))
    if "ddp" in _word(row, "sharding"):
        return 0
    unstated.append("zero")
    return 3 if framework.shards_master else 0


def _work(row: Row, framework: Framework, layout: Mapping[str, int], kind: str, unstated: list[str]) -> Train:
    steps = layout["dp_replicate"] * layout["dp_shard"] * layout["mbs"] * whole(row, "grad_accum", default=0)
    batch, seq = whole(row, "global_batch_seqs", default=steps or None), whole(row, "seq_len")
    if not batch or not seq:
        raise UserError("the batch or the sequence is empty")
    precision = machine.precision_of(row, kind)
    if precision is None:
        unstated.append("precision")
    balanced = "drop" in _word(row, "router")  # tokens beyond an expert's capacity are dropped, so no rank has more than the mean
    compiled = machine.is_yes(row.get("compile", "")) or (
        not row.get("compile") and framework.compiles_narrow and (precision or "bf16") not in ("bf16", "fp16")
    )
    stated = _word(row, "optimizer")
    work = Train(
        batch=batch,
        seq=seq,
        framework=framework,
        precision=precision or "bf16",
        compiled=compiled,
        optimizer=stated if stated in OPTIMIZER_BYTES else "adamw",
        finetune=parse(row["tune"]) if row.get("tune") else FULL,
    )
    return _task(replace(work, imbalance=1.0) if balanced else work)


def _axis_word(row: Row, column: str, words: Mapping[str, str], values: tuple[str, ...]) -> str:
    """Return the value of an axis that a word stands for; '' where the row states none. Refuse an unknown word."""
    text = _word(row, column)
    if not text:
        return ""
    if text in values:
        return text
    plain = re.sub(r"[^a-z0-9]", "", text)
    found = words.get(plain) or next((value for value in values if re.sub(r"[^a-z0-9]", "", value) == plain), "")
    if not found:
        raise UserError(f"{column} is {quoted(text)}{nearest(text, (*values, *words))}; expected one of {', '.join(values)}")
    return found


def _recompute(row: Row, framework: Framework, assumed: list[str], unstated: list[str]) -> str:
    stated = _axis_word(row, "recompute", RECOMPUTE_WORDS, RECOMPUTE)
    if stated:
        return stated
    documented = framework.default("recompute")
    if documented:
        assumed.append(f"recompute not stated: {documented}, the default of {framework.name}")
        return documented
    unstated.append("recompute")
    return "none"


def _layout(row: Row, framework: Framework, cluster: Cluster, assumed: list[str], unstated: list[str]) -> dict[str, int]:
    devices = cluster.devices
    tp, pp, cp = (above_zero(row, axis, default=1) for axis in ("tp", "pp", "cp"))
    if devices % (tp * pp * cp):
        raise UserError(f"tp {tp}, pp {pp} and cp {cp} do not divide {devices} devices")
    dp = above_zero(row, "dp", default=devices // (tp * pp * cp))
    if dp * tp * pp * cp != devices:
        raise UserError(f"dp {dp}, tp {tp}, pp {pp} and cp {cp} do not multiply to {devices} devices")
    zero = _zero(row, framework, dp * cp, unstated)
    shard = _shard(row, cluster, dp, zero)
    ep = above_zero(row, "ep", default=1)
    etp = _expert_tp(row, framework, tp, ep, shard * cp)
    sequence_parallel, vpp = _word(row, "seq_parallel"), above_zero(row, "interleave", default=1)
    usual = framework.sequence_parallel == "always" or framework.default("sp") == "yes"
    axes = {
        "dp_replicate": dp // shard,
        "dp_shard": shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "mbs": _micro_batch(row, dp),
        "vpp": vpp,
        "zero": zero if shard * cp > 1 else 0,
        "recompute": RECOMPUTE.index(_recompute(row, framework, assumed, unstated)),
        "sp": int(tp > 1 and (machine.is_yes(sequence_parallel) or (not sequence_parallel and usual))),
        "schedule": int(vpp > 1),
        "offload": OFFLOAD.index(_offload(row)),
    }
    return _shared(axes)


def _micro_batch(row: Row, dp: int) -> int:
    """Return the micro-batch; of a row that states the accumulation steps instead, what they leave; 0 where neither is stated."""
    stated, steps = above_zero(row, "micro_batch", default=0), above_zero(row, "grad_accum", default=0)
    batch = whole(row, "global_batch_seqs", default=0)
    return stated or (batch // (dp * steps) if steps and batch % (dp * steps) == 0 else 0)


def _offload(row: Row) -> str:
    if "offload" in _word(row, "recompute"):  # MaxText's policies, such as qkv_proj_offloaded
        return "activations"
    return _axis_word(row, "offload", OFFLOAD_WORDS, OFFLOAD) or "none"


def _shard(row: Row, cluster: Cluster, dp: int, zero: int) -> int:
    """Return the data-parallel ranks that shard one copy: as stated, inside a node for hybrid sharding, inside a slice for pods, or all."""
    stated = above_zero(row, "dp_shard", default=0)
    if stated:
        if dp % stated:
            raise UserError(f"dp_shard {stated} does not divide dp {dp}")
        return stated
    if not zero:
        return 1
    sharding = _word(row, "sharding")
    if "hsdp" in sharding or "hybrid" in sharding:
        return math.gcd(dp, cluster.node.devices)
    if cluster.torus and ("slice" in sharding or cluster.node_count > 1):
        return max(1, dp // cluster.node_count)
    return dp


def _expert_tp(row: Row, framework: Framework, tp: int, ep: int, ranks: int) -> int:
    """Return the tensor parallelism of experts: as stated; 1 where expert groups must span tensor ranks; else the framework's default."""
    stated = above_zero(row, "etp", default=0)
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
