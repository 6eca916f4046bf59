"""Megatron-Bridge: overrides of a recipe, 'model.tensor_model_parallel_size=8', as words of a command or as YAML."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, TEXT, Kind, switch, word
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import megatron, megatron_rules, recipe
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Megatron-Bridge", "0.6"
SECTIONS = {
    "mbs": "train.micro_batch_size", "batch": "train.global_batch_size", "steps": "train.train_iters",
    "seq": "dataset.seq_length", "distributed_optimizer": "ddp.use_distributed_optimizer",
    "instances": "ddp.num_distributed_optimizer_instances", "fsdp": "ddp.use_megatron_fsdp",
    "fsdp_strategy": "ddp.data_parallel_sharding_strategy", "vpp": "model.virtual_pipeline_model_parallel_size",
    "first_stage_layers": "model.num_layers_in_first_pipeline_stage",
    "last_stage_layers": "model.num_layers_in_last_pipeline_stage",
    "embedding_in_split": "model.account_for_embedding_in_pipeline_split",
    "loss_in_split": "model.account_for_loss_in_pipeline_split", "stage_layout": "model.pipeline_model_parallel_layout",
    "optimizer_offload": "optimizer.optimizer_cpu_offload", "offload_fraction": "optimizer.optimizer_offload_fraction",
    "precise_optimizer": "optimizer.use_precision_aware_optimizer", "optimizer": "optimizer.optimizer",
    "save_every": "checkpoint.save_interval", "seed": "rng.seed", "checkpoint_format": "checkpoint.ckpt_format",
}  # fmt: skip
"""Keys that are not `model.` and the name of Megatron-LM's flag."""
DROPPED = ("torch_fsdp", "samples", "layers_per_chunk", "ramp", "activation_offload", "precision", "fp8_format", "fp8_recipe", "fp4_format",
           "fp4_recipe")  # fmt: skip
"""Facts of Megatron without a key here, or with a different one."""


def _key(row: Key) -> Key:
    name = SECTIONS.get(row.fact) or f"model.{row.key.removeprefix('--').replace('-', '_')}"
    kind = BOOL if row.kind.takes == 0 else row.kind
    if row.fact in ("granularity", "vpp") and row.write != "never":
        kind = _or_null(kind, "none" if row.fact == "granularity" else 1)
    always = row.fact in ALWAYS and row.write != "never"
    return replace(row, key=name, also=(), kind=kind, write="always" if always else row.write)


def _or_null(kind: Kind, off: Value) -> Kind:
    """Return a kind whose value for nothing is null."""

    def read(value: Any) -> Value | None:
        return off if str(value).lower() in ("null", "none") else kind.read(value)

    def write(value: Any) -> Any:
        return "null" if value == off else kind.write(value)

    return replace(kind, read=read, write=write)


