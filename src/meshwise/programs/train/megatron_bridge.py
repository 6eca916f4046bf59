"""Megatron-Bridge: overrides of a recipe, 'model.tensor_model_parallel_size=8', as words of a command or as YAML."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, TEXT, Kind, switch, word
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import megatron, megatron_rules, recipe
from meshwise.runs.run import Value

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
    return replace(row, key=name, also=(), kind=kind)


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
_KEPT = (row for row in (*megatron.LAYOUT_KEYS, *megatron.WORK_KEYS) if row.fact not in DROPPED)
KEYS = (
    *(_key(row) for row in _KEPT if row.key != "--recompute-activations"),
    Key("precision", "mixed_precision", PRECISIONS, write="always"),
    *RECIPE_KEYS,
    *(replace(row, write="never") for row in NEMO),
)


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in Megatron's words."""
    words = megatron_rules.recipe_words(setup) | megatron_rules.switch_words(setup, assumed=False)
    return megatron_rules.wording(setup) | words | {"precision": setup.text("precision")}


def write(setup: Setup) -> Written:
    """Return the command of a recipe with overrides."""
    pairs = PROGRAM.settings(wording(setup))
    if not setup.values.get("steps"):
        pairs.append(("train.train_iters", "${TRAIN_ITERS:?set TRAIN_ITERS: the number of steps}"))
    pairs.append(("checkpoint.save", "${CHECKPOINTS:?set CHECKPOINTS: the folder of checkpoints}"))
    recipe = "${RECIPE:?set RECIPE: the recipe of the model in megatron.bridge.recipes}"
    data = "${DATA_PATH:?set DATA_PATH: the prefix of the tokenized data}"
    command = ("run_recipe.py", "--recipe", recipe, *forms.pair_words([*pairs, ("dataset.blend", data)]))
    return Written({}, command, environment=megatron.environment(setup))


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from megatron_rules.refuse(setup, TITLE)
    yield from megatron_rules.refused_recipe(setup, TITLE, CAN)
    if setup.text("offload") == "activations":
        yield Refusal(f"{TITLE} offloads activations in its recipes' Python", {"offload": "none"})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many overrides a command or YAML has."""
    names = {setting.key for setting in settings}
    own = {row.key for row in KEYS if "." in row.key}
    return len(names & own)


PROGRAM = Program(
    name="megatron-bridge", title=TITLE, version=VERSION, framework="megatron-bridge", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=megatron_rules.meaning, recognises=recognises,
)  # fmt: skip
