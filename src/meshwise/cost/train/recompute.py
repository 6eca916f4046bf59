"""Recomputation of activations: what each value of the axis `recompute` keeps for the backward pass, and what that pass repeats."""

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from meshwise.catalogue.frameworks import Framework
from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Floats


@dataclass(frozen=True)
class Repeated:
    """Share of each part of the forward pass that the backward pass repeats: one number, or one per layout."""

    projections: Floats | float = 0.0  # products before attention (queries, keys, values) or another mixer
    outputs: Floats | float = 0.0  # products after it
    mlp: Floats | float = 0.0  # products of feed-forward layers and experts
    core: Floats | float = 0.0  # attention without its projections
    elementwise: Floats | float = 0.0  # norms, activation functions, rotary positions


@dataclass(frozen=True)
class Kept:
    """Share of each kind of activation that stays in memory; the input of a layer always does."""

    norms: Floats | float = 1.0  # inputs of the other norms, and outputs of all norms, which products read
    mixer: Floats | float = 1.0  # queries, keys and values, or what another mixer reads
    mixed: Floats | float = 1.0  # output of attention, which its output projection reads
    ffn: Floats | float = 1.0  # outputs of the up and gate products
    gated: Floats | float = 1.0  # their product after the activation function, which the down product reads
    copies: Floats | float = 1.0  # further copies that eager autograd keeps, and dropout masks
    scores: Floats | float = 1.0  # attention scores, where attention writes them to memory


POLICIES: dict[str, tuple[Repeated, Kept]] = {
    "none": (Repeated(), Kept()),
    "core_attn": (Repeated(core=1), Kept(scores=0)),
    # torchtitan: the output of every second product, and of attention, is kept
    "operations": (
        Repeated(projections=0.5, outputs=0.5, mlp=0.5, elementwise=1),
        Kept(norms=0.25, mixer=0.5, mixed=1, ffn=0.5, gated=0, copies=0, scores=0),
    ),
    "full": (
        Repeated(projections=1, outputs=1, mlp=1, core=1, elementwise=1),
        Kept(norms=0, mixer=0, mixed=0, ffn=0, gated=0, copies=0, scores=0),
    ),
    "mlp": (Repeated(mlp=1, elementwise=0.4), Kept(ffn=0, gated=0)),
    "layernorm": (Repeated(elementwise=0.3), Kept(norms=0.5)),
    "moe_act": (Repeated(elementwise=0.3), Kept(gated=0)),
    "moe": (Repeated(mlp=1, elementwise=0.4), Kept(ffn=0, gated=0)),
    # DeepSeek-V3: 54.5 of the 69.7 million weights of its projections lead up; 2,112 of 67,648 elements are the latents, which stay
    "mla_up_proj": (Repeated(projections=0.8, elementwise=0.1), Kept(mixer=0.05)),
    "minimal": (Repeated(core=1, elementwise=1), Kept(norms=0.25, gated=0, copies=0, scores=0)),
    "save_qkv_proj": (
        Repeated(outputs=1, mlp=1, core=1, elementwise=1),
        Kept(norms=0, mixed=0, ffn=0, gated=0, copies=0, scores=0),
    ),
    "save_out_proj": (
        Repeated(projections=1, mlp=1, core=1, elementwise=1),
        Kept(norms=0.25, mixer=0, mixed=0, ffn=0, gated=0, copies=0, scores=0),
    ),
}
"""full and core_attn: Korthikanti et al. 2022, arXiv:2205.05198. The others follow from what the programs name: Megatron's
--recompute-modules, torchtitan's per-operation activation checkpointing, MaxText's remat_policy."""


def _policies(f: Framework) -> list[tuple[Repeated, Kept]]:
    """Return the policy of each value of the axis, in the words of this framework."""
    return [policy(f.selective if how == "selective" else how) for how in RECOMPUTE]


@cache
def policy(name: str) -> tuple[Repeated, Kept]:
    """Return what a way to recompute repeats and keeps: 'layernorm+moe_act' repeats both modules and keeps what neither drops."""
    own = [POLICIES[part] for part in name.split("+")]
    again = {part.name: min(1.0, sum(getattr(one, part.name) for one, _ in own)) for part in fields(Repeated)}
    return Repeated(**again), Kept(**{part.name: min(getattr(one, part.name) for _, one in own) for part in fields(Kept)})


def repeated(f: Framework, recompute: Floats, gated: bool, adapted: bool = False) -> Repeated:
    """Return the shares of the forward pass that are repeated, one per layout. Where a framework stops early, the last of the two or three
    products of a feed-forward layer is not."""
    which, policies = recompute.astype(np.int64), _policies(f)
    shares = {part.name: np.array([getattr(p[0], part.name) for p in policies], float)[which] for part in fields(Repeated)}
    if f.stops_early or (adapted and f.fuses_adapters):
        shares["mlp"] = shares["mlp"] * (2 / 3 if gated else 1 / 2)
    return Repeated(**shares)


def kept(f: Framework, recompute: Floats) -> Kept:
    """Return the shares of activations that stay in memory, one per layout."""
    which, policies = recompute.astype(np.int64), _policies(f)
    return Kept(**{part.name: np.array([getattr(p[1], part.name) for p in policies], float)[which] for part in fields(Kept)})
