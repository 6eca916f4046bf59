"""Megatron-LM: the flags of pretrain_gpt.py, megatron/training/arguments.py."""

from collections.abc import Iterable, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import Kind, word
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import megatron_rules as rules
from meshwise.programs.train import recipe
from meshwise.runs.run import Value

TITLE, VERSION = "Megatron-LM", "core 0.19"
SCRIPT = "pretrain_gpt.py"
GRANULARITY = word({"selective": "selective", "full": "full"}, {"none": "none", "null": "none"})

MODEL_KEYS = table("megatron-model")
LAYOUT_KEYS = table("megatron-layout", granularity=GRANULARITY)
WORK_KEYS = table("megatron-work")
KEYS = (*MODEL_KEYS, *LAYOUT_KEYS, *WORK_KEYS)
BACKENDS = word({"fa2": "flash", "cudnn": "fused", "unfused": "unfused"}, {"local": "unfused", "auto": None})
"""Transformer Engine's: `flash` is the flash-attn package, which is FA2 unless a version is stated; `fused` is cuDNN's."""
LOSS_KERNELS = word({"compiled": "native", "kernel": "te"}, {"linear": "fused"})
GRAPH_KINDS = word({"none": "none", "partial": "local"}, {"transformer_engine": "partial", "full_iteration": "full"})
GRAPH_SCOPE = Kind(
    lambda value: True if "full_iteration" in str(value) else None, lambda _: "full_iteration", "parts of a step", takes=-1
)
RECIPE_KEYS = table(
    "megatron-recipe", backends=BACKENDS, loss_kernels=LOSS_KERNELS, graph_kinds=GRAPH_KINDS, graph_scope=GRAPH_SCOPE,
    capacity=recipe.CAPACITY,
)  # fmt: skip
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
    """Return CUDA_DEVICE_MAX_CONNECTIONS: 1 with tp or cp below Blackwell, more for overlapped experts (Megatron's guide, recalled)."""
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
    "--num-attention-heads", "--max-position-embeddings", "--train-iters", "--train-samples",
}  # fmt: skip
"""Flags of which a script of another name has two where it is Megatron's."""
CHECK = "from megatron.training.arguments import parse_args, validate_args; validate_args(parse_args(), {})"

PROGRAM = Program(
    name="megatron", title=TITLE, version=VERSION, framework="megatron", form="flags", keys=(*KEYS, *RECIPE_KEYS), write=write,
    refuse=refuse, wording=wording, meaning=rules.meaning, recognises=recognises,
    check=f"python -c '{CHECK}' with the flags", refers={"--yaml-cfg": "megatron"},
)  # fmt: skip
