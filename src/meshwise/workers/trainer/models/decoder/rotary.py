"""Rotary positions (arXiv:2104.09864): tables of cosines and sines, and the rotation."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import math
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.models.description import Rotary


def rotation_of(rotary: Rotary, head_dim: int, positions: Tensor, length: int) -> Tensor:
    """Return cosines and sines (2, positions, head_dim) for sequences of `length` tokens. Pairs are features i and i + head_dim / 2 of a
    head in the model's order (`tensors.feature_order`); pairs beyond the rotated part keep their place. Sines of the first half are
    negative, as `rotate` expects."""
    frequency, factor = frequencies(rotary, length, positions.device)
    angle = positions.float()[:, None] * frequency
    still = torch.zeros(len(positions), (head_dim - rotary.dim) // 2, device=positions.device)
    cos, sin = torch.cat((angle.cos() * factor, still + 1), -1), torch.cat((angle.sin() * factor, still), -1)
    return torch.stack((cos.repeat(1, 2), torch.cat((-sin, sin), -1)))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of (batch, sequence, heads, head_dim) by their angle, in float32."""
    # swapping halves by index compiles to plain reads; concatenating two parts took a tenth longer on an H200
    other = torch.flip(x.reshape(*x.shape[:-1], 2, -1), (-2,)).flatten(-2)
    cos, sin = rotation.unsqueeze(2)
    return (x.float() * cos + other.float() * sin).to(x.dtype)


def frequencies(rotary: Rotary, length: int, device: torch.device) -> tuple[Tensor, float]:
    """Return the frequency of each pair, and the factor of cosines and sines that some scalings have."""
    dim, values = rotary.dim, rotary.scaling
    plain = rotary.theta ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    if rotary.kind == "linear":
        return plain / float(values["factor"]), 1.0
    if rotary.kind == "llama3":
        return _llama3(plain, values), 1.0
    if rotary.kind == "yarn":
        return _yarn(plain, rotary), _yarn_factor(values)
    if rotary.kind == "longrope":
        return _longrope(plain, values, length)
    return plain, 1.0


def _llama3(plain: Tensor, values: Any) -> Tensor:
    """Stretch long wavelengths: few turns over the original context by `factor`, many not at all, a ramp in between (arXiv:2407.21783)."""
    low, high, factor = (float(values[key]) for key in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = float(values["original_max_position_embeddings"]) * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / factor)


def _yarn(plain: Tensor, rotary: Rotary) -> Tensor:
    """Stretch by `factor` the pairs that turn less than beta_slow times over the original context (arXiv:2309.00071; HF's keys)."""
    values, dim = rotary.scaling, rotary.dim
    original = float(values.get("original_max_position_embeddings") or values["max_position_embeddings"])

    def pair(turns: float) -> float:
        """Return the pair, a fraction, that turns this often over the original context."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rotary.theta))

    low, high = pair(float(values.get("beta_fast") or 32)), pair(float(values.get("beta_slow") or 1))
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    index = torch.arange(len(plain), device=plain.device).float()
    stretched = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - stretched) + plain / float(values["factor"]) * stretched


def _yarn_factor(values: Any) -> float:
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    scale, every = values.get("mscale"), values.get("mscale_all_dim")
    factor = float(values["factor"])
    if scale and every:
        return yarn_scale(factor, float(scale)) / yarn_scale(factor, float(every))
    return yarn_scale(factor)


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(plain: Tensor, values: Any, length: int) -> tuple[Tensor, float]:
    """Divide each frequency by a number of its own, another one for sequences beyond the original context (arXiv:2402.13753)."""
    original = float(values.get("original_max_position_embeddings") or values["max_position_embeddings"])
    divisors = values["long_factor" if length > original else "short_factor"]
    factor = float(values.get("factor") or float(values["max_position_embeddings"]) / original)
    given = values.get("attention_factor")
    scale = float(given) if given is not None else (1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original)))
    # on the device one by one: a CUDA graph cannot capture a copy of a list from the host
    stretched = torch.stack([plain[i] / float(divisor) for i, divisor in enumerate(divisors)])
    return stretched, scale
