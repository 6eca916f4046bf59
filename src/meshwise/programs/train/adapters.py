"""Adapters in launch files: the facts of fine-tuning, the keys that programs on PEFT share, and the method that facts say."""

import re
from collections.abc import Iterable
from typing import Any, cast

from meshwise.cost.finetune import Finetune
from meshwise.models.model import Model
from meshwise.models.modules import is_pattern, modules, targeted
from meshwise.models.op import ALL_LINEAR
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Refusal, Setup
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value
from meshwise.units import GIB

DEFAULT_TRAINED_LAYERS = 2  # LLaMA-Factory's default of freeze_trainable_layers
DEFAULT_TARGETS = ("q_proj", "v_proj")  # PEFT's default target modules of most model types


def _names(value: Any) -> tuple[str, ...] | None:
    """Return names of modules from a list, or from one text with commas or spaces; 'all' and 'all-linear' are every linear layer."""
    if isinstance(value, str) and is_pattern(value):
        return (value,)
    listed = cast(Iterable[object], value) if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    names = tuple(str(name) for name in listed)
    return (ALL_LINEAR,) if set(names) & {"all", "all-linear"} else names or None


def _last_names(value: object) -> tuple[str, ...] | None:
    """Return names of modules without what is before them: 'self_attn.q_proj' and '*.q_proj' are q_proj."""
    names = _names(value)
    return tuple(name.rpartition(".")[2] for name in names) if names else None


NAMES = Kind(_names, lambda value: list(value), "names of modules", takes=-1)
LAST_NAMES = Kind(_last_names, list, "names of modules", takes=-1)
TRL_KEYS = table("trl-model", names=NAMES)  # TRL's ModelConfig, 1.16


def facts_of(model: Model, finetune: Finetune) -> dict[str, Value]:
    """Return the facts of a method of fine-tuning; short words for targets become names of modules."""
    if finetune.method == "freeze":
        return {"frozen": True, "frozen_layers": finetune.frozen_layers}
    if not finetune.adapts:
        return {}
    names = (ALL_LINEAR,)
    if finetune.targets != names:
        names = tuple(dict.fromkeys(module.name for module in targeted(model, finetune.targets, finetune.rank)))
    told: dict[str, Value] = {"adapter": finetune.method, "rank": finetune.rank, "alpha": finetune.alpha, "targets": names}
    return told | ({"base": finetune.base} if finetune.base else {})


def wording(setup: Setup) -> dict[str, Value]:
    """Return the words of TRL_KEYS for a plan's adapter; none without one."""
    method = setup.text("adapter")
    if not method:
        return {}
    words: dict[str, Value] = {"use_peft": True}
    if method == "dora":
        words["dora"] = True
    base = stored_base(setup)
    if base in ("nf4", "nf4-single"):
        words |= {"four_bits": True, "quantization": "nf4", "nested": base == "nf4"}
    return words | ({"eight_bits": True} if base == "int8" else {})


def stored_base(setup: Setup) -> str:
    """Return the format of a plan's frozen base: '' for 16 bits."""
    return setup.text("base") or ("nf4" if setup.text("adapter") == "qlora" else "")


def refuse_base(setup: Setup, title: str) -> Iterable[Refusal]:
    """Yield a refusal of a base that a checkpoint has in another format: no key makes one."""
    base = stored_base(setup)
    if base in ("gptq", "awq"):
        yield Refusal(
            f"{title} reads a base in {base} from a checkpoint of that format: name it in the file; expected --base nf4", {}
        )


def base_of(facts: Run) -> str:
    """Return the format of the frozen base, in the words of `--base`; '' where the method says it, or it has 16 bits."""
    if not facts.value("adapter"):
        return ""
    if facts.value("eight_bits"):
        return "int8"
    if facts.value("four_bits"):
        return "nf4-single" if facts.value("nested") is False else ""
    named = re.search(r"(?i)[-_/](gptq|awq)\b", facts.text("model"))
    return named[1].lower() if named else ""


def meaning(facts: Run) -> list[Stated]:
    """Parse the adapter of TRL_KEYS; empty if they set none."""
    on = facts.value("use_peft")
    stated = next((name for name in ("use_peft", "rank", "four_bits", "eight_bits") if facts.value(name)), "")
    if on is False or not stated:
        return []
    method = "qlora" if facts.value("four_bits") else "dora" if facts.value("dora") else "lora"
    return [facts.meaning("adapter", method, stated)]


def finetune_of(facts: Run, model: Model) -> str:
    """Return what is trained, in the words of `--finetune`: '' for everything."""
    if facts.value("frozen"):
        return f"freeze:{max(0, model.decoder.layers - facts.whole('trained_layers', DEFAULT_TRAINED_LAYERS))}"
    method = facts.value("adapter")
    if not method:
        return ""
    targets = facts.value("targets")
    if isinstance(targets, tuple) and any(is_pattern(str(name)) for name in targets):
        rank = facts.whole("rank", 16)
        targets = tuple(dict.fromkeys(module.name for module in targeted(model, map(str, targets), rank)))
    if not isinstance(targets, tuple):
        known = {module.name for module in modules(model)}
        targets = DEFAULT_TARGETS if known.issuperset(DEFAULT_TARGETS) else (ALL_LINEAR,)
    listed = "" if targets == (ALL_LINEAR,) else f":{','.join(map(str, targets))}"
    return f"{method}:{facts.whole('rank', 16)}{listed}"


SAVED_BYTES = 8.0
"""Bytes per parameter of a module that is trained whole beside adapters, in 16 bits: its copy, its gradient and AdamW's moments."""


def saved_note(facts: Run, model: Model) -> tuple[str, ...]:
    """Return a note of modules that a file trains whole beside its adapters (modules_to_save), with their bytes: no plan counts them."""
    names = facts.value("saved_modules")
    if not isinstance(names, tuple) or not facts.value("adapter"):
        return ()
    table = next(op.params for op in model.ops if op.name == "embedding")
    known = [str(name) for name in names if str(name).rpartition(".")[2] in TABLES]
    size = SAVED_BYTES * table * (1 if model.decoder.tied else len(known))
    added = f": about {size / GIB:.1f} GiB more (a copy, gradients and moments in 16 bits)" if known else ""
    return (f"trained whole beside the adapters, and not among the predicted bytes: {', '.join(map(str, names))}{added}",)


TABLES = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings")
"""Names of vocabulary tables in transformers."""
