"""Activations that are computed again in the backward pass instead of kept."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor
from torch.utils.checkpoint import checkpoint


def again(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`function(*inputs)`, of which only the inputs are kept."""
    return cast(Tensor, checkpoint(function, *inputs, use_reentrant=False))
