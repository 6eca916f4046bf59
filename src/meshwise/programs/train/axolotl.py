"""Axolotl: its YAML."""

from collections.abc import Iterable, Sequence

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, INT, TEXT, Kind, switch, word
from meshwise.programs.program import KERNELS, Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import adapters, deepspeed, recipe, trainer
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, TRANSFORMERS, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Axolotl", "0.21"
FILE = "axolotl.yaml"
CHECK = "import yaml; from axolotl.utils.schemas.config import AxolotlInputConfig as C; "


def _recompute(value: object) -> str | None:
    """Return 'full' for true and its variants that keep checkpoints elsewhere ('offload', 'unsloth'), 'none' for false."""
    text = str(value).lower()
    if text in ("true", "offload", "offload_disk", "unsloth", "yes", "on"):
        return "full"
    return "none" if text in ("false", "none", "no", "off") else None


RECOMPUTE = Kind(_recompute, lambda how: how == "full", "true, false or offload")
ADAPTERS = word({"lora": "lora", "qlora": "qlora"}, {"": None, "none": None, "null": None, "llama-adapter": "lora"})
OBJECTIVES = word({name: name for name in ("dpo", "kto", "orpo", "simpo")}, {"ipo": "dpo"})
CUT_PLUGIN = "CutCrossEntropyPlugin"


def _plugins(value: object) -> bool | None:
    """Return true for plugins whose loss is on unless a key turns it off: integrations/cut_cross_entropy/args.py."""
    return CUT_PLUGIN in str(value) or None


