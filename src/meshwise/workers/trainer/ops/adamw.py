"""AdamW (arXiv:1711.05101) on 16-bit weights without loss of precision: the rounding error of each weight is stored too.

A float32 weight is its nearest bfloat16 plus 16 more bits. Blocks compute with the bfloat16, which needs no cast, and the update combines
both: 14 bytes per parameter with gradient and moments, where float32 weights, gradients and their 16-bit copies take 18. With moments in
bfloat16 (as in arXiv:2412.19437, 3.3) they are 10, and a step reads and writes 18 bytes instead of 26.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

SIZE = 1024  # weights that one Triton program updates
MAX_GROUPED_WEIGHTS = 2**16
"""Largest tensor, in weights, that shares a launch with others: a launch of its own takes 3 us, however small the tensor."""
PACKED_MULTIPLE = 64  # packed tensors start at multiples of this: compiled blocks copy unaligned inputs


@triton.jit
def _update(weight, low, grad, mean, square, now, size, decay, beta1, beta2, eps, BLOCK: tl.constexpr):  # noqa: N803
    """Update `size` weights by one step. `now` holds the learning rate, the gradient scale, and both bias corrections of the moments."""
    scale = tl.load(now + 1)
    if scale == scale:  # a NaN gradient changes nothing
        rate = tl.load(now)
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        high = tl.load(weight + at, inside).to(tl.int16, bitcast=True).to(tl.int32)
        w = ((high << 16) + tl.load(low + at, inside).to(tl.int32)).to(tl.float32, bitcast=True)
        g = tl.load(grad + at, inside).to(tl.float32) * scale
        m = tl.load(mean + at, inside).to(tl.float32)
        m = m + (1 - beta1) * (g - m)
        v = tl.load(square + at, inside).to(tl.float32)
        v = v + (1 - beta2) * (g * g - v)
        w -= rate * decay * w
        w -= rate / tl.load(now + 2) * m / (tl.sqrt(v / tl.load(now + 3)) + eps)
        bits = w.to(tl.int32, bitcast=True)
        high = (bits + 0x8000) >> 16
        tl.store(weight + at, high.to(tl.int16).to(tl.bfloat16, bitcast=True), inside)
        tl.store(low + at, (bits - (high << 16)).to(tl.int16), inside)
        tl.store(mean + at, m.to(mean.dtype.element_ty), inside)
        tl.store(square + at, v.to(square.dtype.element_ty), inside)


class Packed:
    """Small tensors of one parameter group in one buffer: one launch gathers their gradients, and one updates all."""

    def __init__(self, parameters: list[nn.Parameter], moments: torch.dtype) -> None:
        starts = [0]
        for parameter in parameters:
            starts.append(starts[-1] + (parameter.numel() + PACKED_MULTIPLE - 1) // PACKED_MULTIPLE * PACKED_MULTIPLE)
        self.parameters, self.starts = parameters, starts[:-1]
        device = parameters[0].device
        self.weight = torch.zeros(starts[-1], dtype=torch.bfloat16, device=device)
        self.state = {"low": torch.zeros(starts[-1], dtype=torch.int16, device=device)}
        self.state |= {kind: torch.zeros(starts[-1], dtype=moments, device=device) for kind in ("exp_avg", "exp_avg_sq")}
        self.grad: Tensor | None = None
        self.grads: list[Tensor] = []

    def _part(self, whole: Tensor, index: int) -> Tensor:
        parameter, start = self.parameters[index], self.starts[index]
        return whole[start : start + parameter.numel()].view(parameter.shape)

    def weight_view(self, index: int) -> Tensor:
        """Return the buffer of a weight's bfloat16 value."""
        return self._part(self.weight, index)

    def state_views(self, index: int) -> dict[str, Tensor]:
        """Return the buffers of a weight's low bits and moments."""
        return {kind: self._part(buffer, index) for kind, buffer in self.state.items()}

    def gather_gradients(self) -> Tensor:
        """Copy the gradients into one buffer, with zeros between tensors. Its dtype is that of the first: float32 if they accumulate."""
        grads = [cast(Tensor, parameter.grad) for parameter in self.parameters]
        if self.grad is None:
            self.grad = torch.zeros(len(self.weight), dtype=grads[0].dtype, device=grads[0].device)
            self.grads = [self._part(self.grad, i) for i in range(len(grads))]
        torch.ops.aten._foreach_copy_(self.grads, grads)
        return self.grad


