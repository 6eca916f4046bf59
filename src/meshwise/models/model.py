"""Model: an HF config.json (or GGUF header) as a table of Ops, and its exact counts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from meshwise.catalogue.plugins import load_plugins
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.config import Config
from meshwise.models.families.blocks import Body, Decoder
from meshwise.models.op import Op


@dataclass(frozen=True)
class Tensor:
    """One stored tensor of a GGUF file."""

    name: str
    type: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class Model:
    """What is known of a model before anyone runs it. Counts are exact; FLOPs count a multiply and an add as two."""

    name: str
    family: str
    model_type: str
    source: str
    decoder: Decoder
    layers: tuple[tuple[str, ...], ...]
    """Per layer, the blocks it holds; `blocks` says which Ops a block is."""
    placed: tuple[tuple[str, Op], ...]
    extra: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for _, op in self.placed)

    @property
    def variant(self) -> Any:
        """Which of several shapes each layout has, where this is a stack of them; one model is the same for all."""
        return 0

    def take(self, rows: Any) -> "Model":
        """The same for some of the layouts."""
        return self

    @cached_property
    def blocks(self) -> dict[str, tuple[Op, ...]]:
        """Ops by block: 'embedding', the blocks named in `layers`, 'head'. Counts are over the whole model."""
        found: dict[str, tuple[Op, ...]] = {}
        for block, op in self.placed:
            found[block] = (*found.get(block, ()), op)
        return found

    @cached_property
    def times(self) -> Mapping[str, int]:
        """How many layers hold each block."""
        return Counter(name for layer in self.layers for name in layer)

    @cached_property
    def params(self) -> int:
        return sum(op.params * op.count for op in self.ops)

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token meets: of the experts, those it is routed to."""
        return round(sum(op.params * op.count * (op.m if op.expert else 1) for op in self.ops))

    @cached_property
    def parts(self) -> dict[str, int]:
        """Parameters by part, largest first."""
        found: dict[str, int] = {}
        for op in self.ops:
            if op.params:
                found[op.part] = found.get(op.part, 0) + op.params * op.count
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def matmul_flops(self, tokens: float = 1) -> float:
        """Forward FLOPs of everything but softmax attention, whose cost depends on the sequence."""
        return tokens * sum(op.flops(1) for op in self.ops if op.kind != "attention")

    def attention_flops(self, tokens: float, seq: int, *, causal: bool = True) -> float:
        """Forward FLOPs of QK' and AV in sequences of `seq`; `causal=False` counts the masked half too, as Megatron does."""
        return tokens * sum(op.flops(seq, causal) for op in self.ops if op.kind == "attention")

    def flops(self, tokens: float, seq: int, *, causal: bool = True, training: bool = True) -> float:
        """FLOPs for `tokens` in sequences of `seq`. Training is three forwards: each product has two in the backward pass."""
        forward = self.matmul_flops(tokens) + self.attention_flops(tokens, seq, causal=causal)
        return forward * (3 if training else 1)

    def flops_megatron(self, tokens: float, seq: int, *, recompute: bool) -> float:
        """arXiv:2104.04473, eq. 3: attention unmasked, and the recompute forward of the layers, though not of the head, counted."""
        head = 2 * tokens * self.decoder.hidden * self.decoder.vocab
        layers = self.flops(tokens, seq, causal=False, training=False) - head
        return (4 if recompute else 3) * layers + 3 * head

    def flops_6n(self, tokens: float) -> float:
        """The rule of thumb: 6 FLOPs per token and active parameter."""
        return 6.0 * self.active_params * tokens

    def kv_bytes(self, context: int, element: float = 2) -> float:
        """Bytes kept for one sequence of `context` tokens, at `element` bytes each; windows bound what they cover."""
        return element * sum(op.count * op.cache * min(context, op.window or context) for op in self.ops)

    def state_bytes(self, element: float = 2) -> float:
        """Bytes kept for one sequence however long it is: recurrent states and convolution tails."""
        return element * sum(op.count * op.state for op in self.ops)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights in the file that was read; 0 where a config was read and no weights."""
        return sum(tensor.bytes for tensor in self.tensors)


def families() -> dict[str, Any]:
    """Family modules by name, the built-in ones and third parties' alike, from their entry points."""
    return load_plugins("meshwise.families", "model_types", "read")


def build(values: Mapping[str, object], name: str, source: str) -> Model:
    """A Model from the keys of a config.json. A model_type that no family reads is refused, never guessed."""
    config = Config(values, name)
    notes: list[str] = []
    inner = config.table("text_config")
    if inner is not None:
        outer = {key: values[key] for key in ("tie_word_embeddings",) if key in values}
        config = Config(outer | dict(inner.values), inner.where)
        others = sorted(key for key in values if key.endswith("_config") and key not in ("text_config", "quantization_config"))
        left_out = quoted(", ".join(others), 200)[1:-1]
        notes.append(f"only the language model is counted, not {left_out}" if others else "text_config is counted")
    found = families()
    for family, module in found.items():
        if config.model_type in module.model_types:
            body: Body = module.read(config)
            return Model(
                name=name,
                family=family,
                model_type=config.model_type,
                source=source,
                decoder=body.decoder,
                layers=body.layers,
                placed=body.ops,
                extra=body.extra,
                notes=tuple(notes),
            )
    known = sorted(kind for module in found.values() for kind in module.model_types)
    hint = nearest(config.model_type, known) or f"; known: {', '.join(known)}"
    raise UserError(
        f"{config.where}: no family reads model_type {quoted(config.model_type)}{hint} (keys found: {config.keys_found()})"
    )
