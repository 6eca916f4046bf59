"""Axolotl: its YAML."""

from collections.abc import Iterable, Sequence

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import KERNELS, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, deepspeed, recipe, trainer
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, TRANSFORMERS, Limits, limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Axolotl", "0.21"
FILE = "axolotl.yaml"
CHECK = "import yaml; from axolotl.utils.schemas.config import AxolotlInputConfig as C; "


def _recompute(value: object) -> str | None:
    """Return 'full' for true and its variants that keep checkpoints elsewhere ('offload', 'unsloth'), 'none' for false."""
    text = str(value).lower()
    if text in ("true", "offload", "offload_disk", "unsloth", "yes", "on"):
        return "full"
    return "none" if text in ("false", "none", "no", "off") else None


RECOMPUTE = Kind(_recompute, lambda how: how == "full", "true, false or offload")
CUT_PLUGIN = "CutCrossEntropyPlugin"


def _plugins(value: object) -> bool | None:
    """Return true for plugins whose loss is on unless a key turns it off: integrations/cut_cross_entropy/args.py."""
    return CUT_PLUGIN in str(value) or None


PLUGINS = Kind(_plugins, lambda _: None, "a list of plugins", takes=-1)
FSDP_FACTS = ("reshard", "strategy", "fsdp_version", "fsdp_offload", "fsdp_recompute", "wrap")
LOSS_SWITCHES = {
    "liger": "fused", f"{KERNELS}cut": "fused", f"{KERNELS}chunked": "chunked", f"{KERNELS}flash": "kernel", f"{KERNELS}liger": "kernel",
}  # fmt: skip
"""The loss that each switch turns on."""
WRITTEN_LOSS = {"fused": "liger", "chunked": f"{KERNELS}chunked", "kernel": f"{KERNELS}flash"}
KEYS = table(
    "axolotl", recompute=RECOMPUTE, optimizers=trainer.OPTIMIZERS, names=adapters.NAMES, plugins=PLUGINS, fsdp=trainer.FSDP,
    frozen=Kind(lambda value: bool(value), lambda _: None, "a list"), attention=recipe.ATTENTION,
)  # fmt: skip
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "sp": (0,), "zero": (2, 3), "recompute": ("none", "full"), "precision": ("bf16", "fp16", "fp8"),
    "offload": ("none", "parameters"), "optimizer": TRANSFORMERS["optimizer"], "loss": ("", *WRITTEN_LOSS),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the precision, and the ZeRO stage of FSDP or of DeepSpeed's file."""
    unclear = next((one for name in ("bf16", "fp16") if (one := facts.get(name)) and one.value is None), None)
    precise = next((name for name in ("fp8", "bf16", "fp16") if facts.value(name) is True), "")
    if precise:
        facts = facts.adding([facts.meaning("precision", precise, precise)])
    elif unclear is not None and "precision" not in facts:
        facts = facts.adding([facts.derived("precision", "bf16", "auto: bf16 on every GPU since Ampere", unclear.fact)])
    facts = facts.adding(_sharding(facts))
    if facts.value("fsdp_offload") is not None and facts.value("zero"):
        facts = facts.adding([facts.meaning("offload", "parameters" if facts.value("fsdp_offload") else "none", "fsdp_offload")])
    for name, fact, value in (
        ("fsdp_recompute", "recompute", "full"),
        *((name, "loss", loss) for name, loss in reversed(LOSS_SWITCHES.items())),
        ("every", "targets", (ALL_LINEAR,)),
    ):
        facts = facts.adding([facts.meaning(fact, value, name)] if facts.value(name) else [])
    if facts.value(f"{KERNELS}plugin") and facts.value(f"{KERNELS}cut") is not False and "loss" not in facts:
        facts = facts.adding([facts.meaning("loss", "fused", f"{KERNELS}plugin")])
    if facts.value("adapter_word"):
        method = "dora" if facts.value("dora") else str(facts.value("adapter_word"))
        facts = facts.adding([facts.meaning("adapter", method, "adapter_word")])
    return facts


