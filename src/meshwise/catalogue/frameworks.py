"""Framework: what a training program overlaps, stores and supports, read from data/frameworks/*.toml."""

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.errors import unknown
from meshwise.units import Bytes, Count

Kernel = Literal["unfused", "triton", "fa2", "fa3", "fa4", "xla"]
"""Attention kernels by generation. cuDNN's of 2024 and later run like fa3 on Hopper and like fa4 on Blackwell."""
Loss = Literal["materialised", "chunked", "fused"]
LOSSES: tuple[str, ...] = get_args(Loss)
FLASH_SHARES: dict[str, dict[str, float]] = {
    "triton": {"Ampere": 0.35, "Hopper": 0.25, "Blackwell": 0.2, "": 0.3},
    "fa2": {"Ampere": 0.62, "Ada": 0.6, "Hopper": 0.4, "Blackwell": 0.27, "CDNA 3": 0.35, "CDNA 2": 0.3, "": 0.5},
    "fa3": {"Ampere": 0.62, "Ada": 0.6, "Hopper": 0.64, "Blackwell": 0.5, "CDNA 3": 0.4, "": 0.5},
    "fa4": {"Ampere": 0.62, "Ada": 0.6, "Hopper": 0.64, "Blackwell": 0.65, "CDNA 3": 0.4, "": 0.5},
    "xla": {"": 0.45},
}
"""Forward share of the 16-bit peak with heads of 128 and long sequences, by kernel and architecture. Published: FA2 230 of 312 TFLOP/s on
A100 and 350 to 400 of 989 on H100 (arXiv:2307.08691, arXiv:2407.08608); FA3 and cuDNN 570 to 740 on H100 (arXiv:2407.08608); FA4 1,500 to
1,600 of 2,250 on B200 (Hot Chips 2025). '': any other architecture."""

COMPILED_LOGIT_BYTES = 8.0
"""`Framework.logit_bytes` where a compiler fuses the loss: 16-bit logits, and float32 ones or their gradient."""
COMPILED_CASTS = 0.5
"""`Framework.casts` where a compiler joins casts with the kernels around them."""


