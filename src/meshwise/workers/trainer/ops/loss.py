"""Cross-entropy at the end of a model without ever holding all logits, which would be the largest tensor in memory.

A few thousand tokens at a time go through the head, and their gradients are computed right away, while their logits exist.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

LOGIT_BYTES_AT_ONCE = 2**30  # bytes of logits held at a time: enough rows to fill a GPU, and little compared with its memory
IGNORED_TARGET = -100  # target of a token without a loss
VOCABULARY_MULTIPLE = 64
"""The product pads the vocabulary to a multiple of this: unaligned rows of 16-bit logits take twice as long."""


def head_loss(x: Tensor, weight: Tensor, targets: Tensor, cap: float = 0.0, at_once: int = LOGIT_BYTES_AT_ONCE) -> Tensor:
    """Return the mean cross-entropy of `softmax(x weight^T)` with the targets over all tokens of x (..., hidden). The loss of a token
    whose target is IGNORED_TARGET is zero. With a cap, the logits become cap x tanh(logit / cap) first."""
    half = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    rows = x.flatten(0, -2).to(half)
    size = rows.shape[0]
    parts = math.ceil(size * weight.shape[0] * rows.element_size() / at_once)
    each = math.ceil(size / parts / 128) * 128
    return cast(Tensor, _HeadLoss.apply(rows, weight, targets.flatten(), each, cap))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, each: int, cap: float) -> Tensor:
        vocabulary = weight.shape[0]
        wide = weight.detach().to(x.dtype)
        if vocabulary % VOCABULARY_MULTIPLE:  # padding copies the weight
            wide = F.pad(wide, (0, 0, 0, -vocabulary % VOCABULARY_MULTIPLE))
        by_x = torch.empty_like(x)
        trains = ctx.needs_input_grad[1]
        by_weight = torch.empty(wide.shape if trains else (0,), dtype=torch.float32, device=x.device)
        losses: list[Tensor] = []
        for chunk, chunk_targets, out in zip(x.split(each), targets.split(each), by_x.split(each), strict=True):
            logits = chunk @ wide.T
            chunk_losses = _loss_and_gradient(logits, chunk_targets, vocabulary, 1 / x.shape[0], cap)
            torch.mm(logits, wide, out=out)
            if trains:
                _store_product(by_weight, logits.T, chunk, add=bool(losses))
            losses.append(chunk_losses)
            del logits  # before the next ones are computed
        ctx.save_for_backward(by_x, by_weight[:vocabulary].to(weight.dtype))
        return torch.cat(losses).sum()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_weight = ctx.saved_tensors
        return _scaled(by_x, outer[0]), _scaled(by_weight, outer[0]) if ctx.needs_input_grad[1] else None, None, None, None


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply in place; torch multiplies 16-bit numbers by a float32 on the device at a third of memory speed."""
    if not gradient.is_cuda:
        return gradient.mul_(factor)
    from meshwise.workers.trainer.ops.softmax import scale

    return scale(gradient, factor)


def _loss_and_gradient(logits: Tensor, targets: Tensor, vocabulary: int, share: float, cap: float) -> Tensor:
    """Return the losses, and overwrite the logits with their gradient; both times `share`. Columns past the vocabulary are padding."""
    if logits.is_cuda:
        from meshwise.workers.trainer.ops.softmax import loss_and_gradient

        return loss_and_gradient(logits, targets, vocabulary, share, cap)
    scores = logits.float()
    slope = None
    if cap:
        scores = torch.tanh(scores / cap)
        slope = 1 - scores.square()
        scores = scores * cap
    scores[:, vocabulary:] = -torch.inf
    whole = scores.logsumexp(-1, keepdim=True)
    counted, known = (targets >= 0).float() * share, targets.clamp(min=0)[:, None]
    losses = (whole - scores.gather(1, known)).squeeze(1) * counted
    scores = (scores - whole).exp_()
    scores.scatter_add_(1, known, scores.new_full((len(targets), 1), -1.0))
    logits.copy_(scores.mul_(counted[:, None]) if slope is None else scores.mul_(slope).mul_(counted[:, None]))
    return losses


def _store_product(total: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
    """Store total = a b in float32, or total += a b, for any dtype; only CUDA adds 16-bit products to 32 bits without a copy."""
    if a.is_cuda and a.dtype != torch.float32:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, beta=float(add), out=total)
    else:
        total.addmm_(a.float(), b.float(), beta=float(add))
