"""Linear layers by the names of HF's modules, which may pack several of the trainer's layers. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwise.workers.trainer.contract.finetune.method import NF4_BLOCK, FinetuneMethod
from meshwise.workers.trainer.contract.models.registry import family_of, sizes_of, stored_of
from meshwise.workers.trainer.contract.models.tensors import Part, Stored

ALL_LINEAR = "all-linear"  # every linear layer but the head, as in PEFT
GROUPS = {"attention": ".self_attn.", "mlp": ".mlp."}  # short words for the layers whose names in the trainer contain this
WEIGHT = ".weight"


@dataclass(frozen=True)
class Target:
    """A linear layer of HF's model."""

    module: str  # HF's name
    stored: Stored  # its weight in HF's files, with the trainer's layers in it

    @property
    def parts(self) -> tuple[str, ...]:
        """The trainer's layers in it."""
        return tuple(part.parameter.removesuffix(WEIGHT) for part in self.stored.parts)

    @property
    def inputs(self) -> int:
        return self.stored.parts[0].shape[1]

    @property
    def outputs(self) -> int:
        return sum(part.shape[0] for part in self.stored.parts)

    @property
    def word(self) -> str:
        """The last word of its name, which stands for it in every layer."""
        return self.module.rpartition(".")[2]


def linear_layers(config: Mapping[str, Any]) -> list[Target]:
    """Return all linear layers but the head; of a model with experts, those of attention. PEFT 0.21 takes every name of a feed-forward in
    such a model for one of its experts, which are not linear layers in transformers 5."""
    experts = sizes_of(config).experts > 0

    def has_adapter(part: Part) -> bool:
        linear = part.parameter.endswith(f"_proj{WEIGHT}") and part.index is None
        return linear and not (experts and GROUPS["mlp"] in part.parameter)

    return [
        Target(name.removesuffix(WEIGHT), stored)
        for name, stored in stored_of(config).items()
        if all(map(has_adapter, stored.parts))
    ]


def chosen(config: Mapping[str, Any], words: Iterable[str]) -> list[Target]:
    """Return the layers that words name: HF's names or their endings, as PEFT reads them, or attention, mlp and all-linear."""
    every, words = linear_layers(config), tuple(words)
    return [target for target in every if any(_names(word, target) for word in words)]


def _names(word: str, target: Target) -> bool:
    if word in GROUPS:
        return all(GROUPS[word] in part for part in target.parts)
    return word == ALL_LINEAR or target.module == word or target.module.endswith(f".{word}")


def described(config: Mapping[str, Any], finetune: FinetuneMethod) -> str:
    """Return what a run trains, so that runs whose checkpoints hold the same tensors are described alike: 'full', 'freeze:4', 'lora:16 with
    alpha 32 on 64 layers (q_proj, v_proj)'."""
    if not finetune.adapts:
        return f"freeze:{finetune.frozen_layers}" if finetune.method == "freeze" else finetune.method
    targets = chosen(config, finetune.targets)
    words = ", ".join(dict.fromkeys(target.word for target in targets))
    return f"{finetune.method}:{finetune.rank} with alpha {finetune.alpha:g} on {len(targets)} layers ({words})"


def problem_of(config: Mapping[str, Any], finetune: FinetuneMethod) -> str:
    """Return why a model cannot be fine-tuned so; empty if it can."""
    if finetune.method == "freeze":
        layers = sizes_of(config).layers
        frozen = finetune.frozen_layers
        return "" if frozen < layers else f"freeze:{frozen} leaves none of the {layers} layers to train"
    if not finetune.adapts:
        return ""
    if family_of(config).recurrent:
        return f"{finetune.method} needs a model with softmax attention; {config['model_type']} can be trained with full or freeze:LAYERS"
    experts = sizes_of(config).experts > 0
    if finetune.quantized and experts:
        return "qlora is not supported for a model with experts, which stay in 16 bits; use lora"
    every = linear_layers(config)
    for word in finetune.targets:
        if not any(_names(word, target) for target in every):
            existing = ", ".join(dict.fromkeys(target.word for target in every))
            less = ", and layers of experts have no adapters" if experts else ""
            return f"the model has no module {word!r}; its linear layers are {existing}{less}"
    targets = chosen(config, finetune.targets)
    smallest = min(targets, key=lambda target: min(target.inputs, target.outputs))
    if finetune.rank > min(smallest.inputs, smallest.outputs):
        return f"rank {finetune.rank} is above the smallest dimension of {smallest.word}, {smallest.outputs} x {smallest.inputs}"
    if finetune.quantized:
        odd = next((t for t in targets for part in t.stored.parts if part.shape[0] * part.shape[1] % NF4_BLOCK), None)
        if odd is not None:
            return f"qlora stores blocks of {NF4_BLOCK} weights, which do not divide {odd.word}, {odd.outputs} x {odd.inputs}"
    return ""
