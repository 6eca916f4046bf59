"""Measured training runs: each row of a table as a Case, with the model, cluster, task and layout that it describes."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from meshwise.calibrate import tables
from meshwise.calibrate.tables import Row, Skipped, number, whole
from meshwise.catalogue import files
from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import Framework, find_framework
from meshwise.cost.work import Precision, Train
from meshwise.errors import UserError, nearest, quoted
from meshwise.models import find
from meshwise.models.model import Model, build
from meshwise.units import GIB, MIB

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
"""Facts missing from vTrain's file: the machine of its paper, and GPT-2's padded vocabulary."""
NEEDED = ("n_gpus", "tp", "pp", "dp", "global_batch_seqs", "seq_len", "gpu")
TIMES = ("sec_per_iter", "ms_per_iter", "tokens_per_sec_per_gpu", "tflops_per_gpu")
MEASURED = (*TIMES, "mem_gb")
UNIT_OF_MEMORY = {"": GIB, "gib": GIB, "gb": 1e9, "mib": MIB, "mb": 1e6}
RECOMPUTE = {"": 0, "none": 0, "no": 0, "selective": 1, "full": 2, "yes": 2}


@dataclass(frozen=True)
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
    def group(self) -> tuple[object, ...]:
        """Key of runs of one model on the same number of devices with the same batch: a planner chooses among these."""
        return (self.model.name, self.cluster.devices, self.work.batch, self.work.seq)

    @property
    def setting(self) -> tuple[object, ...]:
        """Key of runs that a fit could memorize together: same day and model width, or same model and number of devices."""
        return (self.date, self.model.decoder.hidden) if self.date else (self.model.name, self.cluster.devices)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file, vTrain's column names translated, or of a JSONL file that `meshwise run` wrote.

    A damaged file is refused, with the number of the damaged line.
    """
    if path.suffix == ".jsonl":
        return _read_objects(path)
    header, lines = tables.read_lines(path)
    vtrain = "# GPUs" in header
    columns = [VTRAIN.get(name, name) for name in header] if vtrain else header
    _check_columns(path.name, [*columns, *VTRAIN_FACTS] if vtrain else columns)
    if not lines:
        raise UserError(f"{path.name}: no rows below the header")
    rows: list[dict[str, str]] = []
    for where, row in tables.rows(path, columns, lines):
        _check_measured(where, row)
        rows.append(VTRAIN_FACTS | row if vtrain else row)
    return rows


