"""Megatron-LM: the flags of pretrain_gpt.py, megatron/training/arguments.py."""

from collections.abc import Iterable, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import INT, NUMBER, TEXT, WORDS, Kind, flag, word
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import megatron_rules as rules
from meshwise.programs.train import recipe
from meshwise.runs.run import Value

TITLE, VERSION = "Megatron-LM", "core 0.19"
SCRIPT = "pretrain_gpt.py"
OPTIMIZERS = word({"adamw": "adam", "sgd-momentum": "sgd", "muon": "muon"}, {"dist_muon": "muon", "adaptive_muon": "muon"})
OTHER_POSITIONS = {"yarn": "rope", "mrope": "rope", "relative": None}
POSITIONS = word({"learned": "learned_absolute", "rope": "rope", "none": "none"}, OTHER_POSITIONS)
NORMS = word({"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"})
GRANULARITY = word({"selective": "selective", "full": "full"}, {"none": "none", "null": "none"})

MODEL_KEYS = (
    Key("layers", "--num-layers"),
    Key("hidden", "--hidden-size"),
    Key("ffn", "--ffn-hidden-size"),
    Key("heads", "--num-attention-heads"),
    Key("grouped", "--group-query-attention", flag(), default=False),
    Key("kv_heads", "--num-query-groups"),
    Key("head_dim", "--kv-channels"),
    Key("vocab", "--vocab-size", also=("--padded-vocab-size",)),
    Key("positions", "--max-position-embeddings"),
    Key("position_kind", "--position-embedding-type", POSITIONS, default="learned"),
    Key("rotary", "--use-rotary-position-embeddings", flag(), write="never"),
    Key("rope_theta", "--rotary-base", INT),
    Key("norm", "--normalization", NORMS, default="layernorm"),
    Key("norm_eps", "--norm-epsilon", NUMBER, also=("--layernorm-epsilon",)),
    Key("gated", "--swiglu", flag(), default=False),
    Key("tied", "--untie-embeddings-and-output-weights", flag(False), default=True),
    Key("biased", "--disable-bias-linear", flag(False), default=True),
    Key("qkv_bias", "--add-qkv-bias", flag(), default=False),
    Key("qk_norm", "--qk-layernorm", flag("head")),
    Key("experts", "--num-experts"),
    Key("top_k", "--moe-router-topk", default=2),
    Key("expert_ffn", "--moe-ffn-hidden-size"),
    Key("shared_ffn", "--moe-shared-expert-intermediate-size"),
    Key("layer_kinds", "--moe-layer-freq", TEXT),
    Key("expert_groups", "--moe-router-num-groups"),
    Key("group_top_k", "--moe-router-group-topk"),
    Key("latent", "--multi-latent-attention", flag(), default=False),
    Key("q_rank", "--q-lora-rank"),
    Key("kv_rank", "--kv-lora-rank"),
    Key("nope_dim", "--qk-head-dim"),
    Key("rope_dim", "--qk-pos-emb-head-dim"),
    Key("v_dim", "--v-head-dim"),
    Key("mtp_layers", "--mtp-num-layers"),
    Key("tokenizer", "--tokenizer-type", TEXT, write="never", default="GPT2BPETokenizer"),
    Key("vocab_file", "--vocab-file", TEXT, also=("--tokenizer-model",), write="never"),
)
LAYOUT_KEYS = (
    Key("tp", "--tensor-model-parallel-size", also=("--model-parallel-size",), default=1, write="always"),
    Key("sequence_parallel", "--sequence-parallel", flag(), default=False),
    Key("pp", "--pipeline-model-parallel-size", default=1, write="always"),
    Key("vpp", "--num-virtual-stages-per-pipeline-rank", default=1),
    Key("layers_per_chunk", "--num-layers-per-virtual-pipeline-stage", write="never"),
    Key("first_stage_layers", "--decoder-first-pipeline-num-layers"),
    Key("last_stage_layers", "--decoder-last-pipeline-num-layers"),
    Key("embedding_in_split", "--account-for-embedding-in-pipeline-split", flag()),
    Key("loss_in_split", "--account-for-loss-in-pipeline-split", flag()),
    Key("stage_layout", "--pipeline-model-parallel-layout", TEXT),
    Key("cp", "--context-parallel-size", default=1),
    Key("ep", "--expert-model-parallel-size", default=1),
    Key("etp", "--expert-tensor-parallel-size"),
    Key("distributed_optimizer", "--use-distributed-optimizer", flag(), default=False),
    Key("instances", "--num-distributed-optimizer-instances", default=1),
    Key("fsdp", "--use-megatron-fsdp", flag(), also=("--use-custom-fsdp",), default=False),
    Key("fsdp_strategy", "--data-parallel-sharding-strategy", TEXT),
    Key("torch_fsdp", "--use-torch-fsdp2", flag(), write="never"),
    Key("checkpoint_format", "--ckpt-format", TEXT),
    Key("mbs", "--micro-batch-size", also=("--batch-size",), write="always"),
    Key("batch", "--global-batch-size", write="always"),
    Key("ramp", "--rampup-batch-size", WORDS),
    Key("batch_schedule", "--step-batch-size-schedule", TEXT, write="never"),
    Key("seq", "--seq-length", also=("--encoder-seq-length",), write="always"),
    Key("granularity", "--recompute-granularity", GRANULARITY, default="none"),
    Key("granularity", "--recompute-activations", flag("selective"), write="never"),
    Key("granularity", "--checkpoint-activations", flag("full"), write="never"),
    Key("granularity", "--activations-checkpoint-method", word({"full": "uniform"}, {"block": "full"}), write="never"),
    Key("granularity", "--activations-checkpoint-granularity", GRANULARITY, write="never"),
    Key("recompute_modules", "--recompute-modules", WORDS),
    Key("recompute_method", "--recompute-method", TEXT),
    Key("recompute_layers", "--recompute-num-layers"),
    Key("optimizer_offload", "--optimizer-cpu-offload", flag(), default=False),
    Key("offload_fraction", "--optimizer-offload-fraction", NUMBER),
    Key("precise_optimizer", "--use-precision-aware-optimizer", flag()),
    Key("activation_offload", "--cpu-offloading-num-layers"),
)
WORK_KEYS = (
    Key("precision", "--bf16", flag("bf16"), default="fp32"),
    Key("precision", "--fp16", flag("fp16")),
    Key("fp8_format", "--fp8-format", TEXT),
    Key("fp8_recipe", "--fp8-recipe", TEXT),
    Key("fp4_format", "--fp4-format", TEXT),
    Key("fp4_recipe", "--fp4-recipe", TEXT),
    Key("optimizer", "--optimizer", OPTIMIZERS, default="adamw"),
    Key("steps", "--train-iters"),
    Key("samples", "--train-samples", write="never"),
    Key("save_every", "--save-interval"),
    Key("seed", "--seed"),
)
KEYS = (*MODEL_KEYS, *LAYOUT_KEYS, *WORK_KEYS)
BACKENDS = word({"fa2": "flash", "cudnn": "fused", "unfused": "unfused"}, {"local": "unfused", "auto": None})
"""Transformer Engine's: `flash` is the flash-attn package, which is FA2 unless a version is stated; `fused` is cuDNN's."""
FLASH_VERSIONS = word({"fa2": "2", "fa3": "3", "fa4": "4"})
LOSS_KERNELS = word({"compiled": "native", "kernel": "te"}, {"linear": "fused"})
GRAPH_KINDS = word({"none": "none", "partial": "local"}, {"transformer_engine": "partial", "full_iteration": "full"})
GRAPH_SCOPE = Kind(
    lambda value: True if "full_iteration" in str(value) else None, lambda _: "full_iteration", "parts of a step", takes=-1
)
RECIPE_KEYS = (
    Key("overlap_reduce", "--overlap-grad-reduce", flag(), default=False),
    Key("overlap_gather", "--overlap-param-gather", flag(), default=False),
    Key("overlap_tp", "--tp-comm-overlap", flag(), default=False),
    Key("overlap_ep", "--overlap-moe-expert-parallel-comm", flag(), default=False),
    Key(rules.DISPATCHER, "--moe-token-dispatcher-type", TEXT),
    Key(rules.FLEX, "--moe-flex-dispatcher-backend", TEXT),
    Key("grouped_gemm", "--moe-grouped-gemm", flag(), write="never"),
    Key("attention", "--attention-backend", BACKENDS),
    Key("attention", "--use-flash-attn", flag("fa2"), write="never"),
    Key(rules.FLASH_VERSION, "--flash-attention-version", FLASH_VERSIONS),  # its values are recalled
    Key(rules.LOSS_FUSION, "--cross-entropy-loss-fusion", flag(), default=False),
    Key(rules.LOSS_KERNEL, "--cross-entropy-fusion-impl", LOSS_KERNELS, default="compiled"),  # its value linear is recalled
    Key(rules.GRAPH_KIND, "--cuda-graph-impl", GRAPH_KINDS, default="none"),
    Key(rules.GRAPH_KIND, "--enable-cuda-graph", flag("partial"), also=("--external-cuda-graph",), write="never"),
    Key(rules.GRAPH_STEP, "--cuda-graph-scope", GRAPH_SCOPE),
    Key(rules.GRAPH_NANS, "--no-check-for-nan-in-loss-and-grad", flag()),  # a graph of a whole step needs it (recalled)
    Key("gradients", "--grad-reduce-in-bf16", flag("bf16")),
    Key("gradients", "--accumulate-allreduce-grads-in-fp32", flag("fp32")),
    Key("capacity", "--moe-expert-capacity-factor", recipe.CAPACITY, write="never"),
)
"""Kernels and hidden communication."""
CAN = {
    "attention": ("fa2", "fa3", "fa4", "cudnn", "unfused"), "graphs": ("none", "partial", "full"), "gradients": ("fp32", "bf16"),
    "overlap": tuple(rules.SWITCHES),
}  # fmt: skip
"""What it can say of a recipe."""

