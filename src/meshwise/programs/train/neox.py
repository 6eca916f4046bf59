"""GPT-NeoX: its YAML, which is Megatron's and DeepSpeed's keys in one file. It is read, not written."""

from collections.abc import Sequence

from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import deepspeed, megatron_rules
from meshwise.runs.run import Run

TITLE, VERSION = "GPT-NeoX", "2.0"
AT_LEAST_ONE = Kind(lambda value: max(1, int(value)), int, "a whole number")

KEYS = table(
    "neox", at_least_one=AT_LEAST_ONE, experts=Kind(lambda value: int(value) if int(value) > 1 else None, int, "a whole number"),
    devices=deepspeed.DEVICES,
)  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add what Megatron's keys and DeepSpeed's sections say together."""
    if str(facts.value("gated_by") or "").lower() in ("swiglu", "geglu", "silu_glu"):
        facts = facts.adding([facts.meaning("gated", True, "gated_by")])
    elif "gated" not in facts:
        facts = facts.adding([facts.derived("gated", False, "no gated activation", "gated_by")])
    if facts.value("kv_heads"):
        facts = facts.adding([facts.derived("grouped", True, "num_kv_heads", "kv_heads")])
    facts = deepspeed.meaning(facts).without("predicted_by")
    sharding, offload = facts.get("zero"), facts.get("offload")
    facts = megatron_rules.meaning(facts)
    facts = facts.adding([one for one in (sharding, offload) if one is not None])
    if facts.value("stage") == 0 and facts.value("precision") == "bf16":
        why = "stage 0, but DeepSpeed's pipeline shards the optimizer of bf16"
        facts = facts.adding([facts.derived("zero", 1, why, "stage")])
    return facts


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of NeoX's own keys a YAML has."""
    names = {setting.key.replace("-", "_") for setting in settings}
    own = names & {
        "pipe_parallel_size", "model_parallel_size", "num_layers", "train_micro_batch_size_per_gpu", "pos_emb",
        "no_weight_tying", "gpt_j_residual",
    }  # fmt: skip
    return 2 * len(own) if {"pipe_parallel_size", "model_parallel_size"} & own or {"num_layers", "pos_emb"} <= own else 0


PROGRAM = Program(
    name="neox", title=TITLE, version=VERSION, framework="megatron-deepspeed", form="yaml", keys=KEYS, write=None,
    meaning=meaning, recognises=recognises,
)  # fmt: skip