class SplitAdamW(torch.optim.Optimizer):
    """Converts float32 weights to bfloat16 in place. `step` never waits for the device, so that a CUDA graph can hold it. Moments in
    bfloat16 are rounded to the nearest: a step moves them by a share 1 - beta of the distance to the gradient, 5% or more, and rounding by
    at most 0.2%, so that they follow it. With beta2 = 0.999 they would stand still."""

    def __init__(
        self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float = 1e-8, moments: torch.dtype = torch.float32
    ) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps})
        device = self.param_groups[0]["params"][0].device
        self.rate, self.count = torch.zeros((), device=device), torch.zeros((), device=device)
        self.packs: list[Packed | None] = []
        """The small weights of each group."""
        self.alone: list[list[nn.Parameter]] = []
        """Large or non-contiguous weights of each group, updated one by one."""
        halves: dict[int, Tensor] = {}
        for group in self.param_groups:
            small: list[nn.Parameter] = []
            alone: list[nn.Parameter] = []
            for parameter in group["params"]:
                (small if parameter.numel() <= MAX_GROUPED_WEIGHTS and _fills_memory(parameter) else alone).append(parameter)
            pack = Packed(small, moments) if small else None
            if pack:
                for index, parameter in enumerate(small):
                    self._attach(parameter, pack.weight_view(index), pack.state_views(index))
            for parameter in alone:
                kept = {"low": torch.empty_like(parameter, dtype=torch.int16)}
                kept |= {kind: torch.zeros_like(parameter, dtype=moments) for kind in ("exp_avg", "exp_avg_sq")}
                self._attach(parameter, _half(parameter, halves), kept)
            self.packs.append(pack)
            self.alone.append(alone)

    def _attach(self, parameter: nn.Parameter, half: Tensor, kept: dict[str, Tensor]) -> None:
        """Give a weight its 16-bit storage and its state."""
        whole = parameter.detach()
        parameter.data = half
        self.state[parameter] = kept
        self.set_value(parameter, whole)

    @torch.no_grad()
    def set_value(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Set a weight to this float32 value."""
        parameter.copy_(_nearest(whole))
        self.state[parameter]["low"].copy_(whole.view(torch.int32) - (_bits(parameter) << 16))

    def value(self, parameter: nn.Parameter) -> Tensor:
        """Return the float32 value of a weight."""
        return ((_bits(parameter) << 16) + self.state[parameter]["low"].int()).view(torch.float32)

    @torch.no_grad()
    def step(self, closure: None = None, scale: Tensor | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every weight with its gradient times `scale`; if scale is NaN, change nothing."""
        scale = torch.ones_like(self.count) if scale is None else scale
        self.count += torch.isfinite(scale)
        for group, pack, weights in zip(self.param_groups, self.packs, self.alone, strict=True):
            beta1, beta2 = group["betas"]
            now = torch.stack((self.rate, scale, 1 - beta1**self.count, 1 - beta2**self.count))
            alone = [(weight, self.state[weight], weight.grad) for weight in weights]
            together = [(pack.weight, pack.state, pack.gather_gradients())] if pack else []
            for weight, kept, grad in [*alone, *together]:
                run: Any = _update[(triton.cdiv(weight.numel(), SIZE),)]
                run(
                    weight, kept["low"], grad, kept["exp_avg"], kept["exp_avg_sq"], now, weight.numel(), group["weight_decay"],
                    beta1, beta2, group["eps"], SIZE,
                )  # fmt: skip


def _fills_memory(weight: Tensor) -> bool:
    """Return whether a weight is alone in its storage."""
    return weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()


def _half(weight: Tensor, halves: dict[int, Tensor]) -> Tensor:
    """Return 16-bit storage for a weight. Weights that share float32 storage share this too, at the same offsets (fused_projections.py)."""
    memory = weight.untyped_storage()
    if memory.data_ptr() not in halves:
        size = memory.nbytes() // weight.element_size()
        halves[memory.data_ptr()] = torch.zeros(size, dtype=torch.bfloat16, device=weight.device)
    return halves[memory.data_ptr()].as_strided(weight.shape, weight.stride(), weight.storage_offset())


def _bits(weight: Tensor) -> Tensor:
    return weight.detach().view(torch.int16).int()


def _nearest(whole: Tensor) -> Tensor:
    """Round float32 to the nearest bfloat16, ties away from zero, so that the remainder fits 16 bits."""
    return ((whole.view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
