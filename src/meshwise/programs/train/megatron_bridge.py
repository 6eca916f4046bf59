"""Megatron-Bridge: overrides of a recipe, 'model.tensor_model_parallel_size=8', as words of a command or as YAML."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, Kind
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import names, table
from meshwise.programs.train import megatron, megatron_rules, recipe
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "Megatron-Bridge", "0.6"
SECTIONS = names("megatron-bridge-sections")  # keys that are not `model.` and the name of Megatron-LM's flag
DROPPED = ("torch_fsdp", "samples", "layers_per_chunk", "ramp", "activation_offload", "precision", "fp8_format", "fp8_recipe", "fp4_format",
           "fp4_recipe")  # fmt: skip
"""Facts of Megatron without a key here, or with a different one."""


def _key(row: Key) -> Key:
    name = SECTIONS.get(row.fact) or f"model.{row.key.removeprefix('--').replace('-', '_')}"
    kind = BOOL if row.kind.takes == 0 else row.kind
    if row.fact in ("granularity", "vpp") and row.write != "never":
        kind = _or_null(kind, "none" if row.fact == "granularity" else 1)
    always = row.fact in ALWAYS and row.write != "never"
    return replace(row, key=name, also=(), kind=kind, write="always" if always else row.write)


def _or_null(kind: Kind, off: Value) -> Kind:
    """Return a kind whose value for nothing is null."""

    def read(value: Any) -> Value | None:
        return off if str(value).lower() in ("null", "none") else kind.read(value)

    def write(value: Any) -> Any:
        return "null" if value == off else kind.write(value)

    return replace(kind, read=read, write=write)


NEMO = table(
    "nemo",
    granularity=megatron.GRANULARITY,
    distributed_optimizer=Kind(lambda name: str(name).startswith("distributed_fused"), str, "a name"),
    gated=Kind(lambda name: "glu" in str(name).lower(), str, "a name"),
)
"""Keys of NeMo's YAML before Megatron-Bridge, which are read and not written."""
RECIPE_KEYS = table(
    "megatron-bridge", backends=megatron.BACKENDS, loss_kernels=megatron.LOSS_KERNELS, graph_kinds=megatron.GRAPH_KINDS,
    graph_scope=megatron.GRAPH_SCOPE, dtypes=recipe.DTYPES, capacity=recipe.CAPACITY,
)  # fmt: skip
"""Kernels and hidden communication, recalled. Recipes set most of them, so that an absent key says nothing. Those of NeMo are read too."""
CAN = {**megatron.CAN, "attention": ("fa2", "cudnn", "unfused")}
NAMES = names("megatron-bridge")  # models of its recipes by the start of a recipe's name


def preset_of(recipe: str) -> str:
    """Return the preset of a recipe's name, such as llama3_70b_pretrain_config; '' for an unknown one."""
    plain = recipe.rpartition(".")[2].lower().replace("-", "_")
    known = [name for name in NAMES if plain == name or plain.startswith(f"{name}_")]
    return NAMES[max(known, key=len)] if known else ""


def meaning(facts: Run) -> Run:
    """Add the model of a recipe. What a recipe sets and no override says is not known: it is Python."""
    facts = megatron_rules.meaning(facts)
    named = facts.get("recipe")
    if named is None:
        return facts
    why = f"in the recipe {named.value}, which is Python"
    facts = facts.adding(Stated(one.fact, None, "unknown", one.span, one.key, why) for one in facts if one.how == "default")
    missing = [name for name in ("batch", "mbs", "seq", "precision") if name not in facts]
    facts = facts.adding(Stated(name, None, "unknown", named.span, named.key, why) for name in missing)
    preset = preset_of(str(named.value or ""))
    return facts.adding([facts.meaning("model", preset, "recipe")] if preset and "model" not in facts else [])


ALWAYS = (
    "sequence_parallel", "cp", "ep", "distributed_optimizer", "granularity", "vpp", "fsdp", "optimizer_offload", "instances",
    "optimizer",
)  # fmt: skip
"""Facts that are always written, since a recipe may set another value."""
_KEPT = (row for row in (*megatron.LAYOUT_KEYS, *megatron.WORK_KEYS) if row.fact not in DROPPED)
KEYS = table(
    "megatron-bridge-keys", megatron=(_key(row) for row in _KEPT if row.key != "--recompute-activations"), recipe=RECIPE_KEYS,
    nemo=(replace(row, write="never") for row in NEMO),
)  # fmt: skip


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in Megatron's words."""
    words = megatron_rules.recipe_words(setup) | megatron_rules.switch_words(setup, assumed=False)
    words |= {"precision": setup.text("precision"), **megatron_rules.dispatcher_words(setup)}
    off: dict[str, Value] = {"optimizer_offload": False, "instances": 1, "granularity": "none"}
    return off | megatron_rules.wording(setup) | words


def write(setup: Setup) -> Written:
    """Return the command of a recipe with overrides."""
    pairs = PROGRAM.settings(wording(setup))
    if not setup.values.get("steps"):
        pairs.append(("train.train_iters", "${TRAIN_ITERS:?set TRAIN_ITERS: the number of steps}"))
    pairs.append(("checkpoint.save", "${CHECKPOINTS:?set CHECKPOINTS: the folder of checkpoints}"))
    pairs.append(("checkpoint.load", "${CHECKPOINTS}"))  # a restart goes on
    data = "${DATA_PATH:?set DATA_PATH: the prefix of the tokenized data}"
    named = next((name for name, preset in NAMES.items() if setup.plan is not None and preset == setup.plan.ask.model), "")
    recipe = ("--model", named, "--mode", "pretrain") if named else ("--recipe", RECIPE)
    command = ("run_recipe.py", *recipe, *forms.pair_words([*pairs, ("dataset.data_path", data)]))
    return Written({}, command, environment=megatron.environment(setup))


RECIPE = "${RECIPE:?set RECIPE: the recipe of the model in megatron.bridge.recipes}"


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from megatron_rules.refuse(setup, TITLE)
    yield from megatron_rules.refused_recipe(setup, TITLE, CAN)
    if setup.text("offload") == "activations":
        yield Refusal(f"{TITLE} offloads activations in its recipes' Python", {"offload": "none"})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many overrides a command or YAML has."""
    names = {setting.key for setting in settings}
    own = {row.key for row in KEYS if "." in row.key}
    if script and script.rpartition("/")[2] in SCRIPTS:
        return 8 + len(names & own)
    sure = any(name.startswith(("model.", "ddp.", "checkpoint.", "comm_overlap.", "trainer.")) for name in names & own)
    return len(names & own) if sure else 0


SCRIPTS = ("run_recipe.py", "run_script.py", "setup_experiment.py")


PROGRAM = Program(
    name="megatron-bridge", title=TITLE, version=VERSION, framework="megatron-bridge", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises,
)  # fmt: skip
