"""Hugging Face accelerate: the YAML of `accelerate launch --config_file`, with FSDP 2, FSDP 1, DeepSpeed or DDP."""

from collections.abc import Iterable, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import deepspeed, recipe, trainer
from meshwise.programs.train.limits import TRANSFORMERS, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "accelerate", "1.15"
FILE = "accelerate.yaml"
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
NUMBERS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
"""Older files number the strategies."""
ANY_WORD = Kind(lambda value: str(value).lower(), str, "true, false or a strategy")
OFF = ("no", "none", "false")
BACKEND = Kind(lambda value: str(value).lower() not in OFF, lambda on: "INDUCTOR" if on else None, "a backend")


def _strategy(value: object) -> str:
    text = str(value).upper()
    return NUMBERS.get(text, text)


KEYS = table("accelerate", any_word=ANY_WORD, devices=deepspeed.DEVICES, backend=BACKEND)
LIMITS: Limits = {**TRANSFORMERS, "sp": (0,)}


def meaning(facts: Run) -> Run:
    """Add the ZeRO stage, recompute and offload of the section that the type turns on; other sections do nothing."""
    kind = facts.value("type")
    if kind == "deepspeed":
        before = facts.get("precision")
        facts = deepspeed.meaning(facts)
        facts = facts.adding([before] if before else [])
        if "zero" not in facts and "deepspeed_file" in facts:
            file = facts.values["deepspeed_file"]
            facts = facts.adding([Stated("zero", None, "unknown", file.span, file.key, f"in {file.value}, which was not given")])
    elif kind == "fsdp":
        facts = facts.adding(_fsdp(facts))
    elif kind in ("ddp", "no"):
        facts = facts.adding([facts.meaning("zero", 0, "type")])
        if kind == "no" and facts.whole("devices", 1) > 1:
            facts = facts.adding([facts.derived("devices", 1, "distributed_type NO starts one process", "type")])
    if "type" in facts:
        predicted = {"fsdp": "fsdp", "deepspeed": "deepspeed", "ddp": "ddp", "no": "ddp"}.get(str(kind), "fsdp")
        said = {"launched_by": "accelerate", "predicted_by": predicted}
        facts = facts.adding([facts.meaning(name, value, "type") for name, value in said.items()])
    if (
        facts.whole("ulysses", 1) > 1
    ):  # DeepSpeed's sequence parallelism: ranks that share one batch, as context parallelism has them
        facts = facts.adding([facts.meaning("cp", facts.whole("ulysses"), "ulysses")])
    if facts.value("dynamo"):
        facts = facts.adding([facts.meaning("compile", True, "dynamo")])
    return facts


def _fsdp(facts: Run) -> Iterable[Stated]:
    said = str(facts.value("reshard")) if facts.says("reshard") else ""
    name = "reshard" if said else "type"
    if facts.whole("fsdp_version", 1) == 2:
        yield facts.meaning("zero", 2 if said.lower() == "false" else 3, name)
    else:
        yield facts.meaning("zero", STRATEGIES.get(_strategy(said), 3), name)
    if facts.value("fsdp_offload"):
        yield facts.meaning("offload", "parameters", "fsdp_offload")
    if "fsdp_recompute" in facts:
        yield facts.meaning("recompute", "full" if facts.value("fsdp_recompute") else "none", "fsdp_recompute")


def section_of(setup: Setup) -> str:
    """Return the distributed type of a layout: DeepSpeed for ZeRO 1 and optimizer offload, FSDP for ZeRO 2 and 3, else DDP."""
    zero = setup.whole("zero", 0)
    return "deepspeed" if zero == 1 or setup.text("offload") == "optimizer" else "fsdp" if zero else "ddp"


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    zero, kind = setup.whole("zero", 0), section_of(setup)
    values: dict[str, Value] = {name: setup.values[name] for name in ("nodes", "devices", "precision")} | {"type": kind}
    if kind == "fsdp":
        values |= {"fsdp_version": 2, "reshard_on": zero == 3, "wrap": "TRANSFORMER_BASED_WRAP"}
        values |= {"fsdp_offload": setup.text("offload") == "parameters", "fsdp_recompute": setup.text("recompute") == "full"}
    if kind == "deepspeed":
        sections = ("stage", "optimizer_device", "parameter_device")
        values |= {name: value for name, value in deepspeed.values_of(setup).items() if name in sections}
        values["accumulation"] = setup.whole("accumulation")
    if kind == "fsdp" and setup.whole("tp") * setup.whole("cp") * setup.whole("dp_replicate") > 1:
        values |= {axis: setup.whole(axis) for axis in ("dp_replicate", "dp_shard", "tp", "cp")}
    return values | ({"dynamo": True} if setup.values.get("compile") else {})


def write(setup: Setup) -> Written:
    """Return the YAML, and the command of a training script with TrainingArguments for what accelerate does not say."""
    recompute_on = setup.text("recompute") == "full" and section_of(setup) != "fsdp"
    arguments = {**trainer.values_of(setup), "compile": False, "recompute_on": recompute_on}
    words = [word for key, value in trainer.PROGRAM.settings(arguments) for word in (f"--{key}", forms.number(value))]
    words += ["--model_name_or_path", setup.model, "--output_dir", "${OUTPUT_DIR:?set OUTPUT_DIR: the folder of checkpoints}"]
    script = "${TRAIN_SCRIPT:?set TRAIN_SCRIPT: your script with a Trainer}"
    launch = ["accelerate", "launch", "--config_file", FILE]
    if setup.whole("nodes") > 1:
        launch += ["--machine_rank", "$NODE_RANK", "--main_process_ip", "$MASTER_ADDR", "--main_process_port", "$MASTER_PORT"]
    text = forms.yaml_text(PROGRAM.settings(wording(setup)), setup.header)
    return Written({FILE: text}, (*launch, script, *words), starter="node")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {"attention": trainer.ATTENTION})
    zero = setup.whole("zero", 0)
    if (zero == 1 or setup.text("offload") == "optimizer") and setup.whole("tp") * setup.whole("cp") > 1:
        yield Refusal(f"{TITLE} has tensor and context parallelism only with FSDP 2", {"zero": 3, "offload": "none"})
    if section_of(setup) == "deepspeed":
        yield from deepspeed.replicas(setup, TITLE)
    if not zero and setup.whole("tp") * setup.whole("cp") > 1:
        yield Refusal(f"{TITLE} has tensor and context parallelism only with FSDP 2", {"zero": 3})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of accelerate's own keys a YAML has."""
    names = {setting.key.split(".")[0] for setting in settings}
    own = names & {
        "distributed_type", "compute_environment", "num_machines", "num_processes", "fsdp_config", "machine_rank",
        "mixed_precision",
    }  # fmt: skip
    return len(own) if "distributed_type" in own or "compute_environment" in own else 0


PROGRAM = Program(
    name="accelerate", title=TITLE, version=VERSION, framework="accelerate", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises,
    refers={"deepspeed_config.deepspeed_config_file": "deepspeed", "--deepspeed_config_file": "deepspeed"},
    auto=deepspeed.AUTO, check=f"accelerate launch --config_file {FILE} --dry_run $TRAIN_SCRIPT",
)  # fmt: skip
