"""open-instruct (finetune.py, dpo_tune.py) and DeepSpeed-Chat (main.py): scripts of their own on DeepSpeed or FSDP; read only."""

from collections.abc import Sequence

from meshwise.programs.kinds import BOOL, INT, TEXT, Kind, flag
from meshwise.programs.program import Key, Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import adapters, recipe
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "open-instruct", "main of 2026, or DeepSpeed-Chat"
SWITCH = Kind(lambda value: value is True or str(value).lower() in ("true", "1", "yes"), bool, "a flag", takes=-1)

KEYS = (
    Key("model", "model_name_or_path", TEXT, write="never"),
    Key("mbs", "per_device_train_batch_size", INT, default=8, write="never"),
    Key("accumulation", "gradient_accumulation_steps", INT, default=1, write="never"),
    Key("seq", "max_seq_length", INT, also=("max_seq_len",), write="never"),
    Key("recompute_on", "gradient_checkpointing", SWITCH, default=False, write="never"),
    Key("steps", "max_train_steps", INT, write="never"),
    Key("zero", "zero_stage", INT, also=("actor_zero_stage",), write="never"),
    Key("dtype", "dtype", TEXT, write="never"),
    Key("shards", "fsdp_shard_degree", INT, write="never"),
    Key("replicas", "fsdp_num_replicas", INT, write="never"),
    Key("cp", "context_parallel_degree", INT, also=("sequence_parallel_size",), write="never"),
    Key("tp", "tensor_parallel_degree", INT, write="never"),
    Key("use_peft", "use_lora", SWITCH, write="never"),
    Key("rank", "lora_rank", INT, also=("lora_dim",), write="never"),
    Key("alpha", "lora_alpha", INT, write="never"),
    Key("four_bits", "use_qlora", SWITCH, write="never"),
    Key("host", "offload", SWITCH, write="never"),
    Key("flash", "use_flash_attn", SWITCH, write="never"),
    Key("attention", "attn_implementation", recipe.ATTENTION, write="never"),
    Key("compile", "compile_model", SWITCH, write="never"),
    Key("seed", "seed", INT, write="never"),
    Key("deepspeed_on", "deepspeed", flag(), write="never"),
    Key("dropped", "use_liger_kernel", BOOL, write="never"),
)
SCRIPTS = ("finetune.py", "dpo_tune.py", "dpo.py", "reward_modeling.py", "dpo_tune_cache.py", "olmo_core_finetune.py")
CHAT = {"--zero_stage", "--actor_zero_stage", "--only_optimize_lora", "--lora_dim", "--data_split", "--sft_only_data_path"}


def meaning(facts: Run) -> Run:
    """Add sharding, precision, recompute, offload and the adapter."""
    more: list[Stated] = []
    dtype = str(facts.value("dtype") or "")
    if dtype:
        more.append(facts.meaning("precision", {"bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype), "dtype"))
    elif "precision" not in facts:
        why = "the script's own: accelerate's file or --dtype says it"
        more.append(Stated("precision", None, "unknown", None, "", why))
    if facts.whole("shards"):
        more += [facts.meaning("zero", 3, "shards"), facts.meaning("dp_shard", facts.whole("shards"), "shards")]
        more += [facts.meaning("dp_replicate", facts.whole("replicas"), "replicas")] if facts.whole("replicas") else []
        more.append(facts.meaning("predicted_by", "fsdp", "shards"))
    elif "zero" not in facts:
        more.append(Stated("zero", None, "unknown", None, "", "accelerate's or DeepSpeed's file says it, which was not given"))
    if facts.value("recompute") is None:
        more.append(facts.meaning("recompute", "full" if facts.value("recompute_on") else "none", "recompute_on"))
    if facts.value("host"):
        more.append(facts.meaning("offload", "parameters" if facts.whole("zero") == 3 else "optimizer", "host"))
    if facts.value("flash") and "attention" not in facts:
        more.append(facts.meaning("attention", "fa2", "flash"))
    chat = facts.get("rank")
    if chat is not None and chat.key.endswith("lora_dim") and facts.whole("rank"):
        more.append(facts.meaning("adapter", "lora", "rank"))
    elif facts.value("use_peft") or facts.value("four_bits"):
        more += adapters.meaning(facts)
    else:
        facts = facts.without("rank", "alpha")
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return more than a Trainer's command has where the script or its flags are theirs."""
    names = {setting.key for setting in settings if setting.key.startswith("--")}
    own = len({name.lstrip("-").replace("-", "_") for name in names} & {row.key for row in KEYS})
    base = script.rpartition("/")[2]
    if base in SCRIPTS or script.startswith("open_instruct") or "--fsdp_shard_degree" in names:
        return own + 4
    return own + 4 if base in ("main.py", "train.py") and len(names & CHAT) > 0 else 0


PROGRAM = Program(
    name="open-instruct", title=TITLE, version=VERSION, framework="deepspeed", form="flags", keys=KEYS, write=None, meaning=meaning,
    recognises=recognises, flag_words=True, refers={"--deepspeed_config": "deepspeed", "--deepspeed_config_file": "deepspeed"},
)  # fmt: skip
