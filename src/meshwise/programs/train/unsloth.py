"""Unsloth: a Python script with the calls of its notebooks: FastLanguageModel, get_peft_model and TRL's SFTConfig."""

from collections.abc import Iterable, Sequence

from meshwise.models.op import ALL_LINEAR
from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, recipe, trainer
from meshwise.programs.train.limits import NO_EXPERTS, NO_PIPELINE, Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Unsloth", "2026.10"
FILE = "unsloth_train.py"
LOAD, ADAPT, TRAIN = "FastLanguageModel.from_pretrained", "FastLanguageModel.get_peft_model", "SFTConfig"
RANK = 16  # get_peft_model's default of r


def _recompute(value: object) -> str | None:
    """Return 'full' for True and 'unsloth', which keeps the inputs of layers in host memory; 'none' for False."""
    return "none" if str(value).lower() in ("false", "none") else "full"


TARGETS = Kind(
    adapters.NAMES.read, lambda names: ALL_LINEAR if names == (ALL_LINEAR,) else list(names), "names of modules", takes=-1
)
RECOMPUTE = Kind(_recompute, lambda how: "unsloth" if how == "full" else False, "'unsloth' or False")
KEYS = table(
    "unsloth", targets=TARGETS, names=adapters.NAMES, recompute=RECOMPUTE, optimizers=trainer.OPTIMIZERS,
    objective=Kind(lambda _: "dpo", lambda _: None, "a number"),
)  # fmt: skip
LIMITS: Limits = {
    **NO_PIPELINE, **NO_EXPERTS, "tp": (1,), "cp": (1,), "sp": (0,), "dp_shard": (1,), "zero": (0,), "recompute": ("none", "full"),
    "precision": ("bf16", "fp16"), "offload": ("none",), "optimizer": tuple(trainer.WORDS), "loss": ("fused", ""), "compile": (False,),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the method, which is QLoRA unless the script says otherwise, and the precision."""
    precise = next((name for name in ("fp16", "bf16") if facts.value(name) is True), "")
    more = [Stated("precision", precise or "bf16", "default", None, f"{TRAIN}.bf16", f"default of {TITLE} {VERSION}")]
    more.append(facts.meaning("zero", 0, "mbs"))
    more.append(Stated("loss", "fused", "default", None, "", f"default of {TITLE} {VERSION}"))
    adapted = any(name in facts for name in ("rank", "targets", "alpha"))
    if adapted and not facts.value("whole"):
        four = facts.value("four_bits") if "four_bits" in facts else not facts.value("eight_bits")
        name = next(name for name in ("rank", "targets", "alpha") if name in facts)
        more.append(facts.meaning("adapter", "qlora" if four else "lora", name))
        if "rank" not in facts:
            more.append(Stated("rank", RANK, "default", None, f"{ADAPT}.r", f"default of {TITLE} {VERSION}"))
        if "targets" not in facts:
            more.append(
                Stated("targets", (ALL_LINEAR,), "default", None, f"{ADAPT}.target_modules", f"default of {TITLE} {VERSION}")
            )
    return facts.adding(more)


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts as arguments of the calls."""
    values: dict[str, Value] = dict(setup.values)
    base = adapters.stored_base(setup)
    values |= {"four_bits": base == "nf4", "bf16" if setup.text("precision") != "fp16" else "fp16": True}
    values |= {"eight_bits": True} if base == "int8" else {}
    if not setup.text("adapter"):
        values["whole"] = True
    return values


def write(setup: Setup) -> Written:
    """Return the script and the command. Arguments are Python literals of the table's values."""
    calls: dict[str, list[str]] = {LOAD: [f"model_name={setup.model!r}"], ADAPT: [], TRAIN: []}
    for key, value in PROGRAM.settings(wording(setup)):
        call, _, name = key.rpartition(".")
        calls[call].append(f"{name}={value!r}")
    adapts = bool(setup.text("adapter"))
    if not adapts:
        calls[LOAD] += [text for text in calls[ADAPT] if text.startswith("use_gradient")]
    lines = [
        forms.comment(setup.header), "import os\n\nfrom unsloth import FastLanguageModel  # first: it patches transformers and TRL",
        "from datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\n",
        f"model, tokenizer = {_call(LOAD, calls[LOAD])}",
        *([f"model = {_call(ADAPT, ['model', *calls[ADAPT]])}"] if adapts else []),
        'rows = load_dataset("json", data_files=os.environ["DATASET"], split="train")',
        f"arguments = {_call(TRAIN, [*calls[TRAIN], 'output_dir=os.environ[' + repr('OUTPUT_DIR') + ']'])}",
        "SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=arguments).train()\n",
    ]  # fmt: skip
    return Written({FILE: "\n".join(lines)}, (FILE,))


def _call(name: str, arguments: list[str]) -> str:
    inner = "".join(f"    {one},\n" for one in arguments)
    return f"{name}(\n{inner})"


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {})
    yield from adapters.refuse_base(setup, TITLE)
    if setup.text("adapter") == "dora":
        yield Refusal(f"{TITLE} has no DoRA; expected --finetune lora:{setup.whole('rank')}", {})
    if "objective" in setup.values:
        yield Refusal(f"{setup.text('objective')} is another trainer, which is not written; expected --objective sft", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for a script that calls FastLanguageModel."""
    return 30 if any(one.key.startswith("FastLanguageModel.") for one in settings) else 0


PROGRAM = Program(
    name="unsloth", title=TITLE, version=VERSION, framework="unsloth", form="text", keys=KEYS, write=write, refuse=refuse,
    wording=wording, meaning=meaning, recognises=recognises, check=f"python -m py_compile {FILE}",
)  # fmt: skip
