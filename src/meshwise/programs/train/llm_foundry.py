"""llm-foundry: the YAML of `composer train/train.py`, with FSDP; read only."""

from collections.abc import Sequence

from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "llm-foundry", "0.22"
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
KEYS = table("llm-foundry")
OWN = {
    "global_train_batch_size", "device_train_microbatch_size", "max_duration", "fsdp_config.sharding_strategy", "model.d_model",
}  # fmt: skip
OPTIMIZERS = {"decoupled_adamw": "adamw", "adamw": "adamw", "decoupled_lionw": "lion"}


def meaning(facts: Run) -> Run:
    """Add sharding, precision and recompute; the other sizes of an MPT."""
    more: list[Stated] = []
    strategy = str(facts.value("strategy") or "")
    if strategy in STRATEGIES:
        more.append(facts.meaning("zero", STRATEGIES[strategy], "strategy"))
    else:
        more.append(Stated("zero", 0, "default", None, "fsdp_config", "no fsdp_config: nothing is sharded"))
    text = str(facts.value("precision_text") or "")
    if text:
        known = PRECISIONS.get(text)
        more.append(
            facts.meaning("precision", known, "precision_text")
            if known
            else facts.derived("precision", None, text, "precision_text")
        )
    more.append(facts.meaning("recompute", "full" if facts.value("recompute_on") else "none", "recompute_on"))
    offload = "activations" if facts.value("host") else "none"
    more.append(facts.meaning("offload", offload, "host") if facts.value("host") else Stated("offload", "none", "default"))
    if facts.whole("hidden") and "ffn" not in facts:
        more.append(
            facts.derived("ffn", facts.whole("expansion", 4) * facts.whole("hidden"), "expansion_ratio x d_model", "hidden")
        )
        more += [
            facts.derived(name, value, "MPT", "hidden")
            for name, value in (("gated", False), ("position_kind", "alibi"), ("tied", True))
        ]
    named = str(facts.value("optimizer_text") or "")
    if named:
        known = OPTIMIZERS.get(named)
        more.append(
            facts.meaning("optimizer", known, "optimizer_text")
            if known
            else facts.derived("optimizer", None, named, "optimizer_text")
        )
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
