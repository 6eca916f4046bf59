"""meshwise's own trainer: `meshwise run`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwise.cost.work import parse_batch
from meshwise.errors import UserError
from meshwise.programs import forms
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import NO_EXPERTS, Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "meshwise", "0.1"

KEYS = table("meshwise")
LIMITS: Limits = {
    "schedule": ("1f1b", "interleaved", "zero-bubble"), **NO_EXPERTS, "recompute": ("none", "selective", "full"),
    "offload": ("none",), "precision": ("bf16",), "optimizer": ("adamw",), "loss": ("", "chunked"), "zero": (0, 2, 3),
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the batch and the sequence length, which one flag says together."""
    facts = replace(facts, replaced=tuple(one for one in facts.replaced if not (one.fact == "model" and one.value == "run")))
    text = facts.get("batch_text")
    if text is not None and text.value:
        try:
            batch, seq = parse_batch(str(text.value), int(facts.whole("seq_text", 64)))
            facts = facts.adding([facts.meaning("batch", batch, "batch_text"), facts.meaning("seq", seq, "batch_text")])
        except UserError as error:
            facts = facts.adding([Stated("batch", None, "unknown", text.span, text.key, str(error))])
    tp = facts.whole("tp", 1)
    return facts.adding([
        facts.derived("sp", int(tp > 1), "always on with tp", "tp"),
        facts.derived("offload", "none", "no offload", "zero"),
        facts.derived("ep", 1, "no expert parallelism", "tp"),
        facts.derived("loss", "chunked", "its only loss", "tp"),
    ])  # fmt: skip


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in the words of `meshwise run`."""
    unsharded = not setup.whole("zero", 0)
    values = {name: value for name, value in setup.values.items() if not (name == "zero" and unsharded)}
    return values | {"batch_text": f"{setup.whole('batch')}x{setup.whole('seq')}"}


def write(setup: Setup) -> Written:
    """Return the command, once per node: `meshwise run` starts a process per device itself."""
    pairs = PROGRAM.settings(wording(setup))
    if not setup.values.get("steps"):
        pairs.append(("--steps", "${STEPS:?set STEPS: the number of steps}"))
    pairs.append(("--checkpoint-every", 100))
    pairs.append(("--out", "${OUT:?set OUT: the folder of the run, which every node must see}"))
    return Written({}, ("meshwise", "run", str(setup.plan.ask.model), *forms.flag_words(pairs)), starter="node")


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, {})
    if setup.whole("cp") > 1 and setup.whole("zero", 0) == 0:
        yield Refusal("the trainer shards weights over context-parallel ranks", {"zero": 3})
    if setup.whole("tp") > 1 and not setup.whole("sp", 0):
        yield Refusal("the trainer always uses sequence parallelism with tp", {"sp": 1})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    return 20 if script == "meshwise" else 0


PROGRAM = Program(
    name="meshwise", title=TITLE, version=VERSION, framework="meshwise", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises, check="the same command with --dry-run",
)  # fmt: skip
