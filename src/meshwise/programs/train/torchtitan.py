"""torchtitan 0.3: flags over a registered configuration, `torchtitan.train --module llama3 --config llama3_8b`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from meshwise.catalogue import files
from meshwise.models import find
from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import names, table
from meshwise.programs.train import recipe
from meshwise.programs.train import torchtitan_rules as rules
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "torchtitan", "0.3"
MODULE = "torchtitan.train"
FLAVOURS = {tuple(name.split()): preset for name, preset in names("torchtitan").items()}
"""Models that torchtitan registers, by module and flavour, and the preset with the same sizes."""
TWINS = names("torchtitan-twins")
KEYS = table("torchtitan", keys=rules.keys(dashes=True))


@cache
def registered() -> dict[str, dict[str, Any]]:
    """Return the configurations that torchtitan 0.3 registers, as values that differ from its defaults (tools/torchtitan_configs.py)."""
    return json.loads(files.text_of(files.BUILT_IN / "programs" / "torchtitan-0.3.json"))


def meaning(facts: Run) -> Run:
    """Add the model and the defaults of the registered configuration, then what keys mean together."""
    config = str(facts.value("config") or "")
    row = registered().get(config)
    if row is None:
        why = f"in the registered configuration {config}, which is Python" if config else "no --config"
        for name in ("recompute", "tp", "pp", "cp", "ep", "dp_replicate", "local_batch", "seq", "compile"):
            stated = facts.get(name)
            if stated is None or stated.how == "default":
                facts = facts.adding([Stated(name, None, "unknown", None, "", why)])
    else:
        facts = _of_registered(facts, config, row)
    facts = facts.adding(_in_sequences(facts))
    if facts.value("no_compile"):
        facts = facts.adding([facts.meaning("compile", False, "no_compile")])
    if facts.whole("chunks"):
        facts = facts.adding([facts.meaning("loss", "chunked" if facts.whole("chunks") > 1 else "materialised", "chunks")])
    if facts.value("no_graphs"):
        facts = facts.adding([facts.meaning("graphs", "none", "no_graphs")])
    facts = rules.meaning(facts)
    if facts.value("sequence_parallel") is False:
        facts = facts.adding([facts.meaning("sp", 0, "sequence_parallel")])
    return facts


def _in_sequences(facts: Run) -> Iterator[Stated]:
    """Yield batches in sequences from those of the main branch, which are in tokens."""
    seq = facts.whole("seq")
    tokens, step = facts.whole("rank_tokens"), facts.whole("step_tokens")
    if tokens and seq and tokens % seq == 0:
        piped = facts.whole("pp", 1) > 1
        yield facts.derived(
            "microbatch" if piped else "local_batch", tokens // seq, f"{tokens:,} tokens / {seq:,}", "rank_tokens"
        )
        if piped and facts.whole("pp_microbatches"):
            yield facts.derived(
                "local_batch", tokens // seq * facts.whole("pp_microbatches"), "x micro-batches", "pp_microbatches"
            )
    if step and seq and step % seq == 0:
        yield facts.derived("batch", step // seq, f"{step:,} tokens / {seq:,}", "step_tokens")


def edition(facts: Run) -> str:
    """Return whether a command is of 0.3 or of the main branch."""
    return "main of 2026-08" if any(facts.says(name) for name in ("rank_tokens", "step_tokens", "pp_microbatches")) else VERSION


def _of_registered(facts: Run, config: str, row: dict[str, Any]) -> Run:
    note = f"in {TITLE} {VERSION}'s configuration {config}"
    place = facts.values["config"].span
    for key, value in row.items():
        names = [key_row.fact for key_row in KEYS if key_row.key == f"--{key}"]
        ours = {"activation_checkpoint": "recompute", "loss": "loss", "precision": "precision"}
        name = ours.get(key, names[0] if names else "")
        if key == "parallelism.pipeline_parallel_schedule":
            value = {text: schedule for schedule, text in rules.SCHEDULES.items()}.get(value, value)
        if name and not facts.says(name):
            facts = facts.adding([Stated(name, value, "default", place, "--config", note)])
    preset = FLAVOURS.get((row["module"], str(row["flavor"]).lower()))
    known = preset or (None if "debug" in str(row["flavor"]) else str(row["flavor"]))
    facts = facts.adding([Stated("model", known, "said", place, "--config")] if known else [])
    return facts.adding(layers_of(preset, facts))


def layers_of(preset: str | None, facts: Run) -> list[Stated]:
    """Return the layers of a registered model, which the chunks of a pipeline depend on."""
    if not preset:
        return []
    layers = find.find_model(preset).decoder.layers
    return [facts.derived("layers", layers, f"of {preset}", "model")]


def config_of(setup: Setup) -> str:
    """Return the registered configuration of a plan's model and precision; '' where there is none."""
    name = str(setup.plan.ask.model).rpartition("/")[2].lower()
    preset = TWINS.get(name, name)
    for config, row in registered().items():
        if config.startswith("sft") or "85_pct" in config or "hybridep" in config or "async_ep" in config:
            continue
        if FLAVOURS.get((row["module"], str(row["flavor"]).lower())) == preset and row["precision"] == setup.text("precision"):
            return config
    return ""


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in torchtitan's words; its pipeline and its expert parallelism need CUDA graphs off."""
    off = setup.whole("pp") > 1 or setup.whole("ep") > 1 or setup.text("graphs") == "none"
    return rules.wording(setup) | ({"no_graphs": True} if off else {})


