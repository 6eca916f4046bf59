"""Measurements: rows of a table that say what was run, on what, and what was seen."""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from meshwise import catalogue
from meshwise.clusters import find_cluster
from meshwise.errors import UserError, nearest
from meshwise.framework import find_framework
from meshwise.hardware import Cluster
from meshwise.model import Model, build
from meshwise.workload import Train

Row = Mapping[str, str]

VTRAIN = {
    "# GPUs": "n_gpus",
    "global batch": "global_batch_seqs",
    "micro batch": "micro_batch",
    "hidden size": "d_model",
    "attention heads": "n_heads",
    "# layers": "n_layers",
    "sequence length": "seq_len",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
    "iteration time (ms)": "ms_per_iter",
}
"""vTrain's column names (VIA-Research/vTrain, data/ground_truth_single.csv)."""
VTRAIN_FACTS = {
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "framework": "Megatron-DeepSpeed",
    "vocab": "51200",
    "recompute": "none",
}
"""What vTrain's file leaves unsaid: its paper's machine, and GPT-2's padded vocabulary."""
NEEDED = ("n_gpus", "tp", "pp", "dp", "global_batch_seqs", "seq_len", "gpu")


@dataclass(frozen=True)
class Case:
    """One measured run: the question it answers and what was seen. Seconds or bytes that were not printed are NaN."""

    row_id: str
    model: Model
    cluster: Cluster
    work: Train
    layout: dict[str, int]
    """Axes as in Layouts; micro-batch 0 where the source does not say."""
    seconds: float
    memory: float
    ran: bool
    date: str

    @property
    def group(self) -> tuple[object, ...]:
        """Runs of the same model on as many devices with the same batch: among these a planner has to choose."""
        return (self.model.name, self.cluster.devices, self.work.batch, self.work.seq)


@dataclass(frozen=True)
class Skipped:
    row_id: str
    reason: str


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, vTrain's column names translated."""
    rows = list(csv.DictReader(io.StringIO(catalogue.text_of(path))))
    if not rows:
        raise UserError(f"{path.name}: no rows; expected a CSV file with a header and the columns {', '.join(NEEDED)}")
    if "# GPUs" in rows[0]:
        rows = [VTRAIN_FACTS | {VTRAIN.get(key, key): value for key, value in row.items()} for row in rows]
    missing = [name for name in NEEDED if name not in rows[0]]
    if missing:
        raise UserError(f"{path.name}: the column '{missing[0]}' is missing{nearest(missing[0], [str(key) for key in rows[0]])}")
    return rows


