"""Activation checkpointing: recompute activations in the backward pass instead of keeping them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor
from torch.utils.checkpoint import checkpoint


def checkpointed(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `function(*inputs)`, keeping only its inputs for the backward pass."""
    return cast(Tensor, checkpoint(function, *inputs, use_reentrant=False))
