"""GPT-NeoX: its YAML, which is Megatron's and DeepSpeed's keys in one file. It is read, not written."""

from collections.abc import Sequence

from meshwise.programs.kinds import BOOL, INT, TEXT, Kind, switch, word
from meshwise.programs.program import Key, Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import deepspeed, megatron_rules
from meshwise.runs.run import Run

TITLE, VERSION = "GPT-NeoX", "2.0"
AT_LEAST_ONE = Kind(lambda value: max(1, int(value)), int, "a whole number")
PRECISIONS = word({"bf16": "bfloat16", "fp16": "fp16", "fp32": "fp32"}, {"bf16": "bf16", "float16": "fp16"})
POSITIONS = word({"learned": "learned", "rope": "rotary", "alibi": "alibi", "none": "none"}, {"sinusoidal": None, "rpe": None})

OTHER_NORMS = {"scalenorm": None, "te_rmsnorm": "rmsnorm", "te_layernorm": "layernorm"}
NORMS = word({"layernorm": "layernorm", "rmsnorm": "rmsnorm"}, OTHER_NORMS)
OTHERS = {"onebitadam": "adamw", "cpu_adam": "adamw", "sm3": None, "madgrad_wd": None, "sgd": "sgd", "lion": None}
OPTIMIZERS = word({"adamw": "Adam"}, OTHERS)


def _row(fact: str, key: str, kind: Kind = INT, default: object = None) -> Key:
    """Return a row whose key may have dashes or underscores, as NeoX allows."""
    return Key(fact, key, kind, also=(key.replace("_", "-"),), default=default, write="never")  # pyright: ignore[reportArgumentType]


KEYS = (
    _row("tp", "model_parallel_size", default=1),
    _row("pp", "pipe_parallel_size", AT_LEAST_ONE, default=1),
    _row("cp", "context_parallel_size", default=1),
    _row("ep", "moe_expert_parallel_size", default=1),
    _row("sequence_parallel", "sequence_parallel", BOOL, default=False),
    _row("layers", "num_layers"), _row("hidden", "hidden_size"), _row("heads", "num_attention_heads"),
    _row("kv_heads", "num_kv_heads"), _row("ffn", "intermediate_size"),
    _row("seq", "seq_length"), _row("positions", "max_position_embeddings"),
    _row("position_kind", "pos_emb", POSITIONS, default="learned"),
    _row("tied", "no_weight_tying", switch(False, True), default=True),
    _row("gated_by", "activation", TEXT),
    _row("norm", "norm", NORMS, default="layernorm"),
    _row("experts", "moe_num_experts", Kind(lambda value: int(value) if int(value) > 1 else None, int, "a whole number")),
    _row("batch", "train_batch_size"), _row("mbs", "train_micro_batch_size_per_gpu"),
    _row("accumulation", "gradient_accumulation_steps"), _row("steps", "train_iters"),
    _row("granularity", "checkpoint_activations", switch("full", "none"), default="none"),
    _row("stage", "zero_optimization.stage", default=0),
    _row("stage", "zero_stage"),
    _row("optimizer_device", "zero_optimization.offload_optimizer.device", deepspeed.DEVICES),
    _row("parameter_device", "zero_optimization.offload_param.device", deepspeed.DEVICES),
    _row("old_offload", "zero_optimization.cpu_offload", BOOL),
    _row("overlap_reduce", "zero_optimization.overlap_comm", BOOL),
    _row("bf16", "bf16.enabled", BOOL), _row("fp16", "fp16.enabled", BOOL), _row("precision", "precision", PRECISIONS),
    _row("optimizer", "optimizer.type", OPTIMIZERS),
    _row("save_every", "checkpoint_factor"), _row("seed", "seed"),
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
