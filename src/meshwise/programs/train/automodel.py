"""NeMo AutoModel: the YAML of its fine-tuning recipe, with FSDP2."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, recipe
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "NeMo AutoModel", "0.7"
FILE = "automodel.yaml"
LOSS = "nemo_automodel.components.loss"
LOSSES = {
    "materialised": f"{LOSS}.masked_ce.MaskedCrossEntropy", "chunked": f"{LOSS}.chunked_ce.ChunkedCrossEntropy",
    "fused": f"{LOSS}.linear_ce.FusedLinearCrossEntropy", "kernel": f"{LOSS}.te_parallel_ce.TEParallelCrossEntropy",
}  # fmt: skip
OPTIMIZERS = {"adamw": "torch.optim.AdamW", "adamw-8bit": "torchao.optim.AdamW8bit", "sgd": "torch.optim.SGD"}
"""What updates the sharded tensors of FSDP2."""


def _word_of(table: dict[str, str]) -> Kind:
    """Return the kind of a key that names a class: by the last part of its name."""
    names = {path.rpartition(".")[2].lower(): word for word, path in table.items()}
    return Kind(lambda value: names.get(str(value).rpartition(".")[2].lower()), table.get, "a class")


ADAM = Kind(lambda value: True if str(value).endswith(("optim.Adam", "FusedAdam")) else None, lambda _: None, "a class")
KEYS = table(
    "automodel", last_names=adapters.LAST_NAMES, loss=_word_of(LOSSES),
    optimizer=_word_of(OPTIMIZERS | {"adamw": "torch.optim.AdamW"}), adam=ADAM,
)  # fmt: skip
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "recompute": ("none", "full"), "precision": ("bf16",), "offload": ("none",),
    "optimizer": tuple(OPTIMIZERS), "loss": ("", *LOSSES), "zero": (2, 3),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the method, the ZeRO stage of FSDP2, the precision and sequence parallelism."""
    more: list[Stated] = [Stated("precision", "bf16", "default", None, "model.torch_dtype", f"default of {TITLE} {VERSION}")]
    ddp = str(facts.value("strategy")) == "ddp"
    more.append(facts.meaning("zero", 0 if ddp else 2 if facts.value("reshard") is False else 3, "strategy"))
    more.append(facts.meaning("sp", int(bool(facts.value("sp_on"))), "sp_on"))
    if "optimizer" not in facts and facts.value("adam"):
        more.append(facts.meaning("optimizer", "adamw", "adam"))
    if "peft_class" in facts or "rank" in facts:
        method = "qlora" if facts.value("four_bits") else "dora" if facts.value("dora") else "lora"
        more.append(facts.meaning("adapter", method, "peft_class" if "peft_class" in facts else "rank"))
        if facts.value("every"):
            more.append(facts.meaning("targets", (ALL_LINEAR,), "every"))
        if "rank" not in facts:
            more.append(Stated("rank", 8, "default", None, "peft.dim", f"default of {TITLE} {VERSION}"))
    return facts.adding(more)


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values: dict[str, Value] = dict(setup.values)
    values |= {"strategy": "fsdp2", "sp_on": bool(setup.whole("sp", 0)), "loss": setup.text("loss") or "materialised"}
    if setup.whole("devices") > 1:
        values["reshard"] = setup.whole("zero", 0) != 2
    method, base = setup.text("adapter"), adapters.stored_base(setup)
    if method:
        values |= {"peft_class": "nemo_automodel.components._peft.lora.PeftConfig", "dora": method == "dora"}
        if values.get("targets") == (ALL_LINEAR,):
            values.pop("targets")
            values["every"] = True
        elif isinstance(values.get("targets"), tuple):
            values["targets"] = tuple(f"*.{name}" for name in cast(tuple[str, ...], values["targets"]))
    values |= {"four_bits": True, "quantization": "nf4", "nested": base == "nf4"} if base.startswith("nf4") else {}
    return values | ({"eight_bits": True} if base == "int8" else {})


def write(setup: Setup) -> Written:
    """Return the YAML and the command."""
    todo = forms.PLACEHOLDER
    head: list[tuple[str, Any]] = [("recipe", "TrainFinetuneRecipeForNextTokenPrediction")]
    model = [
        ("model._target_", "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained"),
        ("model.pretrained_model_name_or_path", setup.model),
    ]
    others: list[tuple[str, Any]] = [
        ("model.torch_dtype", "bfloat16"), ("dataset._target_", f"{todo}: a data set of nemo_automodel.components.datasets"),
        ("optimizer.lr", f"{todo}: the peak learning rate"), ("checkpoint.checkpoint_dir", [f"{todo}: a folder, as text"]),
    ]  # fmt: skip
    others += [] if setup.values.get("steps") else [("step_scheduler.num_epochs", f"{todo}: the number of epochs")]
    text = forms.yaml_text([*head, *model, *PROGRAM.settings(wording(setup)), *others], setup.header)
    return Written({FILE: text}, ("automodel", FILE, "--nproc-per-node", str(setup.whole("devices_per_node"))), starter="node")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {})
    yield from adapters.refuse_base(setup, TITLE)
    if setup.whole("dp") > 1 and not setup.whole("zero", 0):
        dp = setup.whole("dp")
        yield Refusal(f"{TITLE} is written with FSDP2 on several devices", {"zero": 3, "dp_replicate": 1, "dp_shard": dp})
    if "objective" in setup.values:
        yield Refusal(f"{setup.text('objective')} is another recipe, which is not written; expected --objective sft", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for a YAML whose model or recipe is AutoModel's."""
    told = any("nemo_automodel" in str(one.value) or str(one.value).startswith("TrainFinetuneRecipe") for one in settings)
    return 5 + len({one.key for one in settings} & {row.key for row in KEYS}) if told else 0


PROGRAM = Program(
    name="automodel", title=TITLE, version=VERSION, framework="automodel", form="yaml", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises, refers={"--config": "automodel", "-c": "automodel"},
)  # fmt: skip
