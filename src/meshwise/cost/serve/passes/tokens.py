"""Work of a model per token, layer by layer: FLOPs, attention, kernels, and the elements that products read and write."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshwise.models.families.blocks import HEAD
from meshwise.models.model import Model
from meshwise.models.op import Op, fusable_groups

DENSE_KERNELS = 13.0
"""Kernels of a dense layer in an engine with fused norms and joined products: the unit in which launches of a layer are counted."""
LATENT_KERNELS = 8.0
"""More of them with latent attention: two low-rank products with norms, products that absorb the latent, the sum of a long cache."""
SPARSE_KERNELS = 8.0
"""More of them with an index that chooses the keys of latent attention: its products, a norm, rotations, scores, and the choice."""
SHARED_KERNELS = 3.0  # more of them with an expert that every token uses: two products and the gate between them
RECURRENT_KERNELS = 4.0  # more of them in a recurrent mixer: convolution, gates, decay and scan instead of rotation and attention


@dataclass(frozen=True)
class TokenWork:
    """Work per token of a model, layer by layer."""

    products: tuple[float, ...]  # FLOPs of the products of each layer
    experts: tuple[float, ...]  # FLOPs in `products` of routed experts
    attention: tuple[tuple[Op, ...], ...]  # attention Ops of each layer
    kernels: tuple[float, ...]  # kernels of each layer, in layers of a dense model
    head: float  # FLOPs of the head
    cut: int  # number of products of all layers, without experts: those that a row split cuts
    inputs: float  # input elements of these products
    outputs: float  # output elements of these products
    touched: float  # input and output elements of the products of an average layer, with the experts that a token is routed to


@lru_cache(maxsize=16)
def token_work(model: Model) -> TokenWork:
    """Count the work per token of a model."""
    times = {name: number for name, number in model.times.items() if number}
    used = {name: ops for name, ops in model.blocks.items() if name in times}
    products = {name: sum(op.flops(1) for op in ops if op.kind != "attention") / times[name] for name, ops in used.items()}
    experts = {name: sum(op.flops(1) for op in ops if op.expert) / times[name] for name, ops in used.items()}
    scores = {name: tuple(op for op in ops if op.kind == "attention") for name, ops in used.items()}
    inner = [op for ops in used.values() for op in ops if op.kind == "matmul" and not op.expert]
    norms = max(0, model.decoder.norms - 2)
    touched = sum(op.count * op.m * (op.n + op.k) for ops in used.values() for op in ops if op.kind == "matmul")
    return TokenWork(
        tuple(sum(products[block] for block in layer) for layer in model.layers),
        tuple(sum(experts[block] for block in layer) for layer in model.layers),
        tuple(tuple(op for block in layer for op in scores[block]) for layer in model.layers),
        tuple(_kernels([used[block] for block in layer], norms) for layer in model.layers),
        sum(op.flops(1) for op in model.blocks.get(HEAD, ())), sum(op.count for op in inner),
        sum(op.count * op.k for op in inner), sum(op.count * op.n for op in inner), touched / len(model.layers),
    )  # fmt: skip


@lru_cache(maxsize=16)
def adapted_products(model: Model, joined: bool) -> tuple[int, ...]:
    """Return the products of each layer that LoRA adapters extend: all but those of routed experts; `joined` ones count once."""
    blocks = {
        name: sum(
            not group[0].expert for group in (fusable_groups(ops) if joined else [[op] for op in ops if op.kind == "matmul"])
        )
        for name, ops in model.blocks.items()
    }
    return tuple(sum(blocks[block] for block in layer) for layer in model.layers)


def _kernels(blocks: Sequence[tuple[Op, ...]], norms: int) -> float:
    """Return the kernels of a layer, in dense layers: a mixer and a feed-forward, or (Nemotron-H, Mamba) half as many for one of them."""
    whole = 0.5 if len(blocks) == 1 else 1.0
    return whole + (norms + sum(_more_kernels(ops) for ops in blocks)) / DENSE_KERNELS


def _more_kernels(ops: tuple[Op, ...]) -> float:
    """Return the kernels of a block in addition to those of a dense layer; experts have a coefficient of their own."""
    names = {op.name.partition(".")[0] for op in ops}
    latent = any(op.name == "attention.kv_down" for op in ops)
    recurrent = any(op.kind == "scan" for op in ops)
    further = SPARSE_KERNELS * ("index" in names) + SHARED_KERNELS * ("shared" in names)
    return LATENT_KERNELS * latent + RECURRENT_KERNELS * recurrent + further