TOKENIZER = (
    ("--tokenizer-type", "HuggingFaceTokenizer"),
    ("--tokenizer-model", "${TOKENIZER_MODEL:?set TOKENIZER_MODEL: a hub id or the folder of a tokenizer}"),
)


def to_set(*tokenizer: tuple[str, str]) -> tuple[tuple[str, str | int], ...]:
    """Return the flags that no plan knows. The shell stops at the first variable that is not set; a restart goes on from `--load`."""
    data = ("--data-path", "${DATA_PATH:?set DATA_PATH: the prefix of the tokenized data}")
    saved = (("--save", "${CHECKPOINTS:?set CHECKPOINTS: the folder of checkpoints}"), ("--load", "${CHECKPOINTS}"))
    return (data, *tokenizer, *saved, ("--lr", "${LR:?set LR: the peak learning rate}"))


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in Megatron's words."""
    recipe_words = rules.recipe_words(setup) | rules.switch_words(setup)
    return rules.wording(setup) | recipe_words | {"positions": max(setup.whole("seq"), setup.whole("positions", 0))}


def write(setup: Setup) -> Written:
    """Return the command, and the environment that its layout needs."""
    pairs = [*PROGRAM.settings(wording(setup)), *trained_as(setup)]
    if not setup.values.get("steps"):
        pairs.append(("--train-iters", "${TRAIN_ITERS:?set TRAIN_ITERS: the number of steps}"))
    command = (SCRIPT, *forms.flag_words([*pairs, *to_set(*TOKENIZER)]), "--use-mcore-models")
    return Written({}, command, environment=environment(setup))