def _read_objects(path: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for line_number, line in enumerate(files.text_of(path).splitlines(), 1):
        where = f"{path.name}, line {line_number}"
        try:
            values: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UserError(f"{where}: expected an object, found {quoted(values)}")
        row = {str(key): str(value) for key, value in cast(dict[object, object], values).items()}
        _check_columns(where, list(row))
        _check_measured(where, row)
        rows.append(row)
    if not rows:
        raise UserError(f"{path.name}: empty; expected a JSON object per line")
    return rows


def _check_columns(name: str, columns: list[str]) -> None:
    if not columns:
        raise UserError(f"{name}: empty; expected a CSV file with a header and the columns {', '.join(NEEDED)}")
    repeated = [column for column, times in Counter(columns).items() if times > 1]
    if repeated:
        raise UserError(f"{name}: the column {quoted(repeated[0])} appears twice")
    for column in NEEDED:
        if column not in columns:
            raise UserError(f"{name}: the column '{column}' is missing{nearest(column, columns)}")
    if not set(MEASURED) & set(columns):
        raise UserError(f"{name}: no column with a measurement; expected one of {', '.join(MEASURED)}")


def _check_measured(where: str, row: Row) -> None:
    """Refuse a measurement that is neither empty nor a finite number above zero."""
    for column in MEASURED:
        text = row.get(column, "")
        try:
            valid = not text or 0 < float(text) < math.inf
        except ValueError:
            valid = False
        if not valid:
            raise UserError(
                f"{where}: {column} is {quoted(text)}; expected a number above zero, or an empty field if it was not measured"
            )


def read_cases(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Read every row of a table of training runs as a Case, or the reason why it is skipped."""
    rows = read_table(path)
    heads = _common_heads(rows)
    return tables.cases(path, rows, lambda row, row_id: _case(row, row_id, heads, path.stem))


def _word(row: Row, column: str) -> str:
    return row.get(column, "").lower()


def _common_heads(rows: list[dict[str, str]]) -> dict[int, int]:
    """Return the most common number of heads for each width, for rows that do not state theirs."""
    stated: dict[int, Counter[int]] = {}
    for row in rows:
        width, heads = row.get("d_model") or row.get("d_model_derived") or "", row.get("n_heads", "")
        if width.isdecimal() and heads.isdecimal():
            stated.setdefault(int(width), Counter())[int(heads)] += 1
    return {width: counts.most_common(1)[0][0] for width, counts in stated.items()}


def case_of(row: Row, row_id: str) -> Case:
    """Turn a row that is in no table into a Case."""
    return _case(row, row_id, {}, "")


def _case(row: Row, row_id: str, heads: dict[int, int], table: str) -> Case:
    """Turn a row into a Case; refuse duplicates, flagged rows, failed runs, and rows that state no measurement."""
    if row.get("dup_of"):
        raise UserError("repeats another row")
    if row.get("chk_flag"):
        raise UserError("flagged in the table as not adding up")
    outcome = _word(row, "outcome") or "ok"
    if outcome not in ("ok", "oom"):
        raise UserError("failed for a reason the table does not tell" if outcome == "fail" else f"outcome is {quoted(outcome)}")
    assumed: list[str] = []
    model, cluster = _model(row, heads, assumed), _cluster(row)
    framework = _framework(row, assumed)
    layout = _layout(row, framework, cluster.devices)
    work = _work(row, framework, layout)
    if layout["mbs"] == 0:
        assumed.append("micro-batch not stated: the fastest that fits")
    ran = outcome == "ok"
    seconds = _seconds(row, model, work, cluster.devices) if ran else math.nan
    memory = number(row, "mem_gb") * UNIT_OF_MEMORY.get(_word(row, "mem_unit"), 1e9)
    if ran and math.isnan(seconds) and math.isnan(memory):
        raise UserError("neither a time nor a memory is stated")
    return Case(row_id, model, cluster, work, layout, seconds, memory, ran, row.get("date", ""), table, tuple(assumed))


def _seconds(row: Row, model: Model, work: Train, devices: int) -> float:
    """Return the seconds of a step from whichever column states it."""
    stated, tokens = number(row, "sec_per_iter"), float(work.batch_tokens)
    if math.isnan(stated):
        stated = number(row, "ms_per_iter") / 1000
    if math.isnan(stated):
        stated = tokens / (number(row, "tokens_per_sec_per_gpu") * devices)
    if math.isnan(stated):
        flops = model.flops_megatron(tokens, work.seq, recompute=_word(row, "recompute") == "full")
        stated = flops / (number(row, "tflops_per_gpu") * 1e12 * devices)
    return stated


def _cluster(row: Row) -> Cluster:
    """Return the cluster of a row, with the network that it states or that of the vendor's system."""
    devices, per_node = whole(row, "n_gpus"), whole(row, "gpus_per_node", default=8)
    if not devices or not per_node or devices % min(devices, per_node):
        raise UserError(f"{devices} devices are not a whole number of nodes of {per_node}")
    inside = min(devices, per_node)
    text = f"{devices // inside}x{inside}x{row['gpu']}"
    gbps = number(row, "inter_node_gbps_per_gpu")
    return _named_cluster(text if math.isnan(gbps) else f"{text}@{gbps * per_node:g}Gbps")


_named_cluster = cache(find_cluster)


def _framework(row: Row, assumed: list[str]) -> Framework:
    """Find the framework that a row names; an unknown one is replaced by FSDP or Megatron, depending on whether it shards parameters."""
    text = row.get("framework", "")
    framework = _known_framework(text)
    if framework is None:
        framework = find_framework("fsdp" if _zero(row) >= 2 else "megatron")
        assumed.append(
            f"framework {quoted(text)} evaluated as {framework.name}" if text else f"framework not stated: {framework.name}"
        )
    flash = _word(row, "flash_attention")
    if flash in ("yes", "no"):
        return replace(framework, flash_attention=flash == "yes", dropout=framework.dropout or flash == "no")
    return framework


@cache
def _known_framework(text: str) -> Framework | None:
    """Find a framework by its name, or by the longest name of the catalogue inside the text: 'NeMo (Megatron-LM)'."""
    for key in sorted(files.files("frameworks", ".toml"), key=len, reverse=True):
        framework = find_framework(key)
        if any(files.squeeze(name) in files.squeeze(text) for name in (framework.name, key)):
            return framework
    return None


def _zero(row: Row) -> int:
    """Return the ZeRO stage from its own column, or from `sharding` ('zero1', 'fsdp', 'ddp')."""
    sharding = _word(row, "sharding")
    named = re.search(r"zero-?\s?(\d)", sharding)
    stated = int(named[1]) if named else 3 if "fsdp" in sharding or "hsdp" in sharding else 0
    return min(3, whole(row, "zero_stage", default=stated))


def _work(row: Row, framework: Framework, layout: Mapping[str, int]) -> Train:
    steps = layout["dp_replicate"] * layout["dp_shard"] * layout["mbs"] * whole(row, "grad_accum", default=0)
    batch, seq = whole(row, "global_batch_seqs", default=steps or None), whole(row, "seq_len")
    if not batch or not seq:
        raise UserError("the batch or the sequence is empty")
    named = _word(row, "precision")
    precision = next((known for known in ("fp8", "fp16") if known in named), "bf16")
    return Train(batch=batch, seq=seq, framework=framework, precision=cast(Precision, precision))


def _layout(row: Row, framework: Framework, devices: int) -> dict[str, int]:
    tp, pp, cp = whole(row, "tp"), whole(row, "pp"), whole(row, "cp", default=1)
    if not (tp and pp and cp) or devices % (tp * pp * cp):
        raise UserError(f"tp {tp}, pp {pp} and cp {cp} do not divide {devices} devices")
    dp, zero = whole(row, "dp", default=devices // (tp * pp * cp)), _zero(row)
    if dp * tp * pp * cp != devices:
        raise UserError(f"dp {dp}, tp {tp}, pp {pp} and cp {cp} do not multiply to {devices} devices")
    recompute = _word(row, "recompute")
    if recompute not in RECOMPUTE:
        raise UserError(f"recompute is {quoted(recompute)}; expected none, selective or full")
    # Hybrid sharding: shards inside a node, replicas between nodes.
    shard = math.gcd(dp, whole(row, "gpus_per_node", default=8)) if "hsdp" in _word(row, "sharding") else dp if zero else 1
    sequence_parallel, vpp = _word(row, "seq_parallel"), whole(row, "interleave", default=1)
    return {
        "dp_replicate": dp // shard,
        "dp_shard": shard,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": whole(row, "ep", default=1),
        "mbs": whole(row, "micro_batch", default=0),
        "vpp": vpp,
        "zero": zero if shard > 1 else 0,
        "recompute": RECOMPUTE[recompute],
        "sp": int(
            tp > 1 and (sequence_parallel == "yes" or (sequence_parallel != "no" and framework.sequence_parallel == "always"))
        ),
        "schedule": int(vpp > 1),
        "offload": 0,
    }


def _model(row: Row, heads: dict[int, int], assumed: list[str]) -> Model:
    """Return the model of a row: built from its sizes, or the preset of its name where the row gives no sizes or the same ones."""
    preset = find.find_preset(row.get("model", ""))
    if preset and (math.isnan(number(row, "d_model", "d_model_derived")) or _states_sizes_of(row, find.find_model(row["model"]))):
        return find.find_model(row["model"])
    hidden, layers = whole(row, "d_model", "d_model_derived"), whole(row, "n_layers", "n_layers_derived")
    if math.isnan(number(row, "n_heads")):
        assumed.append("heads not stated: as most rows of that width, or of 128")
    n_heads = whole(row, "n_heads", default=heads.get(hidden) or max(1, hidden // 128))
    kv_heads, vocab = whole(row, "n_kv_heads", default=n_heads), whole(row, "vocab", default=51200)
    ffn = whole(row, "d_ff", default=4 * hidden)
    candidates = _candidates(hidden, layers, n_heads, kv_heads, vocab, ffn, whole(row, "seq_len"))
    stated = number(row, "params_b") * 1e9
    return candidates[0] if math.isnan(stated) else min(candidates, key=lambda model: abs(model.params - stated))


def _states_sizes_of(row: Row, model: Model) -> bool:
    """Return whether a row states the sizes of the model it names, so that the other facts of the preset apply too."""
    d = model.decoder
    stated = {
        "d_model": d.hidden,
        "n_layers": d.layers,
        "n_heads": d.heads,
        "n_kv_heads": d.kv_heads,
        "d_ff": d.ffn,
        "vocab": d.vocab,
    }
    return all(number(row, column) == size for column, size in stated.items())


@cache
def _candidates(hidden: int, layers: int, heads: int, kv_heads: int, vocab: int, ffn: int, seq: int) -> tuple[Model, ...]:
    """Build a GPT of these sizes, and a Llama with and without a tied head. Tables seldom state gate and tying; the caller picks by
    parameter count."""
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
    source = "a table of measurements"
    llamas = tuple(
        build(llama | {"tie_word_embeddings": tied}, f"llama-{name}-k{kv_heads}{'-tied' * tied}", source)
        for tied in (False, True)
    )
    if kv_heads != heads:
        return llamas
    gpts = (build(gpt, f"gpt-{name}", source),)
    return gpts + llamas if ffn == 4 * hidden else llamas + gpts
