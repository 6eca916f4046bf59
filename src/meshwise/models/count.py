"""Counts of a model as plain data: the JSON, the CSV and the table of `meshwise count` are three views of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from meshwise import units
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.output import Drawn

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int4": 0.5}

ADAMW_BYTES = 12.0
"""Per parameter, mixed precision: a float32 master copy and two float32 moments (ZeRO, arXiv:1910.02054, section 3.1)."""

Tally = dict[str, Any]


def default_seq(model: Model) -> int:
    """Return 4,096 tokens, or the model's own context where that is shorter."""
    return min(4096, model.decoder.context or 4096)


@dataclass(frozen=True, repr=False)
class Count(Drawn):
    """The counts of one model, at a sequence length and for a number of training tokens."""

    model: Model
    seq: int
    tokens: float
    more: Tally = field(default_factory=dict[str, Any])  # added by `--on`: the budget on a cluster and its rooflines

    @property
    def params(self) -> int:
        return int(self.model.params)

    @property
    def active_params(self) -> int:
        """Parameters that one token uses; fewer than `params` for a mixture of experts, where the input embedding is left out."""
        return int(self.model.active_without_embedding)

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token, forward and backward, attention included."""
        return float(self.model.flops(1, self.seq))

    @property
    def kv_bytes(self) -> float:
        """Bytes of one sequence's KV cache at the sequence length, in bf16."""
        return float(self.model.kv_bytes(self.seq))

    def to_json(self) -> Tally:
        return count(self.model, seq=self.seq, tokens=self.tokens) | self.more

    def row(self) -> dict[str, object]:
        """Return one flat row, with the columns of `--csv`."""
        return flat(self.to_json())

    def __repr__(self) -> str:
        return f"<Count of {self.model.name}: {self.params:,} parameters, {self.flops_per_token:.4g} training FLOPs per token>"


def counted(name: str, seq: str | int = "", tokens: str | float = "15T") -> Count:
    """Look a model up and count it; `seq` is 4,096 or the model's own context where that is shorter, unless given."""
    model = find.find_model(name)
    length = units.whole_length(seq) if isinstance(seq, str) and seq else int(seq or default_seq(model))
    return Count(model, length, units.training_tokens(tokens))


def count(model: Model, *, seq: int, tokens: float) -> Tally:
    """Return all counts of one model, nested by subject. Bytes, FLOPs and parameters are plain numbers."""
    n = model.params
    per_token = model.flops(1, seq)
    parameters = {"total": n, "active": model.active_without_embedding, "active_with_embedding": model.active_params}
    towers = {"towers": {tower.name: tower.params for tower in model.towers}} if model.towers else {}
    flops = {
        "seq": seq, "per_token_6n": model.flops_6n(1), "per_token_matmul": 3 * model.matmul_flops(1),
        "per_token_attention": 3 * model.attention_flops(1, seq), "per_token": per_token, "tokens": tokens,
        "total_6n": model.flops_6n(tokens), "total": per_token * tokens,
    }  # fmt: skip
    cache = {"kv_bytes_per_token": model.kv_bytes(1), "context": seq, "kv_bytes": model.kv_bytes(seq)}
    stored = {"file": model.stored_bytes} if model.tensors else {}
    return {
        "model": model.name, "model_type": model.model_type, "family": model.family, "source": model.source,
        "hyperparameters": hyperparameters(model), "parameters": {**parameters, "parts": model.parts, **towers},
        "training_flops": flops, "cache": {**cache, "state_bytes": model.state_bytes()},
        "weight_bytes": {name: n * size for name, size in DTYPE_BYTES.items()} | stored,
        "training_bytes": {"gradients_bf16": 2.0 * n, "gradients_fp32": 4.0 * n, "adamw": ADAMW_BYTES * n},
        "notes": list(model.notes),
    }  # fmt: skip


def hyperparameters(model: Model) -> dict[str, int]:
    """Return the hyperparameters as in a paper's table: layers, widths, heads, vocabulary, and the family's own."""
    d = model.decoder
    sizes = {
        "layers": d.layers, "d_model": d.hidden, "d_ff": d.ffn, "heads": d.heads, "KV heads": d.kv_heads,
        "head size": d.head_dim, "vocabulary": d.vocab, "context": d.context,
    }  # fmt: skip
    return {name: value for name, value in sizes.items() if value} | dict(model.extra)


def flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a table into one row for CSV, with keys such as 'parameters.parts.ffw'; lists are joined, and None is omitted."""
    row: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            row |= flat(cast(Mapping[str, object], value), f"{prefix}{key}.")
        elif isinstance(value, list):
            row[prefix + key] = "; ".join(map(_joined, cast(list[object], value)))
        elif value is not None:
            row[prefix + key] = value
    return row


def _joined(item: object) -> str:
    return ", ".join(map(str, cast(Mapping[str, object], item).values())) if isinstance(item, Mapping) else str(item)
