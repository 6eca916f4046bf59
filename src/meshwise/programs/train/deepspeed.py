"""DeepSpeed: its configuration JSON, for a training script of one's own or the Hugging Face Trainer."""

from collections.abc import Iterable, Iterator, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import word
from meshwise.programs.program import KERNELS, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "DeepSpeed", "0.19"
FILE = "ds_config.json"
DEVICES = word({"none": "none", "cpu": "cpu", "nvme": "nvme"}, {"null": "none", "": "none"})
CHECK = "import json; from deepspeed.runtime.config import DeepSpeedConfig; "
AUTO = "auto: the program that reads this file fills it in (HF Trainer, accelerate)"

REDUCED_IN = KERNELS + "reduced_in"
CAN = {"gradients": ("fp32", "bf16"), "overlap": ("overlaps_reduction",)}
KEYS = table("deepspeed", devices=DEVICES, dtypes=recipe.DTYPES)
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "sp": (0,), "recompute": ("none",), "precision": ("bf16", "fp16"),
    "offload": ("none", "optimizer", "parameters"), "optimizer": ("adamw", "muon"), "loss": ("",), "compile": (False,),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add ZeRO, precision and offload as the sections of the file say them together."""
    facts = facts.adding(_precision(facts))
    if "stage" in facts:
        facts = facts.adding([facts.meaning("zero", facts.value("stage"), "stage")])
    facts = facts.adding(recipe.overlap(facts, {"overlaps_reduction": "overlap_reduce"}))
    if "gradients" not in facts and facts.value(REDUCED_IN) is not None:
        facts = facts.adding([facts.meaning("gradients", str(facts.value(REDUCED_IN)), REDUCED_IN)])
    return facts.adding([*_offload(facts), facts.meaning("predicted_by", "deepspeed", "stage")])


def _precision(facts: Run) -> Iterator[Stated]:
    for name in ("bf16", "fp16"):
        one = facts.get(name)
        if one is not None and one.value is True:
            yield facts.meaning("precision", name, name)
            return
    unclear = next((one for name in ("bf16", "fp16") if (one := facts.get(name)) and one.value is None), None)
    if unclear is not None:
        yield facts.meaning("precision", None, unclear.fact)


def _offload(facts: Run) -> Iterator[Stated]:
    for name, value in (("parameter_device", "parameters"), ("optimizer_device", "optimizer")):
        device = facts.value(name)
        if device == "cpu":
            yield facts.meaning("offload", value, name)
            return
        if device == "nvme":
            yield facts.meaning("offload", None, name)._replace(note="to NVMe, which is not predicted")
            return
    if facts.value("old_offload"):
        yield facts.meaning("offload", "optimizer", "old_offload")
    elif "stage" in facts:
        yield Stated("offload", "none", "default", None, "zero_optimization.offload_optimizer", f"default of {TITLE} {VERSION}")


def values_of(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the file."""
    values = dict(setup.values)
    values["stage"] = setup.whole("zero", 0)
    values["fp16" if setup.text("precision") == "fp16" else "bf16"] = True
    offload = setup.text("offload", "none")
    values["optimizer_device"] = "cpu" if offload in ("optimizer", "parameters") else "none"
    values["parameter_device"] = "cpu" if offload == "parameters" else "none"
    for axis in ("tp", "cp"):
        if setup.whole(axis) == 1:
            values.pop(axis)
    if setup.text("optimizer") == "adamw":
        values.pop("optimizer")  # the training script makes it
    return values | recipe_words(setup)


def recipe_words(setup: Setup) -> dict[str, Value]:
    """Return what the file says of a recipe that a plan states; without ZeRO there is nothing to hide."""
    hidden = recipe.hidden(setup, assumed=False).get("overlaps_reduction") if setup.whole("zero", 0) else None
    words: dict[str, Value] = {} if hidden is None else {"overlap_reduce": hidden}
    return words | ({REDUCED_IN: setup.text("gradients")} if setup.values.get("gradients") else {})


def write(setup: Setup) -> Written:
    """Return the JSON, and the command of a training script that reads it."""
    text = forms.json_text(PROGRAM.settings(values_of(setup)))
    script = "${TRAIN_SCRIPT:?set TRAIN_SCRIPT: your training script, which calls deepspeed.initialize}"
    return Written({FILE: text}, (script, "--deepspeed", "--deepspeed_config", FILE))


def refuse(setup: Setup) -> Iterable[Refusal]:
    for refusal in limited(setup, TITLE, LIMITS):
        more = "; its JSON cannot turn it on, but export --to trainer can" if "recompute" in refusal.instead else ""
        yield Refusal(refusal.why + more, refusal.instead)
    yield from recipe.refuse(setup, TITLE, CAN)
    yield from offload_needs_shards(setup, TITLE)
    yield from replicas(setup, TITLE)


def replicas(setup: Setup, title: str) -> Iterable[Refusal]:
    """Yield a refusal where ZeRO is over some of the data ranks only."""
    if setup.whole("zero", 0) and setup.whole("dp_replicate") > 1:
        shard = setup.whole("dp_replicate") * setup.whole("dp_shard")
        yield Refusal(f"{title} shards over all data-parallel ranks", {"dp_replicate": 1, "dp_shard": shard})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of DeepSpeed's own sections a JSON has."""
    own = (
        "zero_optimization.", "train_micro_batch_size_per_gpu", "train_batch_size", "bf16.", "fp16.", "zero_allow_untested",
        "steps_per_print",
    )  # fmt: skip
    if script or any("parallel-size" in setting.key or "parallelism." in setting.key for setting in settings):
        return 0
    return sum(any(setting.key.startswith(name) for setting in settings) for name in own)


PROGRAM = Program(
    name="deepspeed", title=TITLE, version=VERSION, framework="deepspeed", form="json", keys=KEYS, write=write,
    refuse=refuse, wording=values_of, meaning=meaning, recognises=recognises, auto=AUTO,
    check=f"python -c '{CHECK}DeepSpeedConfig(json.load(open(\"{FILE}\")))'",
)  # fmt: skip
