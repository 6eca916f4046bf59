"""Hugging Face Trainer and TRL: TrainingArguments as flags or YAML, with a DeepSpeed or FSDP file beside them."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.read.flags import POSITIONAL
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, deepspeed, recipe
from meshwise.programs.train.limits import TRANSFORMERS, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "HF Trainer", "transformers 5"
SHARDING = {"full_shard": 3, "shard_grad_op": 2, "hybrid_shard": 3, "hybrid_shard_zero2": 2, "no_shard": 0}


UNCOUNTED = re.compile(r"4bit|fp8|apollo|lion|ademamix|galore.*8bit")  # optimizers whose state is none of those counted


def _optimizer(value: object) -> str | None:
    text = str(value).lower()
    if UNCOUNTED.search(text):
        raise ValueError(value)
    if "8bit" in text:
        return "adamw-paged-8bit" if "paged" in text else "adamw-8bit"
    if "paged" in text:
        return "adamw-paged"
    names = {"galore": "galore", "lomo": "lomo", "adamw": "adamw", "adafactor": "adafactor", "sgd": "sgd", "muon": "muon"}
    found = next((name for start, name in names.items() if start in text), None)
    if found is None and text:
        raise ValueError(value)
    return found


WORDS = {
    "adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit", "adamw-paged": "paged_adamw_32bit",
    "adamw-paged-8bit": "paged_adamw_8bit", "adafactor": "adafactor", "galore": "galore_adamw", "lomo": "lomo",
    "sgd": "sgd",
}  # fmt: skip
OPTIMIZERS = Kind(_optimizer, WORDS.get, "an optimizer whose memory is counted")


def _sharding(value: object) -> int | None:
    """Return the ZeRO stage of --fsdp "full_shard auto_wrap" or a list of such words; of true, which is FSDP with its default."""
    if value is True or str(value).lower() == "true":
        return 3
    text = " ".join(str(item) for item in value) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return next((SHARDING[name] for name in text.replace(",", " ").split() if name in SHARDING), None)


STRATEGIES = {3: "full_shard", 2: "shard_grad_op"}
FSDP = Kind(_sharding, STRATEGIES.get, "a sharding strategy", takes=-1)
FSDP_OFFLOAD = Kind(lambda value: "parameters" if "offload" in str(value) else None, str, "a sharding strategy", takes=-1)

TRAINING = table(
    "trainer", fsdp=FSDP, fsdp_offload=FSDP_OFFLOAD, optimizers=OPTIMIZERS, attention=recipe.ATTENTION, trl_keys=adapters.TRL_KEYS
)
OBJECTIVES = ("sft", "dpo", "kto", "reward")  # verbs of `trl`, and its example scripts, whose arguments these are
VERB = Kind(lambda value: value if value in OBJECTIVES[1:] else None, str, "an objective")
KEYS = table("trainer-command", training=TRAINING, verb=VERB)
LIMITS: Limits = {**TRANSFORMERS, "tp": (1,), "cp": (1,)}


def meaning(facts: Run) -> Run:
    """Add recompute, precision and loss, and what DeepSpeed or FSDP say in their own file."""
    precise = [name for name in ("bf16", "fp16") if facts.value(name) is True]
    if precise:
        facts = facts.adding([facts.meaning("precision", precise[0], precise[0])])
    elif facts.value("precision") is None and not any(name in facts for name in ("bf16", "fp16", "precision")):
        facts = facts.adding([Stated("precision", "fp32", "default", None, "bf16", f"default of {TITLE}, {VERSION}")])
    if facts.value("recompute_on") is not None and facts.value("recompute") in (None, "none"):
        facts = facts.adding([facts.meaning("recompute", "full" if facts.value("recompute_on") else "none", "recompute_on")])
    file = facts.get("fsdp_file")
    if file is not None and not str(file.value).startswith("{") and facts.value("recompute") in (None, "none"):
        facts = facts.adding(
            [Stated("recompute", None, "unknown", file.span, file.key, f"in {file.value or file.key}, which is not read")]
        )
    if facts.value("liger"):
        facts = facts.adding([facts.meaning("loss", "fused", "liger")])
    script = facts.text("script").removesuffix(".py").replace("reward_modeling", "reward")
    if script in OBJECTIVES[1:] and "objective" not in facts:
        facts = facts.adding([facts.meaning("objective", script, "script")])
    return facts.adding([*_tuner(facts), *adapters.meaning(facts), *_sharded(facts)])


def _tuner(facts: Run) -> Iterable[Stated]:
    """Yield TRL where arguments of its SFTConfig or ModelConfig are set; a script with the Trainer alone has none of them."""
    own = next((row.fact for row in adapters.TRL_KEYS if row.fact in facts), "")
    lengths = facts.get("seq")
    if facts.value("shipped"):
        yield facts.meaning("tuner", "trl", "shipped")
    elif own or (lengths is not None and lengths.key.lstrip("-") in ("max_length", "max_seq_length")):
        yield facts.meaning("tuner", "trl", own or "seq")


SHIPPED = {"single_gpu": 0, "multi_gpu": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3}
"""ZeRO stages of the configurations that TRL ships for accelerate (trl/accelerate_configs, 1.16), all for eight processes."""
SHIPPED_PROCESSES = 8


def _sharded(facts: Run) -> Iterable[Stated]:
    """Yield the ZeRO stage where no file says it: TRL's by name, unknown without DeepSpeed's file, 0 without DeepSpeed and FSDP."""
    shipped = facts.text("shipped")
    if shipped in SHIPPED or "processes" in facts:
        count = facts.value("processes") if "processes" in facts else 1 if shipped == "single_gpu" else SHIPPED_PROCESSES
        yield facts.meaning("devices", count, "processes", "shipped")
    if shipped in SHIPPED:
        yield facts.meaning("zero", SHIPPED[shipped], "shipped")
        by = "deepspeed" if shipped.startswith("zero") else "fsdp" if SHIPPED[shipped] else "ddp"
        yield facts.meaning("predicted_by", by, "shipped")
        return
    if "zero" in facts:
        if facts.values["zero"].key in ("fsdp", "--fsdp"):
            yield facts.meaning("predicted_by", "fsdp", "zero")
        return
    file = facts.get("deepspeed_file")
    if file is not None:
        yield Stated("zero", None, "unknown", file.span, file.key, f"in {file.value}, which was not given")
    elif facts.value("from_file"):
        why = "what starts it says so: give the launch script, or accelerate's or DeepSpeed's file"
        yield Stated("zero", None, "unknown", None, "", why)
    elif "launched_by" not in facts:
        yield Stated("zero", 0, "default", None, "fsdp", f"{TITLE} shards nothing without --deepspeed or --fsdp")


def values_of(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts as TrainingArguments."""
    values = dict(setup.values)
    if not by_fsdp(setup):
        values.pop("zero", None)
    values["recompute_on"] = setup.text("recompute") == "full"
    values["fp16" if setup.text("precision") == "fp16" else "bf16"] = True
    values |= {"liger": True} if setup.text("loss") == "fused" else {}
    return values | adapters.wording(setup)