AUX_LOSS = 1e-3
"""--moe-aux-loss-coeff of a model whose config states none: that of Megatron-LM's own examples. Its default, 0, balances nothing."""


def trained_as(setup: Setup) -> list[tuple[str, object]]:
    """Return what the model's config says of its training: dropout, which is 0.1 by default, and how experts are chosen."""
    config = setup.config
    pairs: list[tuple[str, object]] = [
        (key, forms.number(float(str(next((config[name] for name in names if config.get(name) is not None), 0.0)))))
        for key, names in DROPOUT.items()
    ]
    if setup.values.get("experts"):
        stated = next((config[name] for name in ("router_aux_loss_coef", "aux_loss_alpha") if config.get(name)), AUX_LOSS)
        pairs += [("--moe-grouped-gemm", True), ("--moe-aux-loss-coeff", forms.number(float(str(stated))))]
        if config.get("scoring_func") == "sigmoid" or config.get("topk_method") == "noaux_tc":
            pairs += [("--moe-router-score-function", "sigmoid"), ("--moe-router-enable-expert-bias", True)]
        if isinstance(config.get("routed_scaling_factor"), int | float):
            pairs += [("--moe-router-topk-scaling-factor", forms.number(float(str(config["routed_scaling_factor"]))))]
    return pairs


DROPOUT = {
    "--attention-dropout": ("attention_dropout", "attn_pdrop"),
    "--hidden-dropout": ("hidden_dropout", "hidden_dropout_prob", "resid_pdrop"),
}
"""Keys of a config.json that state the dropout of each flag."""


def environment(setup: Setup) -> dict[str, str]:
    """Return CUDA_DEVICE_MAX_CONNECTIONS: 1 overlaps communication with tp or cp below Blackwell, and FSDP forbids it; overlapped experts
    need more (Megatron Core's guide to experts, recalled)."""
    architecture = setup.plan.question().chip.architecture
    cuts = setup.whole("tp") > 1 or setup.whole("cp") > 1
    needed = cuts and setup.whole("zero", 0) < 2 and architecture != "Blackwell"
    connections = "1" if needed else "32" if rules.switch_words(setup).get("overlap_ep") else ""
    return {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {}


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from rules.refuse(setup, TITLE)
    yield from rules.refused_recipe(setup, TITLE, CAN)
    yield from rules.refused_model(setup, TITLE, ("learned", "rope", "none"))


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of Megatron's own flags a command has; more where it starts one of its scripts."""
    names = {setting.key.replace("_", "-") for setting in settings if setting.key.startswith("--")}
    own = len(names & OWN_KEYS)
    named = script.rpartition("/")[2].startswith(("pretrain_", "finetune", "train_"))
    if not script or named or len(names & SURE_KEYS) > 1:
        return own and own + 5 * named
    return 0  # another program with a flag of the same name: torchrun train.py --num_layers=80


OWN_KEYS = {row.key for row in (*LAYOUT_KEYS, *MODEL_KEYS)} | {"--model-parallel-size", "--train-iters", "--train-samples"}
SURE_KEYS = {row.key for row in LAYOUT_KEYS} | {
    "--num-attention-heads",
    "--max-position-embeddings",
    "--train-iters",
    "--train-samples",
}
"""Flags of which a script of another name has two where it is Megatron's."""
CHECK = "from megatron.training.arguments import parse_args, validate_args; validate_args(parse_args(), {})"

PROGRAM = Program(
    name="megatron", title=TITLE, version=VERSION, framework="megatron", form="flags", keys=(*KEYS, *RECIPE_KEYS), write=write,
    refuse=refuse, wording=wording, meaning=rules.meaning, recognises=recognises,
    check=f"python -c '{CHECK}' with the flags",
)  # fmt: skip
