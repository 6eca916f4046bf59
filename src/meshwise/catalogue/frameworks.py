"""Framework: what a training program overlaps, stores and supports, read from data/frameworks/*.toml."""

from dataclasses import dataclass, field, replace
from typing import Literal

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.errors import unknown
from meshwise.units import Bytes, Count


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Facts about a training framework. Fitted numbers are in a Calibration."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    sources: tuple[Source, ...]
    flash_attention: bool = True
    unfused: Count = 1.0
    """Bytes moved by its norms, rotary positions and activation functions, over those moved by fused kernels."""
    dropout: bool = False
    """Keeps dropout masks, as models of GPT-2's generation do."""
    keeps_intermediates: bool = False
    """Eager autograd keeps tensors that fused kernels recompute: rotated queries and keys, and the gate after its activation function."""
    remakes_elements: bool = False
    """Keeps neither the outputs of norms nor the products of activation functions: the backward pass recomputes them."""
    gradient_bytes: int = 4
    """Bytes per element of the buffers in which gradients are computed and accumulated."""
    master_gradient_bytes: Count = 0.0
    """Bytes per element of a float32 gradient copy that is sharded with the optimizer state, if the buffer itself is not float32."""
    reduced_bytes: int = 4
    """Bytes per gradient element on the wire."""
    weight_bytes: int = 2
    """Bytes per element of the weights used in computation. The float32 master copy belongs to the optimizer."""
    logit_bytes: Count = 8.0
    """Bytes moved per logit around the loss, and kept if all logits exist at once."""
    logits_at_once: Bytes = 0.0
    """Bytes of 16-bit logits that are computed at once and overwritten with their gradients; 0: all logits."""
    splits_weights: bool = False
    """On one device a weight is 16 bits, with the other 16 bits of its float32 stored separately, instead of one copy of each. Gradients
    have 16 bits too if there is one micro-batch, and are allocated as activations are freed."""
    joins_products: bool = False
    """On one device, projections of the same input are one product."""
    graphs: bool = False
    """On one device a step is one CUDA graph, without CPU launch overhead."""
    zero: tuple[int, ...] = (1, 2, 3)
    """ZeRO stages that it offers besides 0."""
    recompute: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
    schedules: tuple[Literal["1f1b", "interleaved", "zero-bubble"], ...] = ("1f1b", "interleaved")
    splits_recomputed: bool = True
    """Recompute works with schedules that delay weight gradients."""
    sequence_parallel: Literal["never", "choice", "always"] = "choice"
    context_parallel: bool = True
    pads_cuts: bool = True
    """Copies KV heads and pads the vocabulary if tp does not divide them."""
    cuts_recurrence: bool = True
    """Tensor parallelism also splits the heads of recurrent layers."""
    offload: bool = False
    scatters_stage_bytes: bool = True
    """A tensor-parallel group sends an activation to the next stage once, in parts, rather than whole from each rank."""
    reduces_every_microbatch: bool = False
    """With pipeline stages and ZeRO 0, gradients are reduced after every micro-batch instead of once."""
    fills_stages: bool = False
    """The number of micro-batches must be a multiple of the pipeline stages."""
    fused_softmax: bool = False
    """Needs micro-batch x heads per device to be a multiple of 4, or attention falls back to slow kernels."""
    balances_stages: bool = False
    """Balances stages by FLOPs, including the head, instead of giving each the same number of layers."""
    shards_partly: bool = False
    """Can shard the state over some of the data-parallel ranks and replicate it over the others (HSDP, optimizer instances)."""
    pads_batch: bool = False
    """The data-parallel ranks need not divide the batch: the last ones compute on padding."""
    overlaps_experts: bool = False
    """Sends one micro-batch's tokens to their experts while another computes (DualPipe)."""
    dispatch_bytes: int = 2
    """Bytes per element of a token sent to an expert; the sum that comes back has 2."""
    communication_sms: int = 0
    """SMs that move tokens while the others compute."""
    sends_once: bool = False
    """Sends a token to a node once, however many of its experts are there (DeepEP)."""
    embedding_layers: bool = False
    """Can count the embedding and the head as one layer each when it assigns layers to stages."""

    def on(self, kind: str) -> "Framework":
        """Return the framework as it runs on a kind of chip: without kernels and graphs that need a GPU elsewhere."""
        return self if kind == "gpu" else replace(self, splits_weights=False, joins_products=False, graphs=False)


def usual(kind: str, model_type: str) -> str:
    """Return the framework that most people use on a kind of chip; for test-time training, meshwise's own trainer."""
    if model_type == "ttt":
        return "meshwise"
    return "maxtext" if kind == "tpu" else "megatron"


@files.cached
def find_framework(name: str) -> Framework:
    """Return the framework with that name; case and punctuation do not count."""
    known = files.files("frameworks", ".toml")
    plain = files.squeeze(name)
    for key, path in known.items():
        framework = replace(records.read(Framework, files.table_of(path), path.name), key=key)
        if plain in (files.squeeze(key), files.squeeze(framework.name)):
            return framework
    raise unknown("framework", name, known)
