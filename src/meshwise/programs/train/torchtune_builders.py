"""torchtune's model builders: the function that builds a preset, its family, and the modules that its adapters are attached to."""

from dataclasses import dataclass

from meshwise.models import find
from meshwise.models.op import ALL_LINEAR
from meshwise.programs.table import names
from meshwise.runs.run import Value

MODELS = "torchtune.models."
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
"""Attention's linear layers, by their names in transformers and in torchtune."""
MLP = ("gate_proj", "up_proj", "down_proj")  # linear layers of an MLP, which torchtune adapts together


@dataclass(frozen=True)
class Family:
    """One module of torchtune.models: the tokenizer, checkpoint format and adapters that its models share."""

    tokenizer: str  # its function, below torchtune.models
    model_type: str  # the format of the checkpoint
    paths: tuple[str, ...] = ("path",)  # arguments of the tokenizer that are files
    qlora: bool = True  # whether there are qlora_* functions; without them, lora_* with quantize_base
    splits: bool = False
    """Whether base_llama_tp_plan splits it: its published configurations do so, and the output head is not tied."""
    unjoined: bool = False
    """Whether products that transformers joins (qkv_proj, gate_up_proj) are separate layers, with an adapter each."""


_QWEN = ("path", "merges_file")
FAMILIES = {
    "llama2": Family("llama2.llama2_tokenizer", "LLAMA2"), "llama3": Family("llama3.llama3_tokenizer", "LLAMA3", splits=True),
    "llama3_1": Family("llama3.llama3_tokenizer", "LLAMA3", splits=True),
    "llama3_2": Family("llama3.llama3_tokenizer", "LLAMA3_2"),
    "llama3_3": Family("llama3.llama3_tokenizer", "LLAMA3", splits=True),
    "mistral": Family("mistral.mistral_tokenizer", "MISTRAL"), "gemma": Family("gemma.gemma_tokenizer", "GEMMA"),
    "gemma2": Family("gemma.gemma_tokenizer", "GEMMA2"), "phi3": Family("phi3.phi3_mini_tokenizer", "PHI3_MINI", unjoined=True),
    "phi4": Family("phi4.phi4_tokenizer", "PHI4", ("vocab_path", "merges_path"), unjoined=True),
    "qwen2": Family("qwen2.qwen2_tokenizer", "QWEN2", _QWEN, qlora=False),
    "qwen2_5": Family("qwen2_5.qwen2_5_tokenizer", "QWEN2", _QWEN, qlora=False),
}  # fmt: skip
BUILDERS = names("torchtune")  # functions below torchtune.models that build a model of a preset's sizes
NO_DORA = ("llama3_1.llama3_1_405b",)  # functions whose lora_* variants lack use_dora
_READ = {"qwen2.qwen2_0_5b": "qwen2.5-0.5b", "qwen2.qwen2_1_5b": "qwen2.5-1.5b", "qwen2.qwen2_7b": "qwen2.5-7b"}
"""Functions that are only read: their models have the sizes of these presets."""
_PRESETS = {function: preset for preset, function in BUILDERS.items()} | _READ


def builder_of(model: str) -> str:
    """Return the function that builds a model, below torchtune.models; '' where torchtune has none."""
    preset = find.find_preset(model)
    found = BUILDERS.get(preset.stem, "") if preset else ""
    return found.replace("_base", "_instruct") if model.lower().endswith("-instruct") else found


def component(function: str, adapter: str) -> str:
    """Return the value of model._component_: the function for all weights, for LoRA and DoRA, or for QLoRA."""
    family, _, name = function.partition(".")
    start = "" if not adapter else "qlora_" if adapter == "qlora" and FAMILIES[family].qlora else "lora_"
    return f"{MODELS}{family}.{start}{name}"


def parts(text: str) -> tuple[str, str, str]:
    """Return the preset ('' if none has its sizes), the start of the name ('', 'lora' or 'qlora') and the family of a model._component_."""
    family, _, name = text.removeprefix(MODELS).partition(".")
    start = next((start for start in ("qlora", "lora") if name.startswith(f"{start}_")), "")
    function = f"{family}.{name.removeprefix(f'{start}_') if start else name}".replace("_instruct", "_base")
    return _PRESETS.get(function, ""), start, family


def written(targets: Value) -> tuple[tuple[str, ...], bool] | None:
    """Return the attention modules in torchtune's names, and whether MLPs have adapters; None for targets that torchtune cannot name."""
    names = set(map(str, targets)) if isinstance(targets, tuple) else set[str]()
    if names == {ALL_LINEAR}:
        return tuple(ATTENTION.values()), True
    attention = tuple(own for name, own in ATTENTION.items() if name in names)
    mlp = names & set(MLP)
    if not attention or (mlp and len(mlp) < len(MLP)) or names - set(MLP) - set(ATTENTION):
        return None
    return attention, bool(mlp)


def read(attention: tuple[str, ...], mlp: bool) -> tuple[str, ...]:
    """Return the targets of torchtune's arguments, in transformers' names."""
    back = {own: name for name, own in ATTENTION.items()}
    names = tuple(back.get(name, name) for name in attention)
    return (ALL_LINEAR,) if mlp and set(names) == set(ATTENTION) else (*names, *(MLP if mlp else ()))
