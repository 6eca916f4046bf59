"""torchtitan up to 0.2: the TOML of --job.config_file, and the same keys as flags."""

from collections.abc import Iterable, Iterator, Sequence

from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import recipe
from meshwise.programs.train import torchtitan_rules as rules
from meshwise.programs.train.torchtitan import FLAVOURS, TWINS, layers_of
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "torchtitan", "0.2"
FILE = "train.toml"
CONVERTERS = {"float8": "fp8", "quantize.linear.float8": "fp8", "mx": "mxfp8", "quantize.linear.mx": "mxfp8"}

KEYS = table("torchtitan-02", keys=rules.keys(dashes=False), positive=rules.POSITIVE)
LOSS_COMPONENTS = {"compiled": ("model", "loss"), "materialised": ("model",)}  # compile.components by loss
CHECK = "from torchtitan.config import ConfigManager; ConfigManager().parse_args"
DEFAULTS: dict[str, Value] = {"local_batch": 8, "seq": 2048, "steps": 10000}


def meaning(facts: Run) -> Run:
    """Add the model, the precision and the defaults, then what keys mean together."""
    missing = [name for name in DEFAULTS if name not in facts]
    facts = facts.adding(Stated(name, DEFAULTS[name], "default", None, "", f"default of {TITLE} {VERSION}") for name in missing)
    family, flavor = str(facts.value("family") or ""), str(facts.value("flavor") or "")
    preset = FLAVOURS.get((family.lower(), flavor.lower()))
    if preset:
        facts = facts.adding([facts.meaning("model", preset, "flavor", "family")])
        facts = facts.adding(layers_of(preset, facts))
    facts = facts.adding(_precision(facts))
    return rules.meaning(facts)


def _precision(facts: Run) -> Iterator[Stated]:
    """Yield the precision: of the converters alone, since a [quantize] table without its converter does nothing."""
    named = facts.value("converters")
    converters: tuple[str, ...] = tuple(str(item) for item in named) if isinstance(named, tuple) else ()
    found = next((CONVERTERS[name] for name in converters if name in CONVERTERS), "")
    if found == "fp8" and str(facts.value("float8_recipe") or "").startswith("rowwise"):
        found = "fp8-row"
    if found:
        yield facts.meaning("precision", found, "converters")
    else:
        yield Stated("precision", "bf16", "default", None, "training.mixed_precision_param", f"default of {TITLE} {VERSION}")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in torchtitan's words."""
    values = rules.wording(setup) | _words(setup.text("precision"))
    values |= {"selective": "op"} if setup.text("recompute") == "selective" else {}
    values |= {rules.COMPONENTS: LOSS_COMPONENTS[setup.text("loss")]} if setup.text("loss") in LOSS_COMPONENTS else {}
    return {name: value for name, value in values.items() if name != "etp" or setup.values.get("experts")}


def write(setup: Setup) -> Written:
    """Return the TOML and the command."""
    family, flavor = flavour_of(setup)
    pairs = PROGRAM.settings({**wording(setup), "family": family, "flavor": flavor})
    pairs += [("checkpoint.enable", True), ("checkpoint.interval", setup.whole("save_every", 1000))]
    pairs += [("model.hf_assets_path", [f"{forms.PLACEHOLDER}: the folder of the tokenizer, as text"])]
    pairs += [("training.dataset", [f"{forms.PLACEHOLDER}: a data set that torchtitan knows, as text"])]
    if not setup.values.get("steps"):
        pairs += [("training.steps", f"{forms.PLACEHOLDER}: the number of steps")]
    return Written({FILE: forms.toml_text(pairs, setup.header)}, ("-m", "torchtitan.train", "--job.config_file", FILE))


def _words(precision: str) -> dict[str, Value]:
    float8, mx = "quantize.linear.float8", "quantize.linear.mx"
    converter = {"fp8": float8, "fp8-row": float8, "mxfp8": mx}.get(precision, "")
    words: dict[str, Value] = {"converters": (converter,)} if converter else {}
    return words | {"float8_recipe": "rowwise"} if precision == "fp8-row" else words


def flavour_of(setup: Setup) -> tuple[str, str]:
    """Return the module and flavour of a plan's model; ('', '') where torchtitan registers none."""
    name = str(setup.plan.ask.model).rpartition("/")[2].lower()
    preset = TWINS.get(name, name)
    found = next((key for key, known in FLAVOURS.items() if known == preset), ("", ""))
    exact = {"17bx16e", "17bx128e", "20b", "120b"}
    return found[0], found[1] if found[1] in exact else found[1].upper()


def refuse(setup: Setup) -> Iterable[Refusal]:
    title = f"{TITLE} {VERSION}"
    yield from rules.refuse(setup, title)
    yield from recipe.refuse(setup, title, rules.CAN)
    if setup.text("loss") not in ("", *LOSS_COMPONENTS):
        yield Refusal(f"{title} has no {setup.text('loss')} loss", {"loss": ""})
    if setup.text("loss") == "compiled" and not setup.values.get("compile"):
        yield Refusal(f"{title} compiles the loss only with the layers (--compile)", {"loss": ""})
    if setup.text("precision") not in ("bf16", "fp8", "fp8-row", "mxfp8"):
        yield Refusal(f"{title} has no precision {setup.text('precision')}", {"precision": "bf16"})
    if setup.plan is not None and (not flavour_of(setup)[0] or flavour_of(setup)[1] in ("1B", "3B")):
        yield Refusal(f"{title} registers no flavour of {setup.plan.ask.model}; another shape is Python in its model code", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of torchtitan's tables a TOML has, or its flags with --job."""
    if source is not None and not source.file.endswith(".toml") and not script:
        return 0
    tables = {setting.key.lstrip("-").split(".")[0] for setting in settings}
    own = tables & {
        "parallelism", "activation_checkpoint", "training", "job", "checkpoint", "model", "lr_scheduler", "experimental",
    }  # fmt: skip
    flags = any(setting.key.startswith("--job.") for setting in settings)
    return len(own) + (4 if flags else 0) if (not script and len(own) > 2) or flags else 0


PROGRAM = Program(
    name="torchtitan-0.2", title=TITLE, version=VERSION, framework="torchtitan", form="toml", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, flag_words=True,
    refers={"--job.config_file": "torchtitan-0.2", "--job.config-file": "torchtitan-0.2"},
    check=f'python -c \'{CHECK}(["--job.config_file", "{FILE}"])\'',
)  # fmt: skip
