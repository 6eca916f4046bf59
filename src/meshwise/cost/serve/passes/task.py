"""Task: the work of one device. Hop: a transfer between two."""

from dataclasses import dataclass
from functools import cached_property

from meshwise.catalogue.chips import Chip, Link
from meshwise.cost.serve.passes.waves import Product


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of one device: per pass of the engine, per token, per cached token and per pair of query and key. `reads`, `pairs` and
    `scores` have one entry per window of the model (Demand.windows), because a windowed layer reaches fewer keys."""

    chip: Chip
    layers: int
    kernels: float  # kernels that a pass launches, in layers of a dense model
    mixtures: float  # layers with routed experts
    weights: float  # bytes of weights that every pass reads, without experts and head
    head: float  # bytes of the head, which is applied to the last token of a prompt only
    experts: float  # bytes of routed experts
    routed: float  # share of the experts that one token reads
    flops: float  # FLOPs per token of all products, without the head
    expert_flops: float  # FLOPs in `flops` of routed experts
    head_flops: float
    products: tuple[Product, ...]  # the matrix products of all layers
    reads: tuple[float, ...]  # bytes of KV cache that a decoding sequence reads per cached token
    state: float  # bytes of recurrent states that a decoding sequence reads and writes
    keyed: tuple[float, ...]
    """FLOPs of a decoding sequence per cached token, where all heads share a latent; otherwise reading takes longer and these are 0."""
    pairs: tuple[float, ...]
    """FLOPs of prompt attention per query and key; with flash kernels, converted to FLOPs at a head size of 128 that take as long."""
    scores: tuple[float, ...]  # bytes of scores per query and key that attention without flash kernels writes once; 0 with them
    touched: float  # bytes of inputs and outputs of the products, per token
    adapters: int = 0  # LoRA adapters in memory
    adapter: float = 0.0  # bytes of one adapter, and its FLOPs per token: two of each element of two bytes

    @cached_property
    def dense_products(self) -> tuple[Product, ...]:
        return tuple(product for product in self.products if product.copies == 1)

    @cached_property
    def expert_products(self) -> tuple[Product, ...]:
        """The products of experts, which are one grouped kernel each."""
        return tuple(product for product in self.products if product.copies > 1)

    @property
    def idle(self) -> bool:
        return not (self.weights or self.experts or self.head or any(self.reads) or self.state)

    def reached_bytes(self, tokens: float) -> float:
        """Return bytes of the distinct experts that a pass is routed to: 1 - (1 - a/e)^tokens of all, with even routing."""
        return self.experts * (1 - (1 - self.routed) ** tokens)

    def sharing(self, tokens: float) -> float:
        """Return the tokens that meet experts read already. Worked: 8 tokens with 4 of 128 each choose 28.7 experts 32 times: 0.8."""
        return max(0.0, tokens - (1 - (1 - self.routed) ** tokens) / self.routed) if self.routed else 0.0

    def adapter_bytes(self, requests: float) -> float:
        """Return the expected bytes of the distinct adapters in a batch where each request uses a random one."""
        return self.adapter * self.adapters * (1 - (1 - 1 / self.adapters) ** requests) if self.adapters else 0.0

    def read(self, tokens: float) -> float:
        """Return bytes of weights that a pass of `tokens` tokens reads, without the head."""
        return self.weights + self.reached_bytes(tokens)


@dataclass(frozen=True, kw_only=True)
class Hop:
    """A transfer of activations from one device to the next, or of logits back to the first host."""

    link: Link | None
    remote: bool  # whether it goes to another host
    token_bytes: float
    logits: bool = False  # whether it carries logits: of the last token of a prompt only
    layers: int  # layers of the remote host, whose compute graph is sent over RPC; 0 on the first host