def write(setup: Setup) -> Written:
    """Return the command."""
    config = config_of(setup)
    values = wording(setup)
    compiled = bool(values.pop("compile", False)) or setup.text("precision") != "bf16"  # its 8-bit products need it
    pairs = [("--module", registered()[config]["module"]), ("--config", config), *PROGRAM.settings(values)]
    pairs.append(("--compile.enable" if compiled else "--compile.no_enable", True))
    pairs += [("--checkpoint.enable", True), ("--checkpoint.interval", setup.whole("save_every", 1000)), *UNKNOWN_FLAGS]
    if not setup.values.get("steps"):
        pairs.append(("--training.steps", "${STEPS:?set STEPS: the number of steps}"))
    words = forms.flag_words(pairs)
    recompute = setup.text("recompute", "none")
    return Written({}, ("-m", MODULE, *words, f"activation-checkpoint:{recompute}"))


UNKNOWN_FLAGS = [
    ("--hf_assets_path", "${HF_ASSETS:?set HF_ASSETS: the folder of the tokenizer}"),
    ("--dataloader.dataset", "${DATASET:?set DATASET: a data set that torchtitan knows}"),
]


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from rules.refuse(setup, f"{TITLE} {VERSION}")
    yield from recipe.refuse(setup, f"{TITLE} {VERSION}", {**rules.CAN, "graphs": ("none",)})
    if setup.plan is not None and setup.values.get("loss") not in (None, "", "chunked"):
        yield Refusal(f"the loss of {TITLE} {VERSION}'s configurations is chunked", {"loss": "chunked"})
    if setup.values.get("experts") and setup.whole("etp") > 1:
        yield Refusal(f"{TITLE} {VERSION} has no tensor parallelism of experts", {"etp": 1})
    if setup.plan is not None and not config_of(setup):
        precise = [row for row in registered().values() if row["precision"] == "bf16"]
        model = str(setup.plan.ask.model)
        known = any(FLAVOURS.get((row["module"], str(row["flavor"]).lower())) == TWINS.get(model, model) for row in precise)
        instead: dict[str, int | str] = {"precision": "bf16"} if known and setup.text("precision") != "bf16" else {}
        what = f"{model} in {setup.text('precision')}" if instead else model
        why = f"{TITLE} {VERSION} registers no configuration of {what}"
        yield Refusal(f"{why}; another shape is Python in its model code", instead)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of torchtitan's dotted flags a command has; more where it starts torchtitan.train."""
    sections = ("--parallelism.", "--training.", "--activation_checkpoint.", "--compile.", "--job.")
    own = sum(setting.key.startswith(sections) for setting in settings)
    starts = script in (MODULE, "run_train.sh", "train.py") or script.endswith("torchtitan/train.py")
    old = any(setting.key.startswith("--job.") for setting in settings)
    module = any(setting.key == "--module" for setting in settings)
    return 0 if old else own + 5 * (script == MODULE) + (3 if module and starts else 0)


PROGRAM = Program(
    name="torchtitan", title=TITLE, version=VERSION, framework="torchtitan", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, edition=edition,
    check="python -c 'from torchtitan.config import ConfigManager; ConfigManager().parse_args()' with the flags",
)  # fmt: skip
