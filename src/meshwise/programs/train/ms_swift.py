"""ms-swift: the flags of `swift sft` and `swift rlhf`, which are the Trainer's arguments and a few of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import adapters, deepspeed, recipe, trainer
from meshwise.programs.train.limits import limited, offload_needs_shards
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "ms-swift", "4.6"
STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}
"""Names of DeepSpeed's files that it ships."""
BITS = Kind(lambda value: True if str(value) == "4" else None, lambda _: 4, "a number of bits")
EIGHT = Kind(lambda value: True if str(value) == "8" else None, lambda _: 8, "a number of bits")
TRAINER = [
    row
    for row in trainer.TRAINING
    if row not in adapters.TRL_KEYS and row.fact not in ("attention", "deepspeed_file", "model", "bf16", "fp16", "recompute_on")
]
KEYS = table("ms-swift", trainer=TRAINER, names=adapters.NAMES, bits=BITS, eight=EIGHT)
DEFAULT_RANK = 8


def meaning(facts: Run) -> Run:
    """Add adapters, which are its default, the shipped file of DeepSpeed that a word names, and what the Trainer's arguments mean."""
    if not facts.value("whole") and "use_peft" not in facts:
        facts = facts.adding([Stated("use_peft", True, "default", None, "tuner_type", f"default of {TITLE} {VERSION}")])
    if not facts.value("whole") and "rank" not in facts:
        facts = facts.adding([Stated("rank", DEFAULT_RANK, "default", None, "lora_rank", f"default of {TITLE} {VERSION}")])
    if not facts.value("whole") and "targets" not in facts:
        facts = facts.adding(
            [Stated("targets", ("all-linear",), "default", None, "target_modules", f"default of {TITLE} {VERSION}")]
        )
    file = str(facts.value("deepspeed_file") or "")
    if file in STAGES:
        said: list[Stated] = [
            facts.meaning("zero", STAGES[file], "deepspeed_file"),
            facts.meaning("predicted_by", "deepspeed", "deepspeed_file"),
        ]
        offload = ("parameters" if file.startswith("zero3") else "optimizer") if file.endswith("offload") else "none"
        facts = facts.adding([*said, facts.meaning("offload", offload, "deepspeed_file")])
    if facts.value("precision") is None:
        facts = facts.adding([Stated("precision", "bf16", "default", None, "torch_dtype", "the dtype of the checkpoint")])
    return trainer.meaning(facts.without("from_file")).without("tuner")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts as its arguments."""
    values = trainer.values_of(setup)
    for name in ("bf16", "fp16", "use_peft", "quantization"):
        values.pop(name, None)
    if setup.whole("zero", 0) and not trainer.by_fsdp(setup):
        values["deepspeed_file"] = _shipped(setup)
    return values


def _shipped(setup: Setup) -> str:
    """Return the name of the shipped file for a ZeRO stage."""
    return f"zero{setup.whole('zero')}" + ("_offload" if setup.text("offload", "none") != "none" else "")


def write(setup: Setup) -> Written:
    """Return the command."""
    objective = setup.text("objective", "sft")
    pairs: list[tuple[str, Any]] = [("model", setup.model), ("tuner_type", "lora" if "rank" in setup.values else "full")]
    pairs += PROGRAM.settings(wording(setup))
    pairs += [("quant_method", "bnb")] if adapters.stored_base(setup) else []
    variables = [
        ("dataset", "${DATASET:?set DATASET: a data set or a file of rows}"),
        ("output_dir", "${OUTPUT_DIR:?set OUTPUT_DIR: a folder}"),
    ]
    words = [text for key, value in [*pairs, *variables] for text in (f"--{key.removeprefix('--')}", *trainer.words_of(value))]
    environment = {"NNODES": str(setup.whole("nodes")), "NPROC_PER_NODE": str(setup.whole("devices_per_node"))}
    return Written({}, ("swift", "sft" if objective == "sft" else "rlhf", *words), starter="node", environment=environment)


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from offload_needs_shards(setup, TITLE)
    yield from limited(setup, TITLE, {**trainer.LIMITS, "cp": (1,)})
    yield from recipe.refuse(setup, TITLE, {"attention": ("fa2", "fa3", "unfused")})
    yield from deepspeed.replicas(setup, TITLE)
    yield from adapters.refuse_base(setup, TITLE)
    if setup.text("offload") == "optimizer" and setup.whole("zero", 0) != 2:
        yield Refusal(f"{TITLE} ships files that offload the optimizer with ZeRO 2 alone", {"zero": 2})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return a score for the command, or for flags that only it has."""
    if script.rpartition("/")[2] in ("swift", "swift.cli.sft", "swift.cli.rlhf"):
        return 20
    names = {setting.key.lstrip("-").replace("-", "_") for setting in settings}
    own = names & {"tuner_type", "train_type", "target_modules", "quant_bits", "rlhf_type", "attn_impl"}
    return len(own) + len(names & trainer.OWN_KEYS) if {"tuner_type", "train_type"} & own else 0


PROGRAM = Program(
    name="ms-swift", title=TITLE, version=VERSION, framework="ms-swift", form="flags",
    keys=tuple(replace(row, key=f"--{row.key}", also=tuple(f"--{name}" for name in row.also)) for row in KEYS),
    write=write, refuse=refuse, wording=wording, meaning=meaning, recognises=recognises,
    refers={"--deepspeed": "deepspeed"}, auto="auto: filled in when it runs",
)  # fmt: skip
