"""A linear layer whose weight is frozen, in 16 bits or nf4, with a low-rank adapter beside it or without.

LoRA (arXiv:2106.09685): y = x W^T + scale (x A^T) B^T. DoRA (arXiv:2402.09353): that, with each row of the sum of weights brought to a
trained length; the gradient does not flow through the length that the row has.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
from meshwise.workers.trainer.ops.adapted import adapted_gate, adapted_linear, rows_of, weight_of
from meshwise.workers.trainer.ops.nf4 import Quantized, dequantize, empty, quantize

Columns = tuple[tuple[int, ...], tuple[int, ...]]  # where adapters are among the joined ones of gate and up, and of down
ROWS_AT_ONCE = 1024  # rows of a weight that are copied in float32 at a time
RANK_MULTIPLE = 16  # the ranks of joined adapters are padded to a multiple of this, as tensor cores read them


class AdaptedLinear(nn.Linear):
    """Replaces a linear layer. Adapters of layers that HF packs into one share `lora_a`, the same parameter."""

    def __init__(self, replaced: nn.Linear, finetune: FinetuneMethod, adapted: bool) -> None:
        bias = cast("Tensor | None", replaced.bias)
        super().__init__(replaced.in_features, replaced.out_features, bias=bias is not None)
        self.scale, self.dropout = finetune.scale if adapted else 0.0, finetune.dropout
        self.fused = False
        """Whether products are those of `ops.adapted`: one GPU holds whole weights, and there is no dropout."""
        self.row_squares: Tensor | None
        self.lora_a = self.lora_b = self.lora_magnitude = None
        if adapted:
            self.lora_a = nn.Parameter(torch.empty(finetune.rank, self.in_features))
            self.lora_b = nn.Parameter(torch.empty(self.out_features, finetune.rank))
            self.lora_magnitude = nn.Parameter(torch.empty(self.out_features)) if finetune.magnitudes else None
        self.register_buffer("row_squares", None, persistent=False)
        self.quantized = finetune.quantized
        if finetune.quantized:
            self.weight = None  # pyright: ignore[reportAttributeAccessIssue]
            for name, part in empty(self.out_features, self.in_features)._asdict().items():
                self.register_buffer(f"nf4_{name}", part)

    @property
    def base(self) -> list[Tensor]:
        """The frozen weight: itself, or the parts of its nf4 form."""
        if not self.quantized:
            return [self.weight]
        return [cast(Tensor, getattr(self, f"nf4_{name}")) for name in Quantized._fields]

    @torch.no_grad()
    def use_adapted_products(self) -> None:
        """Compute by the products of `ops.adapted`, and keep the squared lengths of frozen rows where they are needed."""
        self.fused = not self.dropout
        if self.fused and self.lora_magnitude is not None:
            rows = self.plain_weight(torch.float32).split(ROWS_AT_ONCE)
            self.row_squares = torch.cat([part.float().square().sum(1) for part in rows])

    @torch.no_grad()
    def set_weight(self, weight: Tensor) -> None:
        """Store a weight in nf4."""
        for part, given in zip(self.base, quantize(weight), strict=True):
            part.copy_(given)

    def like_weight(self) -> Tensor:
        """Return a tensor of the weight's shape and device, without its memory."""
        return self.base[0].new_empty(1, dtype=torch.float32).expand(self.out_features, self.in_features)

    def plain_weight(self, dtype: torch.dtype) -> Tensor:
        """Return the frozen weight as a matrix."""
        return dequantize(self.base, self.in_features, dtype) if self.quantized else self.weight

    def forward(self, input: Tensor) -> Tensor:
        x = input
        if self.fused:
            return joined_product(x, (self,), (0 if self.lora_a is not None else -1,))
        weight = self.plain_weight(x.dtype)
        y = F.linear(x, weight)
        if self.lora_a is not None and self.lora_b is not None:
            kept = F.dropout(x, self.dropout) if self.dropout and torch.is_grad_enabled() else x  # not for a validation loss
            y = y + F.linear(F.linear(kept, self.lora_a), self.lora_b) * self.scale
            if self.lora_magnitude is not None:
                lengths = row_lengths(weight, self.lora_a, self.lora_b, self.scale)
                y = y * (self.lora_magnitude / lengths).to(y.dtype)
        bias = cast("Tensor | None", self.bias)
        return y if bias is None else y + bias.to(y.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return the weight with the adapter added, in float32."""
        weight = whole_of(self.plain_weight(torch.float32)).float()
        if self.lora_a is None or self.lora_b is None:
            return weight
        whole = weight + whole_of(self.lora_b).float() @ whole_of(self.lora_a).float() * self.scale
        if self.lora_magnitude is None:
            return whole
        return whole * (whole_of(self.lora_magnitude).float() / whole.norm(dim=1))[:, None]


def whole_of(parameter: Any) -> Tensor:
    """Return a parameter whole on every rank; gathering needs all ranks that hold parts."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    for name, part in model.named_modules():
        if isinstance(part, AdaptedLinear):
            yield name, part


@torch.no_grad()
def row_lengths(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return the rows' lengths of W + s b a in float32 without holding b a: |W|^2 + 2 s b (W a^T) + s^2 (b a a^T) b, row by row."""
    with torch.autocast(weight.device.type, enabled=False):
        weight, a, b = (part.detach().float() for part in (weight, a, b))
        squares = weight.square().sum(1)
        return (squares + (b * (2 * scale * (weight @ a.T) + scale**2 * (b @ (a @ a.T)))).sum(1)).sqrt()


@torch.library.custom_op("meshwise::frozen_by_adapter", mutates_args=())
def _frozen_by_adapter(base: list[Tensor], a: Tensor) -> Tensor:
    """Return W a^T (rows, rank), which reads the frozen weights once, in their own format."""
    return weight_of(base, a.shape[-1], a.dtype) @ a.T


@_frozen_by_adapter.register_fake
def _(base: list[Tensor], a: Tensor) -> Tensor:
    return a.new_empty(rows_of(base, a.shape[-1]), a.shape[0])


def _lengths(parts: Sequence[nn.Linear], a: Tensor, b: Tensor) -> Tensor:
    """Return the lengths of the rows of joined weights with their adapters, as `row_lengths`; of rows without magnitudes, anything."""
    known = [part.row_squares if isinstance(part, AdaptedLinear) else None for part in parts]
    squares = [
        b.new_ones(part.out_features, dtype=torch.float32) if k is None else k for k, part in zip(known, parts, strict=True)
    ]
    product = _frozen_by_adapter(_base(parts), a).float()
    a, b = a.float(), b.float()
    return (torch.cat(squares) + (b * (2 * product + b @ (a @ a.T))).sum(1)).sqrt()


def join(parts: Sequence[nn.Linear]) -> bool:
    """Stack frozen weights if one product may compute them all; return whether it may."""
    if any(isinstance(part, AdaptedLinear) and not part.fused for part in parts):
        return False
    if all(isinstance(part, AdaptedLinear) and part.quantized for part in parts):
        return True
    from meshwise.workers.trainer.ops.fused_projections import needs_no_padding, stack

    weights: list[Tensor] = [part.weight for part in parts]
    if not needs_no_padding(weights):
        return False
    stack(weights)
    return True


def is_frozen(layer: nn.Linear) -> bool:
    """Return whether the weight of a layer does not train."""
    weight = cast("Tensor | None", layer.weight)
    return weight is None or not weight.requires_grad


def columns_of(parts: Sequence[nn.Linear]) -> tuple[int, ...]:
    """Return the first rank of each layer among the joined ranks of all, -1 for layers without an adapter; packed layers share theirs."""
    found: list[int] = []
    known: dict[int, int] = {}
    width = 0
    for part in parts:
        a = part.lora_a if isinstance(part, AdaptedLinear) else None
        if a is None:
            found.append(-1)
            continue
        if id(a) not in known:
            known[id(a)] = width
            width += a.shape[0]
        found.append(known[id(a)])
    return tuple(found)


def _joined_adapters(parts: Sequence[nn.Linear], columns: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return `a` and `b` of joined layers; b has the factor of the adapters."""
    adapted = [(cast(AdaptedLinear, part), first) for part, first in zip(parts, columns, strict=True) if first >= 0]
    if not adapted:
        return like.new_empty(0, like.shape[-1]), like.new_empty(sum(part.out_features for part in parts), 0)
    rank = cast(Tensor, adapted[0][0].lora_a).shape[0]
    width = -(-(max(columns) + rank) // RANK_MULTIPLE) * RANK_MULTIPLE
    above: dict[int, Tensor] = {first: cast(Tensor, part.lora_a) for part, first in adapted}
    a = torch.cat([above[first].to(like.dtype) for first in sorted(above)])
    rows: list[Tensor] = []
    for part, first in zip(parts, columns, strict=True):
        if first < 0:
            rows.append(like.new_zeros(part.out_features, width))
        else:
            part = cast(AdaptedLinear, part)
            scaled = cast(Tensor, part.lora_b).to(like.dtype) * part.scale
            rows.append(F.pad(scaled, (first, width - first - rank)))
    return F.pad(a, (0, 0, 0, width - len(a))), torch.cat(rows)


def _base(parts: Sequence[nn.Linear]) -> list[Tensor]:
    return [tensor for part in parts for tensor in (part.base if isinstance(part, AdaptedLinear) else [part.weight])]


def joined_product(x: Tensor, parts: Sequence[nn.Linear], columns: tuple[int, ...]) -> Tensor:
    """Return the products of frozen layers with one input side by side, with their adapters, lengths and biases."""
    a, b = _joined_adapters(parts, columns, x)
    return _finished(adapted_linear(x, _base(parts), a, b)[0], parts, a, b)


def gated_product(x: Tensor, both: Sequence[nn.Linear], down: nn.Linear, columns: Columns, activation: str, keep: bool) -> Tensor:
    """Return the product of a frozen layer `down` with activation(gate) x up, where `both` are the gate and up projections. `keep`: the
    narrow product of down's adapter is kept for the backward pass, where a block is not recomputed."""
    rows = joined_product(x, both, columns[0])
    a, b = _joined_adapters((down,), columns[1], rows[..., : down.in_features])
    return _finished(adapted_gate(rows, _base((down,)), a, b, activation, keep)[0], (down,), a, b)


def _finished(y: Tensor, parts: Sequence[nn.Linear], a: Tensor, b: Tensor) -> Tensor:
    """Bring rows to their trained lengths, and add biases."""
    magnitudes = [part.lora_magnitude if isinstance(part, AdaptedLinear) else None for part in parts]
    if any(magnitude is not None for magnitude in magnitudes):
        lengths = _lengths(parts, a.detach(), b.detach()).split([part.out_features for part in parts])
        pairs = zip(magnitudes, lengths, strict=True)
        factors = [torch.ones_like(each) if magnitude is None else magnitude.float() / each for magnitude, each in pairs]
        y = y * torch.cat(factors).to(y.dtype)
    biases = [cast("Tensor | None", part.bias) for part in parts]
    return y + torch.cat([cast(Tensor, bias) for bias in biases]) if biases[0] is not None else y
