"""LLaMA-Factory: its YAML, which is the Trainer's arguments and a few of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, Kind
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, deepspeed, megatron, megatron_rules, recipe, trainer
from meshwise.programs.train.limits import limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "LLaMA-Factory", "0.9"
FILE = "llama_factory.yaml"
BITS = Kind(lambda value: True if int(value) in (2, 3, 4, 5, 6) else None, lambda _: 4, "a number of bits")
EIGHT = Kind(lambda value: True if int(value) == 8 else None, lambda _: 8, "a number of bits")
TARGETS = Kind(adapters.NAMES.read, lambda value: "all" if value == (ALL_LINEAR,) else ",".join(value), "names of modules")
STAGES = {"sft": "sft", "dpo": "dpo", "orpo": "dpo", "simpo": "dpo", "kto": "kto", "reward": "rm", "ppo": "ppo"}
TRAINER = [row for row in trainer.TRAINING if row not in adapters.TRL_KEYS and row.fact != "attention"]

MEGATRON = (
    "tp", "pp", "cp", "ep", "etp", "distributed_optimizer", "granularity", "recompute_method", "recompute_layers", "recompute_modules",
    "sequence_parallel",
)  # fmt: skip
"""Facts of the Megatron backend (USE_MCA=1), whose keys are Megatron's with underscores."""


def _of_megatron(row: Key) -> Key:
    kind = BOOL if row.kind.takes == 0 else row.kind
    return replace(row, key=row.key.removeprefix("--").replace("-", "_"), also=(), write="never", default=None, kind=kind)


KEYS = table(
    "llamafactory", trainer=(replace(row, default=None) if row.fact == "recompute_on" else row for row in TRAINER), targets=TARGETS,
    names=adapters.NAMES, bits=BITS, eight=EIGHT, megatron=(_of_megatron(row) for row in megatron.KEYS if row.fact in MEGATRON),
)  # fmt: skip
NOTE = f"default of {TITLE} {VERSION}: on unless disable_gradient_checkpointing"


def meaning(facts: Run) -> Run:
    """Add recompute, which is on by default, and what the Trainer's arguments mean."""
    if any(facts.value(name) is not None for name in MEGATRON):
        return _with_megatron(facts)
    facts = trainer.meaning(facts.without("from_file")).without("tuner")
    if facts.value("pure"):
        why = "pure_bf16: weights and optimizer state in 16 bits, which is not predicted"
        facts = facts.adding([facts.derived("precision", None, why, "pure")])
    if facts.value("galore"):
        facts = facts.adding([facts.meaning("optimizer", "galore", "galore")])
    if facts.value("preference"):
        facts = facts.adding([facts.meaning("objective", str(facts.value("preference")), "preference")])
    off = facts.value("no_recompute")
    recompute = facts.meaning("recompute", "none" if off else "full", "no_recompute")
    return facts.adding([recompute._replace(note="" if off else NOTE)])


def _with_megatron(facts: Run) -> Run:
    """Return the facts of its Megatron backend: the Trainer's batch, and Megatron's layout."""
    facts = megatron_rules.meaning(trainer.meaning(facts.without("from_file", "zero")))
    degrees = [Stated(name, 1, "default", None, name, "not set") for name in ("tp", "pp", "cp", "ep") if name not in facts]
    return facts.without("predicted_by").adding(
        [*degrees, Stated("predicted_by", "megatron", "derived", None, "", "its Megatron backend")]
    )


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values = trainer.values_of(setup) | {"no_recompute": setup.text("recompute") != "full"}
    if "frozen_layers" in values:
        values["trained_layers"] = setup.whole("layers") - setup.whole("frozen_layers")
    return {name: value for name, value in values.items() if name != "recompute_on"}


def write(setup: Setup) -> Written:
    """Return the YAML, DeepSpeed's JSON where something is sharded, and the command."""
    values = wording(setup)
    files: dict[str, str] = {}
    if setup.whole("zero", 0) and not trainer.by_fsdp(setup):
        files[deepspeed.FILE] = forms.json_text(deepspeed.PROGRAM.settings(deepspeed.values_of(setup)))
        values["deepspeed_file"] = deepspeed.FILE
    pairs = [
        ("model_name_or_path", setup.model), ("stage", _stage(setup)), ("do_train", True),
        ("finetuning_type", "lora" if "rank" in setup.values else "freeze" if "frozen_layers" in setup.values else "full"),
        *([("pref_loss", setup.text("objective"))] if setup.text("objective") in ("orpo", "simpo") else []),
        *PROGRAM.settings(values),
    ]  # fmt: skip
    pairs += [(name, f"{forms.PLACEHOLDER}_{name}") for name in ("dataset", "template", "output_dir")]
    pairs += [("learning_rate", f"{forms.PLACEHOLDER}_learning_rate")]
    command = ("llamafactory-cli", "train", FILE)
    environment = {"FORCE_TORCHRUN": "1", "NNODES": str(setup.whole("nodes"))}
    return Written({FILE: forms.yaml_text(pairs, setup.header), **files}, command, starter="node", environment=environment)


def _stage(setup: Setup) -> str:
    """Return the stage: plain text for a whole model without another objective, as in pretraining; else the objective's."""
    objective = setup.text("objective", "sft")
    return "pt" if objective == "sft" and "rank" not in setup.values else STAGES.get(objective, "sft")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    yield from limited(setup, TITLE, trainer.LIMITS)
    yield from recipe.refuse(setup, TITLE, {**trainer.can(setup), "attention": ("fa2", "fa3", "unfused")})
    yield from deepspeed.replicas(setup, TITLE)
    yield from adapters.refuse_base(setup, TITLE)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of LLaMA-Factory's own keys a YAML or a command has."""
    names = {setting.key.lstrip("-").replace("-", "_") for setting in settings}
    own = names & {
        "finetuning_type", "cutoff_len", "stage", "template", "dataset", "overwrite_cache", "preprocessing_num_workers",
        "lora_target",
    }  # fmt: skip
    shared = names & trainer.OWN_KEYS
    sure = "finetuning_type" in own or "cutoff_len" in own or {"stage", "template"} <= own
    return len(own) + len(shared) if sure else 0


PROGRAM = Program(
    name="llama-factory", title=TITLE, version=VERSION, framework="llama-factory", form="yaml", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, flag_words=True,
    refers={"deepspeed": "deepspeed", "--deepspeed": "deepspeed"}, auto="auto: filled in when it runs",
)  # fmt: skip