def flash_share(kernel: str, architecture: str) -> float:
    """Return the forward share of the peak that an attention kernel reaches on an architecture."""
    shares = FLASH_SHARES["fa2" if kernel == "unfused" else kernel]
    return shares.get(architecture, shares[""])


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Facts about a training framework. Fitted numbers are in a Calibration."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()
    """Other programs that train in the same way, by the names that tables of measurements use."""
    attention: Kernel = "fa2"
    """The attention kernel of its current version."""
    flexible: bool = False
    """Attention with ALiBi, soft caps or windows is a kernel compiled for that rule (FlexAttention), not a plain kernel with a mask."""
    head_multiple: Count = 1.0
    """Its attention kernel pads the features of a head to a multiple of this, and multiplies the padding."""
    sums_biases: bool = False
    """The gradient of a product's bias is a kernel of its own, which reads the gradient of the output again."""
    unfused: Count = 1.0
    """Bytes moved by its norms, rotary positions and activation functions, over those moved by fused kernels."""
    compiled: Count = 0.0
    """`unfused` with compiled layers (torch.compile); 0: compiling is not an option."""
    compiles_narrow: bool = False
    """Runs in 8 bits are compiled unless they say otherwise, since its documentation asks for that."""
    casts: Count = 1.0
    """Bytes moved by casts to 8 or 4 bits, over those of casts that are kernels of their own: less where they are part of the norm or
    activation before them."""
    weight_casts: Count = 0.0
    """Bytes moved per weight and micro-batch to cast weights to 8 or 4 bits; 0: they are cast once per step, or gathered so."""
    dropout: bool = False
    """Keeps dropout masks, as models of GPT-2's generation do."""
    keeps_intermediates: bool = False
    """Eager autograd keeps tensors that fused kernels recompute: rotated queries and keys, and the gate after its activation function."""
    remakes_elements: bool = False
    """Keeps neither the outputs of norms nor the products of activation functions: the backward pass recomputes them."""
    gradient_bytes: int = 4
    """Bytes per element of the buffers in which gradients are computed and accumulated."""
    fp16_gradient_bytes: int = 0
    """`gradient_bytes` in fp16, where it differs; 0: the same."""
    master_gradient_bytes: Count = 0.0
    """Bytes per element of a float32 gradient copy that is sharded with the optimizer state, if the buffer itself is not float32."""
    reduced_bytes: int = 4
    """Bytes per gradient element on the wire."""
    weight_bytes: int = 2
    """Bytes per element of the weights used in computation. The float32 master copy belongs to the optimizer."""
    shards_master: bool = False
    """With ZeRO 3 the sharded float32 weights are the master copy, and only gathered layers exist in 16 bits."""
    pure_unsharded: bool = False
    """Where nothing is sharded, weights, gradients and moments all have the 16 bits of the checkpoint, without a float32 copy."""
    loss: Loss = "materialised"
    """Its default: all logits exist at once; they are computed in chunks; or the loss is fused with the output head."""
    logit_bytes: Count = 8.0
    """Bytes moved per logit around the loss, and kept if all logits exist at once."""
    logits_at_once: Bytes = 1 << 30
    """Bytes of 16-bit logits of a chunk, which are overwritten with their gradients."""
    splits_weights: bool = False
    """On one device a weight is 16 bits, with the other 16 bits of its float32 stored separately, instead of one copy of each. Gradients
    have 16 bits too if there is one micro-batch, and are allocated as activations are freed."""
    joins_products: bool = False
    """On one device, projections of the same input are one product."""
    fuses_experts: bool = False
    """The product of experts' gate and up computes the gate too, tokens are read once when they are spread over the rows of their experts,
    and products of their gradients leave the squares for the gradient norm."""
    workspace: Bytes = 0.0
    """What its kernels allocate on a GPU beside tensors, if it reports the bytes that torch has allocated: the CUDA context, which a probe
    measures, is not among them. 0: the context of the calibration; one that was fitted to its runs has its own."""
    graphs: bool = False
    """On one device a step is one CUDA graph, without CPU launch overhead."""
    separate_updates: bool = False
    """Gradient norm, clipping, update and copy back are passes over memory of their own, not one fused kernel."""
    zero: tuple[int, ...] = (1, 2, 3)
    """ZeRO stages that it offers besides 0."""
    recompute: tuple[str, ...] = ("none", "selective", "full")
    """Values of the axis `recompute` that it offers."""
    selective: Literal["core_attn", "operations"] = "core_attn"
    """Selective recomputation: attention without its projections, or every second product and all that is not a product."""
    stops_early: bool = False
    """Recomputes a layer only up to its last product, whose result no gradient needs: XLA removes it, PyTorch's checkpoint stops there."""
    unstated: tuple[str, ...] = ()
    """Its documented values of axes that a run does not state, such as "recompute=full"."""
    schedules: tuple[Literal["1f1b", "interleaved", "zero-bubble", "naive"], ...] = ("1f1b", "interleaved")
    splits_recomputed: bool = True
    """Recompute works with schedules that delay weight gradients."""
    sequence_parallel: Literal["never", "choice", "always"] = "choice"
    context_parallel: bool = True
    pads_cuts: bool = True
    """Copies KV heads and pads the vocabulary if tp does not divide them."""
    cuts_recurrence: bool = True
    """Tensor parallelism also splits the heads of recurrent layers."""
    offload: tuple[str, ...] = ()
    """Values of the axis `offload` that it offers besides none."""
    offloads_gradients: bool = False
    """Gradients leave the device with the optimizer state that is offloaded."""
    adapter_input_bytes: Count = 0.0
    """Bytes per element of the copy of its input that every adapter keeps (PEFT casts it); 0: adapters read what the layer keeps."""
    shards_nf4: bool = True
    """ZeRO 3 shards 4-bit weights like others; otherwise every rank holds them whole."""
    fuses_adapters: bool = False
    """The products of an adapter are added inside the product of its layer, not in kernels of their own; and recompute of a layer with
    adapters ends before its last product."""
    bucket: Count = 0.0
    """Parameters whose gradients are reduced in one collective; 0: those of a layer."""
    gathers_tensors: bool = False
    """Gathers updated weights (ZeRO 1 and 2) one tensor at a time, not by buckets."""
    gathers_narrow: bool = False
    """Gathers weights in the bytes of narrow products (float8 all-gather), not in `weight_bytes`."""
    overlaps_reduction: bool = True
    """Reduces gradients while the backward pass continues."""
    overlaps_replicas: bool = True
    """Sums the gradients of replicas while the backward pass continues."""
    overlaps_gather: bool = False
    """Gathers updated weights (ZeRO 1 and 2) while the next forward pass runs."""
    expert_tp: Literal["1", "tp"] = "tp"
    """Tensor parallelism of experts that a run does not state: 1, so that expert groups span tensor-parallel ranks, or the same as tp."""
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

    def default(self, axis: str) -> str:
        """Return its documented value of an axis that a run does not state; '' where none is documented."""
        return dict(pair.split("=", 1) for pair in self.unstated).get(axis, "")

    @property
    def flash_attention(self) -> bool:
        """Whether attention never writes its scores to memory."""
        return self.attention != "unfused"

    def with_compile(self) -> "Framework":
        """Return this framework with its layers compiled; itself where that is not an option."""
        fused = replace(self, unfused=self.compiled, keeps_intermediates=False, casts=min(self.casts, COMPILED_CASTS))
        fused = replace(fused, logit_bytes=min(self.logit_bytes, COMPILED_LOGIT_BYTES))
        return fused if self.compiled else self

    def on(self, kind: str) -> "Framework":
        """Return the framework as it runs on a kind of chip: without kernels and graphs that need a GPU elsewhere."""
        return self if kind == "gpu" else replace(self, splits_weights=False, joins_products=False, graphs=False, workspace=0.0)


def usual(kind: str, model_type: str, *, devices: int, nodes: int, adapts: bool = False) -> tuple[str, ...]:
    """Return the frameworks that most people use on a machine, the usual one first, then those that need less memory: a trainer of one
    process on one device, FSDP in one node, Megatron on several nodes, where it trains no adapters (`adapts`). For test-time training,
    meshwise's own trainer."""
    if model_type == "ttt":
        return ("meshwise",)
    if kind == "tpu":
        return ("maxtext",)
    if devices == 1:
        return ("accelerate", "fsdp", "deepspeed")
    if nodes > 1 and not adapts:
        return ("megatron",)
    return ("fsdp", "accelerate", "deepspeed")


@files.cached
def find_framework(name: str) -> Framework:
    """Return the framework with that name; case and punctuation do not count."""
    known = files.files("frameworks", ".toml")
    plain = files.squeeze(name)
    for key, path in known.items():
        framework = replace(records.read(Framework, files.table_of(path), path.name), key=key)
        if plain in map(files.squeeze, (key, framework.name, *framework.aliases)):
            return framework
    raise unknown("framework", name, known)