def cases(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Every row of a table of training runs as a Case, or the reason why it is none."""
    rows = read_table(path)
    heads = _common_heads(rows)
    used: list[Case] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(rows, 1):
        row_id = row.get("row_id") or f"{path.stem}-{number}"
        try:
            used.append(_case(row, row_id, heads))
        except UserError as error:
            skipped.append(Skipped(row_id, str(error)))
    return used, skipped


def _number(row: Row, *columns: str, default: float = math.nan) -> float:
    """The first of these columns that holds a number."""
    for column in columns:
        text = row.get(column) or ""
        try:
            return float(text)
        except ValueError:
            if text.strip():
                raise UserError(f"{column} is '{text}', not a number") from None
    return default


def _whole(row: Row, *columns: str, default: int | None = None) -> int:
    value = _number(row, *columns)
    if math.isnan(value) and default is not None:
        return default
    if not math.isfinite(value) or value != int(value) or value < 0:
        raise UserError(f"{columns[0]} is not stated")
    return int(value)


def _common_heads(rows: list[dict[str, str]]) -> dict[int, int]:
    """Heads by width, as most rows of the table state them: what the others leave out."""
    seen: dict[int, Counter[int]] = {}
    for row in rows:
        width, heads = _number(row, "d_model", "d_model_derived"), _number(row, "n_heads")
        if width > 0 and heads > 0:
            seen.setdefault(int(width), Counter())[int(heads)] += 1
    return {width: counts.most_common(1)[0][0] for width, counts in seen.items()}


def _case(row: Row, row_id: str, heads: dict[int, int]) -> Case:
    if row.get("dup_of"):
        raise UserError(f"repeats {row['dup_of']}")
    if row.get("chk_flag"):
        raise UserError(f"flagged in the table: {row['chk_flag']}")
    ran = (row.get("outcome") or "ok") == "ok"
    if row.get("outcome") == "fail":
        raise UserError("failed for a reason the table does not tell")
    model = _model(row, heads)
    cluster = _cluster(row)
    work, layout = _work(row), _layout(row)
    if layout["dp_replicate"] * layout["dp_shard"] * layout["tp"] * layout["pp"] * layout["cp"] != cluster.devices:
        raise UserError(f"the layout does not multiply to {cluster.devices} devices")
    seconds = _seconds(row, model, work, cluster.devices)
    unit = 2.0**30 if (row.get("mem_unit") or "").lower() in ("gib", "") else 1e9
    memory = _number(row, "mem_gb") * unit
    if ran and math.isnan(seconds) and math.isnan(memory):
        raise UserError("neither a time nor a memory is stated")
    return Case(row_id, model, cluster, work, layout, seconds, memory, ran, row.get("date") or "")


def _seconds(row: Row, model: Model, work: Train, devices: int) -> float:
    """Seconds of a step, from whichever column states it."""
    stated = _number(row, "sec_per_iter")
    if not math.isnan(stated):
        return stated
    if not math.isnan(_number(row, "ms_per_iter")):
        return _number(row, "ms_per_iter") / 1000
    tokens = float(work.batch_tokens)
    rate = _number(row, "tokens_per_sec_per_gpu")
    if rate > 0:
        return tokens / (rate * devices)
    tflops = _number(row, "tflops_per_gpu")
    if tflops > 0:  # Megatron's formula (arXiv:2104.04473, eq. 3): masked attention in full, and the recompute forward
        repeats = 4 if (row.get("recompute") or "") == "full" else 3
        return model.flops(tokens, work.seq, causal=False, training=False) * repeats / (tflops * 1e12 * devices)
    return math.nan


def _cluster(row: Row) -> Cluster:
    devices, per_node = _whole(row, "n_gpus"), _whole(row, "gpus_per_node", default=8)
    nodes = max(1, devices // per_node)
    text = f"{nodes}x{min(devices, per_node)}x{row['gpu']}"
    gbps = _number(row, "inter_node_gbps_per_gpu")
    return _named_cluster(text if math.isnan(gbps) else f"{text}@{gbps * per_node:g}Gbps")


_named_cluster = cache(find_cluster)


def _work(row: Row) -> Train:
    framework = find_framework(row.get("framework") or "megatron")
    if (row.get("flash_attention") or "").lower() == "no":
        framework = replace(framework, flash_attention=False, dropout=True)
    batch, seq = _whole(row, "global_batch_seqs"), _whole(row, "seq_len")
    precision = row.get("precision") if row.get("precision") in ("bf16", "fp16", "fp8") else "bf16"
    return Train(batch=batch, seq=seq, framework=framework, precision=precision or "bf16")  # pyright: ignore[reportArgumentType]


def _layout(row: Row) -> dict[str, int]:
    dp, zero = _whole(row, "dp"), _whole(row, "zero_stage", default=0)
    always = (row.get("seq_parallel") or "").lower() == "yes" or find_framework(
        row.get("framework") or "megatron"
    ).sequence_parallel == "always"
    vpp = _whole(row, "interleave", default=1)
    return {
        "dp_replicate": 1 if zero else dp,
        "dp_shard": dp if zero else 1,
        "tp": _whole(row, "tp"),
        "pp": _whole(row, "pp"),
        "cp": _whole(row, "cp", default=1),
        "ep": _whole(row, "ep", default=1),
        "mbs": _whole(row, "micro_batch", default=0),
        "vpp": vpp,
        "zero": zero if dp > 1 else 0,
        "recompute": {"none": 0, "": 0, "selective": 1, "full": 2}.get((row.get("recompute") or "").lower(), 0),
        "sp": int(always and _whole(row, "tp") > 1),
        "schedule": int(vpp > 1),
        "offload": 0,
    }


def _model(row: Row, heads: dict[int, int]) -> Model:
    """The model of a row, from its sizes. Gate and tied head are seldom printed: the combination nearest to the stated size is meant."""
    hidden, layers = _whole(row, "d_model", "d_model_derived"), _whole(row, "n_layers", "n_layers_derived")
    n_heads = _whole(row, "n_heads", default=heads.get(hidden) or max(1, hidden // 128))
    kv_heads, vocab = _whole(row, "n_kv_heads", default=n_heads), _whole(row, "vocab", default=51200)
    ffn = _whole(row, "d_ff", default=4 * hidden)
    candidates = _candidates(hidden, layers, n_heads, kv_heads, vocab, ffn, _whole(row, "seq_len"))
    stated = _number(row, "params_b") * 1e9
    return candidates[0] if math.isnan(stated) else min(candidates, key=lambda model: abs(model.params - stated))


@cache
def _candidates(hidden: int, layers: int, heads: int, kv_heads: int, vocab: int, ffn: int, seq: int) -> tuple[Model, ...]:
    """A GPT of these sizes, and a Llama with and without a tied head."""
    name = f"h{hidden}-l{layers}-a{heads}-f{ffn}-v{vocab}"
    gpt = {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_inner": ffn,
        "vocab_size": vocab,
        "n_positions": seq,
    }
    llama = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }
    tied = [
        build(llama | {"tie_word_embeddings": tie}, f"llama-{name}{'-tied' * tie}", "a table of measurements")
        for tie in (True, False)
    ]
    return (build(gpt, f"gpt-{name}", "a table of measurements"), *tied)
