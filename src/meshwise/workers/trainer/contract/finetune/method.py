"""The fine-tuning method of a run. No torch: the launcher chooses it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

ADAPTERS = ("lora", "dora", "qlora")
NF4_BLOCK = 64  # weights that share a scale in nf4
LORA = "lora_"  # beginning of the names of an adapter's parameters within its layer


@dataclass(frozen=True, kw_only=True)
class FinetuneMethod:
    """The trained part of a model: everything (full), adapters of linear layers (lora, dora, qlora), or all above frozen ones (freeze)."""

    method: str = "full"
    rank: int = 0
    alpha: float = 0.0  # adapters are scaled by alpha / rank
    dropout: float = 0.0  # share of an adapter's inputs that are zeroed in training
    targets: tuple[str, ...] = ()  # HF's names of the linear layers with adapters, such as q_proj
    frozen_layers: int = 0  # first layers, after the embedding, that a `freeze` leaves as they are
    adapter: str = ""  # folder with an adapter in PEFT's format to start from; empty: a new one
    merge: bool = False  # write the weights with the adapters added to them at the end

    @staticmethod
    def of(values: Mapping[str, Any]) -> "FinetuneMethod":
        """Return the method that a config.json describes, without keys of other versions."""
        known: dict[str, Any] = {f.name: values[f.name] for f in fields(FinetuneMethod) if f.name in values}
        known["targets"] = tuple(known.get("targets", ()))
        return FinetuneMethod(**known)

    @property
    def adapts(self) -> bool:
        return self.method in ADAPTERS

    @property
    def freezes(self) -> bool:
        """Whether some weights are not trained."""
        return self.method != "full"

    @property
    def quantized(self) -> bool:
        return self.method == "qlora"

    @property
    def magnitudes(self) -> bool:
        """Whether the length of every row of a weight is trained on its own (DoRA, arXiv:2402.09353)."""
        return self.method == "dora"

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


FULL = FinetuneMethod()


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return name.rpartition(".")[2].startswith(LORA)