def _sharding(facts: Run) -> Iterable[Stated]:
    if "zero" in facts:  # of DeepSpeed's file, which also says what predicts it
        return
    file = facts.get("deepspeed_file")
    if file is not None and file.value:
        yield Stated("zero", None, "unknown", file.span, file.key, f"in {file.value}, which was not given")
    elif facts.value("old_fsdp") is not None:
        yield facts.meaning("zero", facts.whole("old_fsdp"), "old_fsdp")
    elif any(name in facts for name in FSDP_FACTS):
        name = next(name for name in FSDP_FACTS if name in facts)
        stage = trainer.SHARDING.get(str(facts.value("strategy") or "").lower(), 2 if facts.value("reshard") is False else 3)
        yield facts.meaning("zero", stage, name)
    else:
        yield Stated("zero", 0, "default", None, "", f"{TITLE} shards nothing without deepspeed or fsdp_config")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of the YAML."""
    values: dict[str, Value] = dict(setup.values)
    if _by_deepspeed(setup):
        values |= {"deepspeed_file": deepspeed.FILE}
        values.pop("dp_shard", None)
    elif setup.whole("zero", 0):
        values |= {"fsdp_version": 2, "reshard": setup.whole("zero") == 3, "wrap": "TRANSFORMER_BASED_WRAP"}
        values |= {"fsdp_offload": setup.text("offload") == "parameters"}
    else:
        values.pop("dp_shard", None)
    precision = setup.text("precision")
    values |= {"fp16": True} if precision == "fp16" else {"bf16": True} | ({"fp8": True} if precision == "fp8" else {})
    values |= {WRITTEN_LOSS[setup.text("loss")]: True} if setup.text("loss") in WRITTEN_LOSS else {}
    method = setup.text("adapter")
    if method:
        base = adapters.stored_base(setup)
        values |= {"adapter_word": "qlora" if base == "nf4" else "lora"}
        values |= {"dora": True} if method == "dora" else {}
        values |= {"four_bits": True} if base == "nf4" else {"eight_bits": True} if base == "int8" else {}
        if values.get("targets") == (ALL_LINEAR,):
            values |= {"every": True}
            values.pop("targets")
    return values


def write(setup: Setup) -> Written:
    """Return the YAML and the command."""
    todo = forms.PLACEHOLDER
    pairs = [("base_model", setup.model), *PROGRAM.settings(wording(setup))]
    pairs += [("datasets", f"{todo}: a list of data sets"), ("output_dir", [f"{todo}: the folder of checkpoints, as text"])]
    pairs += [("learning_rate", f"{todo}: the peak learning rate")]
    if not setup.values.get("steps"):
        pairs += [("num_epochs", f"{todo}: the number of epochs")]
    files = {FILE: forms.yaml_text(pairs, setup.header)}
    if _by_deepspeed(setup):
        files[deepspeed.FILE] = forms.json_text(deepspeed.PROGRAM.settings(deepspeed.values_of(setup)))
    return Written(files, ("-m", "axolotl.cli.train", FILE))


def _by_deepspeed(setup: Setup) -> bool:
    return setup.text("sharded_by") == "deepspeed" and (setup.whole("zero", 0) > 0 or setup.text("offload", "none") != "none")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    zero = {"zero": (1, 2, 3), "offload": ("none", "optimizer", "parameters")}
    yield from limited(setup, TITLE, LIMITS | (zero if _by_deepspeed(setup) else {}))
    yield from recipe.refuse(setup, TITLE, {"attention": trainer.ATTENTION})
    yield from adapters.refuse_base(setup, TITLE)
    if not setup.whole("zero", 0) and setup.whole("tp") * setup.whole("cp") > 1:
        yield Refusal(f"{TITLE} has tensor and context parallelism only with FSDP 2", {"zero": 3})
    if adapters.stored_base(setup) == "nf4-single":
        yield Refusal(f"{TITLE} always quantizes the scales of nf4 again; expected --base nf4", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of Axolotl's own keys a YAML has."""
    names = {setting.key.split(".")[0] for setting in settings}
    own = {
        "base_model", "sequence_len", "micro_batch_size", "datasets", "adapter", "sample_packing", "val_set_size",
        "dataset_prepared_path", "num_epochs",
    }  # fmt: skip
    return len(names & own) if "base_model" in names else 0


PROGRAM = Program(
    name="axolotl", title=TITLE, version=VERSION, framework="axolotl", form="yaml", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, refers={"deepspeed": "deepspeed"},
    auto="auto: Axolotl chooses it when it runs", check=f"python -c '{CHECK}C(**yaml.safe_load(open(\"{FILE}\")))'",
)  # fmt: skip