PRECISIONS = word(
    {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
     "fp8-block": "bf16_with_fp8_subchannel_scaling_mixed", "nvfp4": "bf16_with_nvfp4_mixed"},
    {"bf16_with_fp8_delayed_scaling_mixed": "fp8"},
)  # fmt: skip
NEMO_PRECISIONS = word(
    {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32"},
    {"bf16": "bf16", "16": "fp16", "bf16-true": "bf16", "32-true": "fp32"},
)
NEMO = (
    Key("devices_per_node", "trainer.devices"),
    Key("nodes", "trainer.num_nodes"),
    Key("steps", "trainer.max_steps"),
    Key("precision", "trainer.precision", NEMO_PRECISIONS),
    Key("mbs", "model.micro_batch_size"),
    Key("batch", "model.global_batch_size"),
    Key("seq", "model.encoder_seq_length", also=("model.data.seq_length",)),
    Key("granularity", "model.activations_checkpoint_granularity", megatron.GRANULARITY),
    Key("distributed_optimizer", "model.optim.name", Kind(lambda name: str(name).startswith("distributed_fused"), str, "a name")),
    Key("layers", "model.num_layers"),
    Key("hidden", "model.hidden_size"),
    Key("ffn", "model.ffn_hidden_size"),
    Key("heads", "model.num_attention_heads"),
    Key("kv_heads", "model.num_query_groups"),
    Key("head_dim", "model.kv_channels"),
    Key("positions", "model.max_position_embeddings"),
    Key("gated", "model.activation", Kind(lambda name: "glu" in str(name).lower(), str, "a name")),
    Key("tied", "model.share_embeddings_and_output_weights", BOOL),
    Key("experts", "model.num_moe_experts"),
    Key("seed", "model.seed"),
)
"""Keys of NeMo's YAML before Megatron-Bridge, which are read and not written."""
IN_FP32 = word({"fp32": "true", "bf16": "false"})
RECIPE_KEYS = (
    Key("overlap_reduce", "ddp.overlap_grad_reduce", BOOL, also=("comm_overlap.overlap_grad_reduce",)),
    Key("overlap_gather", "ddp.overlap_param_gather", BOOL, also=("comm_overlap.overlap_param_gather",)),
    Key("overlap_tp", "comm_overlap.tp_comm_overlap", BOOL, also=("model.tp_comm_overlap", "model.ub_tp_comm_overlap")),
    Key("overlap_ep", "comm_overlap.overlap_moe_expert_parallel_comm", BOOL, also=("model.overlap_moe_expert_parallel_comm",)),
    Key(megatron_rules.DISPATCHER, "model.moe_token_dispatcher_type", TEXT),
    Key(megatron_rules.FLEX, "model.moe_flex_dispatcher_backend", TEXT),
    Key("attention", "model.attention_backend", megatron.BACKENDS),
    Key("attention", "model.use_flash_attention", switch("fa2", "unfused"), write="never"),
    Key(megatron_rules.LOSS_FUSION, "model.cross_entropy_loss_fusion", BOOL),
    Key(megatron_rules.LOSS_KERNEL, "model.cross_entropy_fusion_impl", megatron.LOSS_KERNELS),
    Key(megatron_rules.GRAPH_KIND, "model.cuda_graph_impl", megatron.GRAPH_KINDS),
    Key(megatron_rules.GRAPH_STEP, "model.cuda_graph_scope", megatron.GRAPH_SCOPE),
    Key("gradients", "ddp.grad_reduce_in_fp32", IN_FP32, also=("mixed_precision.grad_reduce_in_fp32",)),
    Key("gradients", "model.optim.grad_sync_dtype", recipe.DTYPES, write="never"),
    Key("capacity", "model.moe_expert_capacity_factor", recipe.CAPACITY, write="never"),
)
"""Kernels and hidden communication, recalled. Recipes set most of them, so that an absent key says nothing. Those of NeMo are read too."""
CAN = {**megatron.CAN, "attention": ("fa2", "cudnn", "unfused")}
NAMES = {
    "llama3_8b": "llama-3-8b", "llama3_70b": "llama-3-70b", "llama31_8b": "llama-3.1-8b", "llama31_70b": "llama-3.1-70b",
    "llama31_405b": "llama-3.1-405b", "llama32_1b": "llama-3.2-1b", "llama32_3b": "llama-3.2-3b", "qwen3_8b": "qwen3-8b",
    "qwen3_14b": "qwen3-14b", "qwen3_32b": "qwen3-32b", "qwen3_30b_a3b": "qwen3-30b-a3b", "qwen3_235b_a22b": "qwen3-235b-a22b",
    "qwen25_7b": "qwen2.5-7b", "qwen25_72b": "qwen2.5-72b", "deepseek_v2_lite": "deepseek-v2-lite", "deepseek_v3": "deepseek-v3",
    "mixtral_8x7b": "mixtral-8x7b", "gpt_oss_20b": "gpt-oss-20b", "gpt_oss_120b": "gpt-oss-120b", "kimi_k2": "kimi-k2",
    "gemma3_4b": "gemma-3-4b", "gemma3_27b": "gemma-3-27b", "moonlight_16b": "moonlight-16b-a3b", "llama2_7b": "llama-2-7b",
}  # fmt: skip
"""Models of its recipes by the start of a recipe's name."""


def preset_of(recipe: str) -> str:
    """Return the preset of a recipe's name, such as llama3_70b_pretrain_config; '' for an unknown one."""
    plain = recipe.rpartition(".")[2].lower().replace("-", "_")
    known = [name for name in NAMES if plain == name or plain.startswith(f"{name}_")]
    return NAMES[max(known, key=len)] if known else ""


def meaning(facts: Run) -> Run:
    """Add the model of a recipe. What a recipe sets and no override says is not known: it is Python."""
    facts = megatron_rules.meaning(facts)
    named = facts.get("recipe")
    if named is None:
        return facts
    why = f"in the recipe {named.value}, which is Python"
    facts = facts.adding(Stated(one.fact, None, "unknown", one.span, one.key, why) for one in facts if one.how == "default")
    missing = [name for name in ("batch", "mbs", "seq", "precision") if name not in facts]
    facts = facts.adding(Stated(name, None, "unknown", named.span, named.key, why) for name in missing)
    preset = preset_of(str(named.value or ""))
    return facts.adding([facts.meaning("model", preset, "recipe")] if preset and "model" not in facts else [])


ALWAYS = (
    "sequence_parallel", "cp", "ep", "distributed_optimizer", "granularity", "vpp", "fsdp", "optimizer_offload", "instances",
    "optimizer",
)  # fmt: skip
"""Facts that are always written, since a recipe may set another value."""
_KEPT = (row for row in (*megatron.LAYOUT_KEYS, *megatron.WORK_KEYS) if row.fact not in DROPPED)
KEYS = (
    *(_key(row) for row in _KEPT if row.key != "--recompute-activations"),
    Key("precision", "mixed_precision", PRECISIONS, write="always"),
    *RECIPE_KEYS,
    *(replace(row, write="never") for row in NEMO),
    Key("recipe", "--recipe", TEXT, also=("--model", "--model-recipe-name", "--model_recipe_name"), write="never"),
)


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in Megatron's words."""
    words = megatron_rules.recipe_words(setup) | megatron_rules.switch_words(setup, assumed=False)
    words |= {"precision": setup.text("precision"), **megatron_rules.dispatcher_words(setup)}
    off: dict[str, Value] = {"optimizer_offload": False, "instances": 1, "granularity": "none"}
    return off | megatron_rules.wording(setup) | words


def write(setup: Setup) -> Written:
    """Return the command of a recipe with overrides."""
    pairs = PROGRAM.settings(wording(setup))
    if not setup.values.get("steps"):
        pairs.append(("train.train_iters", "${TRAIN_ITERS:?set TRAIN_ITERS: the number of steps}"))
    pairs.append(("checkpoint.save", "${CHECKPOINTS:?set CHECKPOINTS: the folder of checkpoints}"))
    pairs.append(("checkpoint.load", "${CHECKPOINTS}"))  # a restart goes on
    data = "${DATA_PATH:?set DATA_PATH: the prefix of the tokenized data}"
    named = next((name for name, preset in NAMES.items() if setup.plan is not None and preset == setup.plan.ask.model), "")
    recipe = ("--model", named, "--mode", "pretrain") if named else ("--recipe", RECIPE)
    command = ("run_recipe.py", *recipe, *forms.pair_words([*pairs, ("dataset.data_path", data)]))
    return Written({}, command, environment=megatron.environment(setup))


RECIPE = "${RECIPE:?set RECIPE: the recipe of the model in megatron.bridge.recipes}"


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from megatron_rules.refuse(setup, TITLE)
    yield from megatron_rules.refused_recipe(setup, TITLE, CAN)
    if setup.text("offload") == "activations":
        yield Refusal(f"{TITLE} offloads activations in its recipes' Python", {"offload": "none"})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many overrides a command or YAML has."""
    names = {setting.key for setting in settings}
    own = {row.key for row in KEYS if "." in row.key}
    if script and script.rpartition("/")[2] in SCRIPTS:
        return 8 + len(names & own)
    sure = any(name.startswith(("model.", "ddp.", "checkpoint.", "comm_overlap.", "trainer.")) for name in names & own)
    return len(names & own) if sure else 0


SCRIPTS = ("run_recipe.py", "run_script.py", "setup_experiment.py")


PROGRAM = Program(
    name="megatron-bridge", title=TITLE, version=VERSION, framework="megatron-bridge", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises,
)  # fmt: skip
