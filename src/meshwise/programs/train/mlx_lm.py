"""mlx-lm: the YAML of `mlx_lm.lora --config`, on Macs."""

from collections.abc import Iterable, Sequence

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, recipe
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "mlx-lm", "0.32"
FILE = "mlx_lora.yaml"
EVERY_LAYER, DEFAULT_LAYERS = -1, 16  # num_layers: adapters of all layers, and of how many of the last ones by default
SCRIPTS = ("mlx_lm.lora", "mlx_lm")
KEYS = table("mlx-lm", last_names=adapters.LAST_NAMES)
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "tp": (1,), "cp": (1,), "sp": (0,), "dp_shard": (1,), "zero": (0,), "recompute": ("none", "full"),
    "precision": ("bf16", "fp16"), "offload": ("none",), "optimizer": ("adamw", "muon", "sgd", "adafactor"), "loss": ("kernel", ""),
    "compile": (False,), "dp_replicate": (1,),
}  # fmt: skip
PARENTS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}
"""Modules that hold those of Llama's names; the others are in mlp."""


def meaning(facts: Run) -> Run:
    """Add the method, the dtype of the checkpoint, and what is alone on its device."""
    more = [Stated("precision", "bf16", "default", None, "", "the dtype of the checkpoint"), facts.meaning("zero", 0, "mbs")]
    more += [Stated(name, 1, "default", None, "", "mlx.launch starts more") for name in ("dp", "dp_replicate", "dp_shard")]
    if "iterations" in facts:
        steps = facts.whole("iterations") // max(facts.whole("accumulation"), 1)
        more.append(facts.meaning("steps", steps or None, "iterations"))
    method = str(facts.value("method"))
    if method == "full":
        return facts.without("rank", "targets").adding(more)
    quantized = "4bit" in facts.text("model").lower()
    more.append(facts.meaning("adapter", "qlora" if quantized else method, "method"))
    if "targets" not in facts:
        more.append(Stated("targets", (ALL_LINEAR,), "default", None, "lora_parameters.keys", f"default of {TITLE} {VERSION}"))
    layers = facts.whole("adapted_layers", DEFAULT_LAYERS)
    if layers > 0:
        text = f"adapters of the last {layers} layers (num_layers) are predicted as adapters of all: num_layers -1 adapts all"
        more.append(facts.meaning("caveat", text, "adapted_layers"))
    return facts.adding(more)


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML. Iterations are micro-batches."""
    values: dict[str, Value] = {**setup.values, "adapted_layers": EVERY_LAYER}
    method = setup.text("adapter")
    values["method"] = {"": "full", "qlora": "lora"}.get(method, method)
    if method:
        values |= {"scale": setup.whole("alpha") / setup.whole("rank"), "dropout": 0.0}
        targets = setup.values.get("targets")
        if targets == (ALL_LINEAR,):
            values.pop("targets")
        elif isinstance(targets, tuple):
            values["targets"] = tuple(f"{PARENTS.get(str(name), 'mlp')}.{name}" for name in targets)
    if setup.values.get("steps"):
        values["iterations"] = setup.whole("steps") * setup.whole("accumulation")
    return values


def write(setup: Setup) -> Written:
    """Return the YAML and the command. Adapters over 4 bits need a checkpoint that MLX has quantized, which a command makes."""
    todo = forms.PLACEHOLDER
    quantized = adapters.stored_base(setup) == "nf4"
    made = [f"First: mlx_lm.convert --hf-path {setup.model} -q --q-bits 4 --mlx-path model-4bit"] if quantized else []
    pairs = [("model", "model-4bit" if quantized else setup.model), ("train", True), *PROGRAM.settings(wording(setup))]
    pairs += [
        ("data", [f"{todo}: a folder with train.jsonl and valid.jsonl, as text"]),
        ("learning_rate", f"{todo}: the learning rate"),
    ]
    pairs += [] if setup.values.get("steps") else [("iters", f"{todo}: micro-batches to train")]
    return Written({FILE: forms.yaml_text(pairs, (*setup.header, *made))}, ("mlx_lm.lora", "--config", FILE), starter="once")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {})
    if adapters.stored_base(setup) not in ("", "nf4"):
        yield Refusal(f"{TITLE} has bases in 16 bits and in its own 4 bits; expected --finetune qlora or lora", {})
    if "objective" in setup.values:
        yield Refusal(f"{TITLE} has no {setup.text('objective')}; expected --objective sft", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for its command, or for a YAML with its own keys."""
    if script.rpartition("/")[2] in SCRIPTS:
        return 20
    names = {one.key for one in settings}
    own = names & {"fine_tune_type", "num_layers", "max_seq_length", "grad_checkpoint", "iters", "adapter_path", "steps_per_eval"}
    return len(own) + 2 if len(own) > 1 and {"model"} & names else 0


PROGRAM = Program(
    name="mlx-lm", title=TITLE, version=VERSION, framework="mlx-lm", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises, flag_words=True, refers={"--config": "mlx-lm", "-c": "mlx-lm"},
)  # fmt: skip