PLUGINS = Kind(_plugins, lambda _: None, "a list of plugins", takes=-1)
CHECKPOINTING = ("fsdp_config.fsdp_activation_checkpointing",)
FSDP_KEYS = (
    Key("fsdp_version", "fsdp_version", INT, also=("fsdp_config.fsdp_version",)),
    Key("reshard", "fsdp_config.reshard_after_forward", BOOL, also=("fsdp_config.fsdp_reshard_after_forward",)),
    Key("strategy", "fsdp_config.fsdp_sharding_strategy", TEXT, also=("fsdp_config.sharding_strategy",), write="never"),
    Key("fsdp_offload", "fsdp_config.offload_params", BOOL, also=("fsdp_config.fsdp_offload_params",)),
    Key("fsdp_recompute", "fsdp_config.activation_checkpointing", BOOL, also=CHECKPOINTING, write="never"),
    Key("wrap", "fsdp_config.auto_wrap_policy", TEXT),
)
LOSS_SWITCHES = {
    "liger": ("liger_fused_linear_cross_entropy", "fused"), f"{KERNELS}cut": ("cut_cross_entropy", "fused"),
    f"{KERNELS}chunked": ("chunked_cross_entropy", "chunked"), f"{KERNELS}flash": ("flash_attn_cross_entropy", "kernel"),
    f"{KERNELS}liger": ("liger_cross_entropy", "kernel"),
}  # fmt: skip
"""Own names of switches for the loss, each with its key and the loss that it turns on; those of plugins are recalled."""
WRITTEN_LOSS = {"fused": "liger", "chunked": f"{KERNELS}chunked", "kernel": f"{KERNELS}flash"}
RECIPE_KEYS = (
    *(
        Key(name, key, BOOL, write="changed" if name in WRITTEN_LOSS.values() else "never")
        for name, (key, _) in LOSS_SWITCHES.items()
    ),
    Key("attention", "attn_implementation", recipe.ATTENTION),
    *(
        Key("attention", key, switch(kernel), write="never")
        for key, kernel in (("flash_attention", "fa2"), ("xformers_attention", "fa2"), ("eager_attention", "unfused"))
    ),
)
KEYS = (
    Key("model", "base_model", TEXT, write="never"),
    Key("seq", "sequence_len", INT, write="always", default=512),
    Key("mbs", "micro_batch_size", INT, write="always", default=1),
    Key("accumulation", "gradient_accumulation_steps", INT, write="always", default=1),
    Key("steps", "max_steps", Kind(lambda value: int(value) if int(value) > 0 else None, int, "a whole number")),
    Key("tp", "tensor_parallel_size", INT, default=1),
    Key("cp", "context_parallel_size", INT, also=("sequence_parallel_degree",), default=1),
    Key("dp_shard", "dp_shard_size", INT),
    Key("dp_replicate", "dp_replicate_size", INT),
    Key("ep", "expert_parallel_size", INT, default=1),
    Key("recompute", "gradient_checkpointing", RECOMPUTE, default="none", write="always"),
    Key("bf16", "bf16", BOOL),
    Key("fp16", "fp16", BOOL),
    Key("fp8", "fp8", BOOL),
    Key("optimizer", "optimizer", trainer.OPTIMIZERS, write="always"),
    Key("adapter_word", "adapter", ADAPTERS),
    Key("rank", "lora_r", INT),
    Key("alpha", "lora_alpha", INT),
    Key("every", "lora_target_linear", BOOL),
    Key("targets", "lora_target_modules", adapters.NAMES),
    Key("dora", "peft_use_dora", BOOL),
    Key("saved_modules", "lora_modules_to_save", adapters.NAMES, write="never"),
    Key("four_bits", "load_in_4bit", BOOL),
    Key("eight_bits", "load_in_8bit", BOOL),
    Key("objective", "rl", OBJECTIVES),
    Key(f"{KERNELS}plugin", "plugins", PLUGINS, write="never"),
    Key("deepspeed_file", "deepspeed", TEXT),
    Key("old_fsdp", "fsdp", trainer.FSDP, write="never"),
    *FSDP_KEYS,
    Key("compile", "torch_compile", BOOL, default=False),
    Key("frozen", "unfrozen_parameters", Kind(lambda value: bool(value), lambda _: None, "a list"), write="never"),
    *RECIPE_KEYS,
    Key("save_every", "save_steps", INT, write="never"),
    Key("seed", "seed", INT, write="never"),
)
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "sp": (0,), "zero": (2, 3), "recompute": ("none", "full"), "precision": ("bf16", "fp16", "fp8"),
    "offload": ("none", "parameters"), "optimizer": TRANSFORMERS["optimizer"], "loss": ("", *WRITTEN_LOSS),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the precision, and the ZeRO stage of FSDP or of DeepSpeed's file."""
    unclear = next((one for name in ("bf16", "fp16") if (one := facts.get(name)) and one.value is None), None)
    precise = next((name for name in ("fp8", "bf16", "fp16") if facts.value(name) is True), "")
    if precise:
        facts = facts.adding([facts.meaning("precision", precise, precise)])
    elif unclear is not None and "precision" not in facts:
        facts = facts.adding([facts.derived("precision", "bf16", "auto: bf16 on every GPU since Ampere", unclear.fact)])
    facts = facts.adding(_sharding(facts))
    if facts.value("fsdp_offload") and facts.value("zero"):
        facts = facts.adding([facts.meaning("offload", "parameters", "fsdp_offload")])
    for name, fact, value in (
        ("fsdp_recompute", "recompute", "full"),
        *((name, "loss", loss) for name, (_, loss) in reversed(LOSS_SWITCHES.items())),
        ("every", "targets", (ALL_LINEAR,)),
    ):
        facts = facts.adding([facts.meaning(fact, value, name)] if facts.value(name) else [])
    if facts.value(f"{KERNELS}plugin") and facts.value(f"{KERNELS}cut") is not False and "loss" not in facts:
        facts = facts.adding([facts.meaning("loss", "fused", f"{KERNELS}plugin")])
    if facts.value("adapter_word"):
        method = "dora" if facts.value("dora") else str(facts.value("adapter_word"))
        facts = facts.adding([facts.meaning("adapter", method, "adapter_word")])
    return facts


