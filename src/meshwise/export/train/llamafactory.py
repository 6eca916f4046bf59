"""LLaMA-Factory: its YAML, which is the Trainer's arguments and a few of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwise.export import forms
from meshwise.export.facts import Facts, Value
from meshwise.export.kinds import BOOL, INT, Kind, word
from meshwise.export.program import Key, Program, Refusal, Setup, Written
from meshwise.export.source import Setting, Source
from meshwise.export.train import deepspeed, trainer
from meshwise.export.train.limits import limited, offload_needs_shards

TITLE, VERSION = "LLaMA-Factory", "0.9"
FILE = "llama_factory.yaml"
TUNING = word({"lora": "lora"}, {"full": None, "freeze": None, "oft": "lora"})
BITS = Kind(lambda value: "qlora" if int(value) in (2, 3, 4, 5, 6, 8) else None, lambda _: None, "a number of bits")

KEYS = (
    *(replace(row, default=None) if row.fact == "recompute_on" else row for row in trainer.TRAINING if row.fact != "adapter"),
    Key("seq", "cutoff_len", INT, default=2048, write="always"),
    Key("no_recompute", "disable_gradient_checkpointing", BOOL, default=False, write="always"),
    Key("adapter", "finetuning_type", TUNING, write="never"),
    Key("adapter", "quantization_bit", BITS, write="never"),
    Key("frozen", "finetuning_type", word({True: "freeze"}, {"full": None, "lora": None, "oft": None}), write="never"),
    Key("liger", "enable_liger_kernel", BOOL),
)
NOTE = f"default of {TITLE} {VERSION}: on unless disable_gradient_checkpointing"


def meaning(facts: Facts) -> Facts:
    """Add recompute, which is on by default, and what the Trainer's arguments mean."""
    facts = trainer.meaning(facts.without("from_file"))
    off = facts.value("no_recompute")
    return facts.adding(
        [replace(facts.meaning("recompute", "none" if off else "full", "no_recompute"), note="" if off else NOTE)]
    )


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values = trainer.values_of(setup) | {"no_recompute": setup.text("recompute") != "full"}
    return {name: value for name, value in values.items() if name != "recompute_on"}


def write(setup: Setup) -> Written:
    """Return the YAML, DeepSpeed's JSON where something is sharded, and the command."""
    values = wording(setup)
    files: dict[str, str] = {}
    if setup.whole("zero", 0):
        files[deepspeed.FILE] = forms.json_text(deepspeed.PROGRAM.settings(deepspeed.values_of(setup)))
        values["deepspeed_file"] = deepspeed.FILE
    pairs = [
        ("model_name_or_path", setup.model),
        ("stage", "pt"),
        ("do_train", True),
        ("finetuning_type", "full"),
        *PROGRAM.settings(values),
    ]
    pairs += [(name, f"{forms.PLACEHOLDER}_{name}") for name in ("dataset", "template", "output_dir")]
    pairs += [("learning_rate", f"{forms.PLACEHOLDER}_learning_rate")]
    command = ("llamafactory-cli", "train", FILE)
    environment = {"FORCE_TORCHRUN": "1", "NNODES": str(setup.whole("nodes"))}
    return Written({FILE: forms.yaml_text(pairs, setup.header), **files}, command, starter="node", environment=environment)


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    yield from limited(setup, TITLE, trainer.LIMITS)
    yield from deepspeed.replicas(setup, TITLE)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of LLaMA-Factory's own keys a YAML or a command has."""
    names = {setting.key.lstrip("-").replace("-", "_") for setting in settings}
    own = names & {
        "finetuning_type",
        "cutoff_len",
        "stage",
        "template",
        "dataset",
        "overwrite_cache",
        "preprocessing_num_workers",
        "lora_target",
    }
    shared = names & trainer.OWN
    return (
        len(own) + len(shared) if "finetuning_type" in own or "cutoff_len" in own or ("stage" in own and "template" in own) else 0
    )


PROGRAM = Program(
    name="llama-factory",
    title=TITLE,
    version=VERSION,
    framework="deepspeed",
    form="yaml",
    keys=KEYS,
    write=write,
    refuse=refuse,
    wording=wording,
    meaning=meaning,
    recognises=recognises,
    flag_words=True,
    refers={"deepspeed": "deepspeed", "--deepspeed": "deepspeed"},
    auto="auto: filled in when it runs",
)
