"""OLMo-core: the overrides `--train_module.dp_config.name=hsdp` of its training scripts, and the YAML of a configuration; read only."""

from collections.abc import Sequence

from meshwise.programs.program import Program
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated

TITLE, VERSION = "OLMo-core", "2.3"
KEYS = table("olmo-core")


def meaning(facts: Run) -> Run:
    """Add batches, which are counted in tokens, and what the data-parallel section says."""
    more: list[Stated] = []
    seq = facts.whole("seq")
    for name, fact in (("tokens_per_batch", "batch"), ("rank_tokens", "mbs")):
        if facts.whole(name):
            whole = seq and facts.whole(name) % seq == 0
            why = (
                f"{facts.whole(name):,} tokens / {seq:,}"
                if whole
                else "tokens over the sequence length, which is not known or no divisor"
            )
            more.append(facts.derived(fact, facts.whole(name) // seq if whole else None, why, name))
    why = "in the script's own configuration, which is Python"
    more += [Stated(name, None, "unknown", None, "", why) for name in ("zero", "precision", "recompute") if name not in facts]
    more += [Stated("offload", "none", "derived"), Stated("optimizer", "adamw", "default", None, "", "its scripts' own")]
    if facts.whole("hidden"):
        more += [
            facts.derived(name, value, "its Llama-like block", "hidden")
            for name, value in (("gated", True), ("position_kind", "rope"), ("tied", False))
        ]
    return facts.adding(more)


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of its dotted keys a command or a file has."""
    names = {setting.key.removeprefix("--") for setting in settings}
    own = sum(name.startswith(("train_module.", "data_loader.", "trainer.callbacks.")) for name in names)
    return own * 3 if own > 1 or any(name.startswith("train_module.") for name in names) else 0


PROGRAM = Program(
    name="olmo-core", title=TITLE, version=VERSION, framework="fsdp", form="flags", keys=KEYS, write=None, meaning=meaning,
    recognises=recognises, flag_words=True,
)  # fmt: skip