def _sharding(facts: Run) -> Iterable[Stated]:
    if "zero" in facts:  # of DeepSpeed's file, which also says what predicts it
        return
    file = facts.get("deepspeed_file")
    if file is not None and file.value:
        yield Stated("zero", None, "unknown", file.span, file.key, f"in {file.value}, which was not given")
    elif facts.value("old_fsdp") is not None:
        yield facts.meaning("zero", facts.whole("old_fsdp"), "old_fsdp")
    elif any(row.fact in facts for row in FSDP_KEYS):
        name = next(name for name in ("reshard", "strategy", *(row.fact for row in FSDP_KEYS)) if name in facts)
        stage = trainer.SHARDING.get(str(facts.value("strategy") or "").lower(), 2 if facts.value("reshard") is False else 3)
        yield facts.meaning("zero", stage, name)
    else:
        yield Stated("zero", 0, "default", None, "", f"{TITLE} shards nothing without deepspeed or fsdp_config")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values: dict[str, Value] = dict(setup.values)
    if _by_deepspeed(setup):
        values |= {"deepspeed_file": deepspeed.FILE}
        values.pop("dp_shard", None)
    elif setup.whole("zero", 0):
        values |= {"fsdp_version": 2, "reshard": setup.whole("zero") == 3, "wrap": "TRANSFORMER_BASED_WRAP"}
        values |= {"fsdp_offload": setup.text("offload") == "parameters"}
    else:
        values.pop("dp_shard", None)
    precision = setup.text("precision")
    values |= {"fp16": True} if precision == "fp16" else {"bf16": True} | ({"fp8": True} if precision == "fp8" else {})
    values |= {WRITTEN_LOSS[setup.text("loss")]: True} if setup.text("loss") in WRITTEN_LOSS else {}
    method = setup.text("adapter")
    if method:
        base = adapters.stored_base(setup)
        values |= {"adapter_word": "qlora" if base == "nf4" else "lora"}
        values |= {"dora": True} if method == "dora" else {}
        values |= {"four_bits": True} if base == "nf4" else {"eight_bits": True} if base == "int8" else {}
        if values.get("targets") == (ALL_LINEAR,):
            values |= {"every": True}
            values.pop("targets")
    return values


def write(setup: Setup) -> Written:
    """Return the YAML and the command."""
    todo = forms.PLACEHOLDER
    pairs = [("base_model", setup.model), *PROGRAM.settings(wording(setup))]
    pairs += [("datasets", f"{todo}: a list of data sets"), ("output_dir", [f"{todo}: the folder of checkpoints, as text"])]
    pairs += [("learning_rate", f"{todo}: the peak learning rate")]
    if not setup.values.get("steps"):
        pairs += [("num_epochs", f"{todo}: the number of epochs")]
    files = {FILE: forms.yaml_text(pairs, setup.header)}
    if _by_deepspeed(setup):
        files[deepspeed.FILE] = forms.json_text(deepspeed.PROGRAM.settings(deepspeed.values_of(setup)))
    return Written(files, ("-m", "axolotl.cli.train", FILE))


def _by_deepspeed(setup: Setup) -> bool:
    return setup.text("sharded_by") == "deepspeed" and (setup.whole("zero", 0) > 0 or setup.text("offload", "none") != "none")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    zero = {"zero": (1, 2, 3), "offload": ("none", "optimizer", "parameters")}
    yield from limited(setup, TITLE, LIMITS | (zero if _by_deepspeed(setup) else {}))
    yield from recipe.refuse(setup, TITLE, {"attention": trainer.ATTENTION})
    yield from adapters.refuse_base(setup, TITLE)
    if not setup.whole("zero", 0) and setup.whole("tp") * setup.whole("cp") > 1:
        yield Refusal(f"{TITLE} has tensor and context parallelism only with FSDP 2", {"zero": 3})
    if adapters.stored_base(setup) == "nf4-single":
        yield Refusal(f"{TITLE} always quantizes the scales of nf4 again; expected --base nf4", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of Axolotl's own keys a YAML has."""
    names = {setting.key.split(".")[0] for setting in settings}
    own = {
        "base_model", "sequence_len", "micro_batch_size", "datasets", "adapter", "sample_packing", "val_set_size",
        "dataset_prepared_path", "num_epochs",
    }  # fmt: skip
    return len(names & own) if "base_model" in names else 0


PROGRAM = Program(
    name="axolotl", title=TITLE, version=VERSION, framework="axolotl", form="yaml", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, refers={"deepspeed": "deepspeed"},
    auto="auto: Axolotl chooses it when it runs", check=f"python -c '{CHECK}C(**yaml.safe_load(open(\"{FILE}\")))'",
)  # fmt: skip
