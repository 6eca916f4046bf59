"""Framework: what a training program overlaps, stores and can do, read from data/frameworks/*.toml."""

from dataclasses import dataclass, field, replace
from typing import Literal

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.errors import UserError, nearest, quoted
from meshwise.units import Bytes, Count


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Facts of a training framework, not fits: those are in a Calibration."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    sources: tuple[Source, ...]
    flash_attention: bool = True
    unfused: Count = 1.0
    """Bytes that its norms, rotary positions and activation functions move, over those of fused kernels."""
    dropout: bool = False
    """Keeps dropout masks, as GPT-2's generation does."""
    keeps_intermediates: bool = False
    """Eager autograd keeps what fused kernels compute again: rotated queries and keys, and the gate behind its activation function."""
    remakes_elements: bool = False
    """The backward pass makes outputs of norms and products of activation functions again, which keeps neither."""
    gradient_bytes: int = 4
    """Of the buffers that gradients are computed and summed in."""
    master_gradient_bytes: Count = 0.0
    """Of a float32 copy of the gradients that is sharded with the optimizer state, where the buffer itself is not float32."""
    reduced_bytes: int = 4
    """Per gradient element on the wire."""
    weight_bytes: int = 2
    """Of the copy that computes. The float32 master copy belongs to the optimizer."""
    logit_bytes: Count = 8.0
    """Moved per logit around the loss, and kept where all logits are there at once."""
    logits_at_once: Bytes = 0.0
    """Of 16-bit logits that are made at once, and become their gradients in place; 0 is all of them."""
    splits_weights: bool = False
    """On one device a weight is 16 bits with the other 16 of its float32 beside them, instead of a copy of each; gradients have 16 too
    where there is one micro-batch, and come as activations go."""
    joins_products: bool = False
    """On one device, projections of one input are one product."""
    graphs: bool = False
    """On one device a step is one CUDA graph, and waits for the host nowhere."""
    zero: tuple[int, ...] = (1, 2, 3)
    """ZeRO stages it offers beside 0."""
    recompute: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
    schedules: tuple[Literal["1f1b", "interleaved", "zero-bubble"], ...] = ("1f1b", "interleaved")
    splits_recomputed: bool = True
    """A schedule that puts off the gradients of weights goes with recompute."""
    sequence_parallel: Literal["never", "choice", "always"] = "choice"
    context_parallel: bool = True
    pads_cuts: bool = True
    """Copies KV heads and pads the vocabulary where tp does not divide them."""
    cuts_recurrence: bool = True
    """Tensor parallelism shares out the heads of recurrent layers too."""
    offload: bool = False
    scatters_stage_bytes: bool = True
    """A tensor-parallel group sends an activation to the next stage once, in parts, rather than whole from each member."""
    reduces_every_microbatch: bool = False
    """With pipeline stages and ZeRO 0, gradients are reduced after every micro-batch instead of once."""
    fills_stages: bool = False
    """Runs a pipeline only with a multiple of its stages of micro-batches."""
    fused_softmax: bool = False
    """Needs micro-batch x heads per device to be a multiple of 4, or attention falls back to slow kernels."""
    balances_stages: bool = False
    """Cuts stages by FLOPs, the head included, instead of by whole equal numbers of layers."""
    shards_partly: bool = False
    """Can share out the state over some of the data ranks and keep copies over the others (HSDP, instances of the optimizer)."""
    pads_batch: bool = False
    """Data ranks need not divide the batch: the last ones compute on padding."""
    overlaps_experts: bool = False
    """Sends one micro-batch's tokens to their experts while another computes (DualPipe)."""
    dispatch_bytes: int = 2
    """Per element of a token on its way to an expert; the sum that comes back has 2."""
    communication_sms: int = 0
    """SMs that move tokens while the others compute."""
    sends_once: bool = False
    """Sends a token to a node once, however many of its experts are there (DeepEP)."""
    embedding_layers: bool = False
    """Can count the embedding and the head as a layer each when it cuts stages."""

    def on(self, kind: str) -> "Framework":
        """The same on a kind of chip: kernels and graphs that only a GPU has are nowhere else."""
        return self if kind == "gpu" else replace(self, splits_weights=False, joins_products=False, graphs=False)


def usual(kind: str, model_type: str) -> str:
    """The framework that most people use on a kind of chip; of test-time training, the one here that has it."""
    if model_type == "ttt":
        return "meshwise"
    return "maxtext" if kind == "tpu" else "megatron"


@files.cached
def find_framework(name: str) -> Framework:
    known = files.files("frameworks", ".toml")
    wanted = files.squeeze(name)
    for key, path in known.items():
        found = replace(records.read(Framework, files.table_of(path), path.name), key=key)
        if wanted in (files.squeeze(key), files.squeeze(found.name)):
            return found
    raise UserError(f"unknown framework {quoted(name)}{nearest(name, known)}; known: {', '.join(known)}")
