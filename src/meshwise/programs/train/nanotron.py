"""nanotron: its YAML."""

from collections.abc import Iterable, Sequence
from typing import cast

from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import Limits, limited
from meshwise.runs.run import Run, Value

TITLE, VERSION = "nanotron", "main of 2025"
FILE = "nanotron.yaml"
KEYS = table("nanotron", attention=recipe.ATTENTION)
LIMITS: Limits = {
    "vpp": (1,), "schedule": ("1f1b",), "cp": (1,), "ep": (1,), "zero": (0, 1), "recompute": ("none", "full"),
    "offload": ("none",), "precision": ("bf16",), "optimizer": ("adamw",), "loss": ("",), "compile": (False,),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add sequence parallelism, which is a mode of tp, and the shape of its Llama."""
    if facts.value("mode") is not None and facts.value("tp") is not None:
        scattered = str(facts.value("mode")).upper() == "REDUCE_SCATTER" and facts.whole("tp", 1) > 1
        facts = facts.adding([facts.meaning("sp", int(scattered), "mode")])
    if facts.value("accumulates") is False:
        facts = facts.adding([facts.meaning("gradients", "bf16", "accumulates")])
    if "hidden" in facts:
        facts = facts.adding([facts.derived(name, value, "nanotron's Llama", "hidden") for name, value in LLAMA.items()])
    if facts.whole("experts") and facts.value("shared_on") is False and "shared_ffn" in facts:
        facts = facts.without("shared_ffn")
    if facts.whole("ep", 1) > 1 and facts.value("dp") is not None:
        both = facts.whole("dp") * facts.whole("ep")
        facts = facts.adding([facts.derived("dp", both, "dp x expert_parallel_size: its experts have ranks of their own", "dp")])
    facts = facts.adding([facts.derived("vpp", 1, "no interleaving", "pp"), facts.derived("offload", "none", "no offload", "pp")])
    return facts


LLAMA: dict[str, Value] = {"gated": True, "norm": "rmsnorm", "position_kind": "rope", "biased": False}


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    mode = "REDUCE_SCATTER" if setup.whole("sp", 0) or setup.whole("tp") == 1 else "ALL_REDUCE"
    words: dict[str, Value] = {"mode": mode, "positions": max(setup.whole("seq"), setup.whole("positions", 0))}
    return dict(setup.values) | words | {"accumulates": setup.text("gradients") != "bf16"}


def write(setup: Setup) -> Written:
    """Return the YAML and the command."""
    todo = forms.PLACEHOLDER
    pairs = [
        ("general.project", "meshwise"), ("general.run", "plan"), ("general.seed", 42), *PROGRAM.settings(wording(setup)),
        ("model.model_config.is_llama_config", True), ("model.model_config.hidden_act", "silu"),
        ("model.init_method.std", 0.02), ("model.model_config.initializer_range", 0.02),
        ("model.model_config.bos_token_id", _token(setup, "bos_token_id", 1)),
        ("model.model_config.eos_token_id", _token(setup, "eos_token_id", 2)), ("model.model_config.use_cache", True),
        ("tokenizer.tokenizer_name_or_path", setup.model),
        ("checkpoints.checkpoints_path", f"{todo}_checkpoints"), ("checkpoints.resume_checkpoint_path", f"{todo}_checkpoints"),
        ("checkpoints.checkpoint_interval", setup.values.get("save_every", 1000)),
        ("optimizer.weight_decay", 0.1), ("optimizer.clip_grad", 1.0),
        *((f"optimizer.optimizer_factory.{name}", value) for name, value in ADAM.items()),
        ("optimizer.learning_rate_scheduler.learning_rate", [f"{todo}: the peak learning rate, a number"]),
        *((f"optimizer.learning_rate_scheduler.{name}", value) for name, value in RATES.items()),
        ("data_stages", [{"name": "training", "start_training_step": 1, "data": DATA}]),
        ("logging.log_level", "info"),
    ]  # fmt: skip
    if not setup.values.get("steps"):
        pairs.append(("tokens.train_steps", f"{todo}: the number of steps"))
    command, environment = ("run_train.py", "--config-file", FILE), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return Written({FILE: forms.yaml_text(pairs, setup.header)}, command, environment=environment)


ADAM = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "torch_adam_is_fused": True}
RATES = {"lr_warmup_steps": 100, "lr_warmup_style": "linear", "lr_decay_style": "cosine", "min_decay_lr": 0.0}
"""Fields that nanotron's loader requires, with the values of its own examples."""
DATA = {
    "dataset": {"dataset_folder": f"{forms.PLACEHOLDER}_tokenized_data"}, "num_loading_workers": 1, "seed": 42,
}  # fmt: skip


def _token(setup: Setup, name: str, default: int) -> int:
    """Return the id of a special token, of which a config may list several."""
    value = setup.config.get(name)
    first: object = cast(list[object], value)[0] if isinstance(value, list) and value else value  # pyright: ignore[reportUnknownVariableType]
    return first if isinstance(first, int) else default


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {"gradients": ("bf16",)})
    if setup.whole("zero", 0) and setup.whole("dp_replicate") > 1:
        yield Refusal(f"{TITLE} shards over all data-parallel ranks", {"dp_replicate": 1, "dp_shard": setup.whole("dp")})
    if setup.plan is not None and setup.plan.question().model.model_type not in ("llama", "mistral", "qwen2"):
        yield Refusal(f"{TITLE}'s configuration here describes Llama models only", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of nanotron's tables a YAML has."""
    names = {setting.key for setting in settings}
    tables = {name.split(".")[0] for name in names}
    own = {"parallelism", "tokens", "checkpoints", "general", "data_stages", "model", "optimizer", "tokenizer", "logging"}
    sure = {"tokens.micro_batch_size", "parallelism.dp"} <= names or "tokens.batch_accumulation_per_replica" in names
    return len(tables & own) if sure else 0


PROGRAM = Program(
    name="nanotron", title=TITLE, version=VERSION, framework="nanotron", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises,
    check=f"python -c 'from nanotron.config import get_config_from_file; get_config_from_file(\"{FILE}\")'",
)  # fmt: skip