def write(setup: Setup) -> Written:
    """Return DeepSpeed's JSON where something is sharded, and the command of a training script."""
    values = values_of(setup)
    files: dict[str, str] = {}
    if setup.whole("zero", 0) and not by_fsdp(setup):
        files[deepspeed.FILE] = forms.json_text(deepspeed.PROGRAM.settings(deepspeed.values_of(setup)))
        values["deepspeed_file"] = deepspeed.FILE
    script = "${TRAIN_SCRIPT:?set TRAIN_SCRIPT: your script with a Trainer}"
    pairs = [(f"--{key}", value) for key, value in PROGRAM.settings(values)]
    pairs += [("--model_name_or_path", setup.model), ("--output_dir", "${OUTPUT_DIR:?set OUTPUT_DIR: the folder of checkpoints}")]
    words = [word for key, value in pairs for word in (key, *words_of(value))]
    return Written(files, (script, *words))


def by_fsdp(setup: Setup) -> bool:
    """Return whether a plan shards by the Trainer's own FSDP, which its arguments can say; otherwise DeepSpeed's file does."""
    return bool(setup.whole("zero", 0)) and setup.text("sharded_by") == "fsdp" and setup.text("offload", "none") == "none"


def words_of(value: Any) -> list[str]:
    """Return a value as the words after a flag: a list is several."""
    return [str(item) for item in cast(list[object], value)] if isinstance(value, list) else [forms.number(value)]


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, can(setup))
    yield from deepspeed.replicas(setup, TITLE)
    yield from adapters.refuse_base(setup, TITLE)


ATTENTION = ("fa2", "fa3", "fa4", "unfused")


def can(setup: Setup) -> dict[str, tuple[str, ...]]:
    """Return what it can say of a recipe: DeepSpeed's file, where there is one, says what is hidden and how gradients are summed."""
    return {"attention": ATTENTION, **(deepspeed.CAN if setup.whole("zero", 0) and not by_fsdp(setup) else {})}


OWN_KEYS = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "gradient_checkpointing", "max_steps",
}  # fmt: skip


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many TrainingArguments a command or a file has."""
    names = {setting.key.lstrip("-").replace("-", "_") for setting in settings}
    if script == "trl" and any(one.key == POSITIONAL and one.value in OBJECTIVES for one in settings):
        return 20
    return len(names & OWN_KEYS) if "per_device_train_batch_size" in names or len(names & OWN_KEYS) > 1 else 0


PROGRAM = Program(
    name="trainer", title=TITLE, version=VERSION, framework="accelerate", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=values_of, meaning=meaning, recognises=recognises, flag_words=True,
    refers={"--deepspeed": "deepspeed", "deepspeed": "deepspeed", "--config": "trainer"}, auto="auto: filled in when it runs",
    check="python $TRAIN_SCRIPT ... --max_steps 1",
)  # fmt: skip
