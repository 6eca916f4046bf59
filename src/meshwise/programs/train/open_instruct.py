"""open-instruct (finetune.py, dpo_tune.py) and DeepSpeed-Chat (main.py): scripts of their own on DeepSpeed or FSDP; read only."""

from collections.abc import Sequence

from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, recipe
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "open-instruct", "main of 2026, or DeepSpeed-Chat"
SWITCH = Kind(lambda value: value is True or str(value).lower() in ("true", "1", "yes"), bool, "a flag", takes=-1)

KEYS = table("open-instruct", on_off=SWITCH, attention=recipe.ATTENTION)
SCRIPTS = ("finetune.py", "dpo_tune.py", "dpo.py", "reward_modeling.py", "dpo_tune_cache.py", "olmo_core_finetune.py")
TRAINERS = {"--bf16", "--fp16", "--fsdp", "--optim", "--max_steps", "--save_strategy", "--eval_strategy"}  # of HF's Trainer
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
    kind = next((one for one in ("dpo", "reward") if facts.text("script").rpartition("/")[2].startswith(one)), "")
    more += [facts.meaning("objective", kind, "script")] if kind else []
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return more than a Trainer's command has where the script or its flags are theirs."""
    names = {setting.key for setting in settings if setting.key.startswith("--")}
    own = len({name.lstrip("-").replace("-", "_") for name in names} & {row.key for row in KEYS})
    base = script.rpartition("/")[2]
    if (base in SCRIPTS and not names & TRAINERS) or script.startswith("open_instruct") or "--fsdp_shard_degree" in names:
        return own + 4
    return own + 4 if base in ("main.py", "train.py") and len(names & CHAT) > 0 else 0


PROGRAM = Program(
    name="open-instruct", title=TITLE, version=VERSION, framework="deepspeed", form="flags", keys=KEYS, write=None, meaning=meaning,
    recognises=recognises, flag_words=True, refers={"--deepspeed_config": "deepspeed", "--deepspeed_config_file": "deepspeed"},
)  # fmt: skip
