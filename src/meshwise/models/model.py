"""Model: the Ops of an HF config.json (or GGUF header), and exact counts of parameters, FLOPs and bytes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from meshwise.catalogue.files import similar
from meshwise.catalogue.plugins import load_own, load_plugins
from meshwise.errors import UserError, did_you_mean, quoted
from meshwise.models.config import Config
from meshwise.models.families.blocks import Body, Decoder
from meshwise.models.families.nested import language_model
from meshwise.models.op import Op
from meshwise.models.quantization import stored_format

ONLY_LANGUAGE = "only the language model is counted"  # how the note about towers starts


@dataclass(frozen=True)
class Tensor:
    """One stored tensor of a GGUF file."""

    name: str
    type: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class Tower:
    """A tower that turns pictures into tokens of the language model."""

    name: str  # its table in the config
    params: int
    hidden: int
    layers: int
    patches: int  # patches of one picture


@dataclass(frozen=True)
class Model:
    """A model as its config describes it. Counts are exact; FLOPs count a multiply and an add as two."""

    name: str
    family: str
    model_type: str
    source: str
    decoder: Decoder
    layers: tuple[tuple[str, ...], ...]  # the blocks of each layer, by name; `blocks` holds the Ops of each
    placed: tuple[tuple[str, Op], ...]  # each Op with the name of its block
    extra: tuple[tuple[str, int], ...] = ()  # hyperparameters beyond a plain decoder's, for the table
    notes: tuple[str, ...] = ()
    towers: tuple[Tower, ...] = ()  # towers for pictures and sound beside the language model; not in `params`
    quantization: str = ""
    """The weight format that the checkpoint is published in, from its quantization_config; empty where it is not quantised."""
    tensors: tuple[Tensor, ...] = ()  # the tensors of the .gguf file that was read; empty for a config.json
    hub_id: str = ""  # of the weights that were asked for, where a preset stands for several; empty for a .gguf

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for _, op in self.placed)

    @property
    def variant(self) -> Any:
        """The index of each layout's shape in a stack of shapes (plan/shapes); a single model has one for all layouts."""
        return 0

    def take(self, rows: Any) -> "Model":
        """Return the models of the layouts in `rows`; a single model is the same for all."""
        return self

    @cached_property
    def blocks(self) -> dict[str, tuple[Op, ...]]:
        """Ops by block: 'embedding', the blocks named in `layers`, and 'head'. Op counts are for the whole model."""
        ops_by_block: dict[str, tuple[Op, ...]] = {}
        for block, op in self.placed:
            ops_by_block[block] = (*ops_by_block.get(block, ()), op)
        return ops_by_block

    @cached_property
    def times(self) -> Mapping[str, int]:
        """Number of layers with each block."""
        return Counter(name for layer in self.layers for name in layer)

    @cached_property
    def params(self) -> int:
        return sum(op.params * op.count for op in self.ops)

    @cached_property
    def active_params(self) -> int:
        """Parameters used by one token: of the experts, only those it is routed to."""
        return round(sum(op.params * op.count * (op.m if op.expert else 1) for op in self.ops))

    @cached_property
    def active_without_embedding(self) -> int:
        """Active parameters as vendors state them for mixtures of experts: without the input embedding, of which a token reads one row. A
        table that is tied to the head is multiplied there, and stays. gpt-oss-120b: 5.13 billion, and 5.71 with the embedding."""
        if self.decoder.tied or not any(op.expert for op in self.ops):
            return self.active_params
        return self.active_params - sum(op.params * op.count for op in self.ops if op.name == "embedding")

    @cached_property
    def parts(self) -> dict[str, int]:
        """Parameters by part, largest first."""
        parameters: dict[str, int] = {}
        for op in self.ops:
            if op.params:
                parameters[op.part] = parameters.get(op.part, 0) + op.params * op.count
        return dict(sorted(parameters.items(), key=lambda item: -item[1]))

    def matmul_flops(self, tokens: float = 1) -> float:
        """Return the forward FLOPs of everything except softmax attention, whose cost depends on the sequence length."""
        return tokens * sum(op.flops(1) for op in self.ops if op.kind != "attention")

    def attention_flops(self, tokens: float, seq: int, *, causal: bool = True) -> float:
        """Return the forward FLOPs of QK' and AV in sequences of `seq`; `causal=False` also counts the masked half, as Megatron does."""
        return tokens * sum(op.flops(seq, causal) for op in self.ops if op.kind == "attention")

    def flops(self, tokens: float, seq: int, *, causal: bool = True, training: bool = True) -> float:
        """Return the FLOPs for `tokens` in sequences of `seq`. Training costs three forwards: each product has two in the backward pass."""
        forward = self.matmul_flops(tokens) + self.attention_flops(tokens, seq, causal=causal)
        return forward * (3 if training else 1)

    def flops_megatron(self, tokens: float, seq: int, *, recompute: bool) -> float:
        """Return FLOPs by arXiv:2104.04473, eq. 3: attention unmasked; the recompute forward of the layers, but not of the head, counts."""
        head = 2 * tokens * self.decoder.hidden * self.decoder.vocab
        layers = self.flops(tokens, seq, causal=False, training=False) - head
        return (4 if recompute else 3) * layers + 3 * head

    def flops_6n(self, tokens: float) -> float:
        """Return FLOPs by the rule of thumb: 6 per token and active parameter."""
        return 6.0 * self.active_params * tokens

    def kv_bytes(self, context: int, element: float = 2) -> float:
        """Return the KV cache of one sequence of `context` tokens, at `element` bytes each; sliding windows limit it."""
        return element * sum(op.count * op.cache * op.kept(context) for op in self.ops)

    def state_bytes(self, element: float = 2) -> float:
        """Return the bytes of state of one sequence of any length: recurrent states and convolution tails."""
        return element * sum(op.count * op.state for op in self.ops)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights in the .gguf file that was read; 0 for a config.json."""
        return sum(tensor.bytes for tensor in self.tensors)


def families() -> dict[str, Any]:
    """Return the family modules by name: ours in `families/`, and those that other packages register."""
    return load_plugins("meshwise.families", ("meshwise.models.families",), "model_types", "read")


def family_of(model_type: str) -> Any:
    """Return the module that reads a type; None where no family does."""
    own = load_own(("meshwise.models.families",), "described")  # reads nearly every type: others are loaded for the rest alone
    if model_type in own.model_types:
        return own
    return next((module for module in families().values() if model_type in module.model_types), None)


def _left_out(beside: Sequence[tuple[str, object]], towers: Mapping[str, Tower]) -> tuple[str, ...]:
    """Return the note about the tables beside the language model."""
    words = (f"{key} ({towers[key].params:,} parameters)" if key in towers else key for key, _ in beside)
    names = quoted(", ".join(words), 200)[1:-1]
    return (f"{ONLY_LANGUAGE}, not {names}",) if beside else ()


def _towers(beside: Sequence[tuple[str, object]], where: str) -> dict[str, Tower]:
    """Return the tower of each table beside the language model whose type is described."""
    from meshwise.models.families.described import tower_sizes

    found: dict[str, Tower] = {}
    for key, value in beside:
        if isinstance(value, Mapping):
            sizes = tower_sizes(Config(cast(Mapping[str, object], value), f"{where}: {key}"))
            if sizes is not None:
                found[key] = Tower(key, *sizes)
    return found


def build(values: Mapping[str, object], name: str, source: str) -> Model:
    """Build a Model from the keys of a config.json. A model_type that no family reads is refused, never guessed."""
    outer = Config(values, name)
    found = language_model(outer, lambda kind: family_of(kind) is not None)
    config = found.config
    quantization, unknown = stored_format(values)
    towers = _towers(found.beside, name)
    module = family_of(config.model_type)
    if module is not None:
        body: Body = module.read(config)
        family = body.family or module.__name__.rpartition(".")[2]
        return Model(
            name=name, family=family, model_type=config.model_type, source=source, decoder=body.decoder, layers=body.layers,
            placed=body.ops, extra=body.extra, notes=(*found.notes, *_left_out(found.beside, towers), *unknown),
            towers=tuple(towers.values()), quantization=quantization,
        )  # fmt: skip
    known = sorted(kind for module in families().values() for kind in module.model_types)
    hint = did_you_mean(similar(config.model_type, known)) or f"; {len(known)} types are read (docs/models/model-types.md)"
    raise UserError(
        f"{config.where}: unsupported architecture: no family reads model_type {quoted(config.model_type)}{hint} "
        f"(keys found: {config.keys_found()})"
    )
