"""llm-foundry: the YAML of `composer train/train.py`, with FSDP; read only."""

from collections.abc import Sequence

from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "llm-foundry", "0.22"
KEYS = table("llm-foundry")
OWN = {
    "global_train_batch_size", "device_train_microbatch_size", "max_duration", "fsdp_config.sharding_strategy", "model.d_model",
}  # fmt: skip


def meaning(facts: Run) -> Run:
    """Add the other sizes of an MPT, and its steps."""
    more: list[Stated] = []
    if facts.whole("hidden") and "ffn" not in facts:
        more.append(
            facts.derived("ffn", facts.whole("expansion", 4) * facts.whole("hidden"), "expansion_ratio x d_model", "hidden")
        )
        more += [
            facts.derived(name, value, "MPT", "hidden")
            for name, value in (("gated", False), ("position_kind", "alibi"), ("tied", True))
        ]
    duration = str(facts.value("duration") or "")
    if duration.endswith("ba") and duration[:-2].isdecimal() and len(duration) < 18:
        more.append(facts.meaning("steps", int(duration[:-2]), "duration"))
    more += [Stated(name, 1, "derived", None, "", "FSDP alone") for name in ("tp", "pp", "cp", "ep") if name not in facts]
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of its own keys a YAML has, or one with its keys under `parameters` for a platform."""
    names = {setting.key.removeprefix("parameters.") for setting in settings}
    own = len(names & OWN)
    return 0 if script else 3 * own if own > 1 else 0


PROGRAM = Program(
    name="llm-foundry", title=TITLE, version=VERSION, framework="fsdp", form="yaml", keys=KEYS, write=None, meaning=meaning,
    recognises=recognises,
)  # fmt: skip
