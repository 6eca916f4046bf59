"""Framework: what a training program overlaps, stores and supports, by release, read from data/frameworks/*.toml.

The plain keys of a file are facts of the oldest release that it describes; each of its `releases` changes some of them from its date on.
`variants` are programs that train in the same way but for a few facts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from meshwise.catalogue import files, records
from meshwise.catalogue.chips import Source
from meshwise.errors import UserError, one_of, unknown
from meshwise.units import Bytes, Count

Kernel = Literal["unfused", "triton", "fa2", "fa3", "fa4", "cudnn", "xla"]
"""Attention kernels by generation. cuDNN's of 2024 and later run like fa3 on Hopper and like fa4 on Blackwell."""
KERNELS: tuple[str, ...] = get_args(Kernel)
Loss = Literal["materialised", "compiled", "kernel", "chunked", "fused"]
LOSSES: tuple[str, ...] = get_args(Loss)
Graphs = Literal["none", "partial", "full"]
GRAPHS: tuple[str, ...] = get_args(Graphs)
OVERLAPS = ("tp", "ep", "pp", "dp")  # communication that a program may hide behind compute
OVERLAP_FACTS: dict[str, tuple[str, ...]] = {
    "tp": ("overlaps_tp",), "ep": ("overlaps_experts",), "pp": ("overlaps_stages",), "dp": ("overlaps_reduction", "overlaps_gather"),
    "reduce": ("overlaps_reduction",), "gather": ("overlaps_gather",),
}  # fmt: skip
"""Facts of a Framework by word of `--overlap`: dp is the reduction of gradients and the gathering of updated weights, each a word too."""
ELEMENT_BYTES = {"fp32": 4, "bf16": 2}  # bytes per element of the dtypes in which gradients are summed and reduced
FLASH_SHARES: dict[str, dict[str, float]] = {
    "triton": {"Ampere": 0.35, "Hopper": 0.25, "Blackwell": 0.2, "": 0.3},
    "fa2": {"Ampere": 0.62, "Ada Lovelace": 0.6, "Hopper": 0.4, "Blackwell": 0.27, "CDNA 3": 0.35, "CDNA 2": 0.3, "": 0.5},
    "fa3": {"Ampere": 0.62, "Ada Lovelace": 0.6, "Hopper": 0.64, "Blackwell": 0.5, "CDNA 3": 0.4, "": 0.5},
    "fa4": {"Ampere": 0.62, "Ada Lovelace": 0.6, "Hopper": 0.64, "Blackwell": 0.65, "CDNA 3": 0.4, "": 0.5},
    "cudnn": {"Ampere": 0.62, "Ada Lovelace": 0.6, "Hopper": 0.64, "Blackwell": 0.65, "": 0.5},
    "xla": {"": 0.45},
}
"""Forward share of the 16-bit peak with heads of 128 and long sequences, by kernel and architecture. Published: FA2 230 of 312 TFLOP/s on
A100 and 350 to 400 of 989 on H100 (arXiv:2307.08691, arXiv:2407.08608); FA3 and cuDNN 570 to 740 on H100 (arXiv:2407.08608); FA4 1,500 to
1,600 of 2,250 on B200 (Hot Chips 2025). '': any other architecture."""

LOGIT_BYTES: dict[str, float] = {"materialised": 12.0, "compiled": 8.0, "kernel": 4.0, "chunked": 4.0, "fused": 4.0}
"""Bytes moved per logit around a loss of each kind: float32 logits, their log-softmax and its gradient; compiled, 16-bit logits and float32
ones or their gradient; a cross-entropy kernel, in chunks or fused with the head or not, reads 16-bit logits and overwrites them with their
gradients. Chunked and fused losses keep none of them."""
COMPILED_LOGIT_BYTES = LOGIT_BYTES["compiled"]
COMPILED_CASTS = 0.5  # `Framework.casts` where a compiler joins casts with the kernels around them


def flash_share(kernel: str, architecture: str) -> float:
    """Return the forward share of the peak that an attention kernel reaches on an architecture."""
    shares = FLASH_SHARES["fa2" if kernel == "unfused" else kernel]
    return shares.get(architecture, shares[""])


@dataclass(frozen=True)
class Release:
    """A release, or a day from which some facts hold."""

    release: str
    date: str
    """ISO day, or month."""
    source: str
    """Where its facts are stated."""
    changes: tuple[str, ...] = ()
    """The facts that it changes, as its file states them: 'overlaps_experts = true'."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Facts about a training framework. Fitted numbers are in a Calibration."""

    key: str = field(default="", metadata={"derived": True})
    program: str = field(default="", metadata={"derived": True})
    """The name by which `find_framework` finds it: its key, or the name of a variant."""
    flash_ratio: float = field(default=1.0, metadata={"derived": True})
    """Rate of its attention kernel over that of its newest release, which calibrations are of."""
    releases: tuple[Release, ...] = field(default=(), metadata={"derived": True})
    """Releases that changed a fact, the oldest first."""
    release: str = field(default="", metadata={"derived": True})
    """The release whose facts these are; '': the oldest, or no release is told apart."""
    name: str
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()
    """Other programs that train in the same way, by the names that tables of measurements use."""
    published_in: tuple[str, ...] = ()
    """Publications whose runs are of this program where they name a more general one."""
    attention: Kernel = "fa2"
    """The attention kernel, where `attention_on` names no other."""
    attention_on: tuple[str, ...] = ()
    """Attention kernels by architecture: "Hopper=fa3"."""
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
    """Its default: all logits exist at once, and a compiler or a kernel may fuse what follows; they are computed in chunks; or the loss is
    fused with the output head."""
    compiles_loss: bool = True
    """The loss is compiled with the layers."""
    logit_bytes: Count = 8.0
    """Bytes moved per logit around the loss, and kept if all logits exist at once."""
    logits_at_once: Bytes = 1 << 30
    """Bytes of 16-bit logits of a chunk, which are overwritten with their gradients."""
    splits_weights: bool = False
    """On one device a weight is 16 bits, with the other 16 bits of its float32 stored separately, instead of one copy of each. Gradients
    have 16 bits too if there is one micro-batch, and are allocated as activations are freed."""
    joins_products: bool = False
    """On one device, projections of the same input are one product."""
    graphs: Graphs = "none"
    """CUDA graphs: of layers (partial), or of a whole step, without CPU launch overhead."""
    graphs_alone: bool = False
    """Graphs are used on one device only."""
    fuses_experts: bool = False
    """The product of experts' gate and up computes the gate too, tokens are read once when they are spread over the rows of their experts,
    and products of their gradients leave the squares for the gradient norm."""
    workspace: Bytes = 0.0
    """Bytes that its kernels allocate on a GPU beside tensors, if it reports the bytes that torch has allocated: the CUDA context, which a
    probe measures, is not among them. 0: the context of the calibration; one that was fitted to its runs has its own."""
    frees_gradients: bool = False
    """Gradients exist from the backward pass that computes them to the update; otherwise in buffers that are allocated once."""
    cached: Count = 0.0
    """Bytes that the allocator keeps in blocks beyond the tensors in them, over the bytes of activations and logits, if there is room."""
    autocasts: bool = True
    """Computes under autocast: products and attention have 16 bits whatever the residual stream has. Otherwise attention and the head of a
    float32 stream are computed in float32."""
    gathers_tables: bool = False
    """Under ZeRO 3 the embedding and the head belong to the root module, which stays gathered; otherwise they are gathered like layers."""
    holds_inputs: bool = False
    """Under ZeRO 3 with frozen weights, inputs of layers and their gradients stay in memory until the backward pass ends: hooks that FSDP 1
    registers for frozen modules refer to them."""
    separate_updates: bool = False
    """Gradient norm, clipping, update and copy back are passes over memory of their own, not one fused kernel."""
    zero: tuple[int, ...] = (1, 2, 3)
    """ZeRO stages that it offers besides 0."""
    recompute: tuple[str, ...] = ("none", "selective", "full")
    """Values of the axis `recompute` that it offers."""
    selective: str = "core_attn"
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
    """Parameters whose gradients are reduced in one collective, at least; 0: those of a layer."""
    bucket_per_rank: Count = 0.0
    """`bucket` for each data-parallel rank, so that latency does not outgrow bandwidth where there are many."""
    gathers_by_rank: bool = False
    """Gathers updated weights (ZeRO 1 and 2) by broadcasts of each rank's part, one after another."""
    adapter_targets: str = ""
    """Modules that have adapters where a run names none; '': all linear layers."""
    frozen_narrow: bool = False
    """Frozen weights of products are stored in the bytes of narrow products, without a 16-bit copy."""
    ring_overhead: Count = 0.0
    """Time that attention takes longer with each doubling of the context ranks, over that of one rank, besides its traffic: shorter
    kernels, and merging their results."""
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
    overlaps_tp: bool = False
    """Hides a part of tensor-parallel communication behind products that are cut into pieces (async TP, user buffers)."""
    overlaps_stages: bool = False
    """Hides sends between pipeline stages behind other micro-batches beyond what its schedule does."""
    overlaps_experts: bool = False
    """Sends one micro-batch's tokens to their experts while another computes (DualPipe)."""
    interleaves_experts: bool = False
    """Whether it does so only between chunks of a pipeline, or without one, and never with full recompute."""
    dispatch_bytes: int = 2
    """Bytes per element of a token sent to an expert; the sum that comes back has 2."""
    communication_sms: int = 0
    """SMs that move tokens while the others compute, as long as there are tokens to move."""
    sends_once: bool = False
    """Sends a token to a node once, however many of its experts are there (DeepEP)."""
    embedding_layers: bool = False
    """Can count the embedding and the head as one layer each when it assigns layers to stages."""
    chips: tuple[str, ...] = ()
    """Kinds of chips (gpu, tpu, npu, apple, cpu) or vendors on which it trains; (): on all."""
    methods: tuple[str, ...] = ()
    """Methods of fine-tuning that it has: full, lora, dora, qlora, freeze; (): all."""
    bases: tuple[str, ...] = ()
    """Formats of a frozen base under adapters that it has besides 16 bits: nf4, nf4-single, int8, gptq, awq; (): nf4."""
    optimizers: tuple[str, ...] = ()
    """Optimizers that it has; (): all."""
    objectives: tuple[str, ...] = ()
    """Objectives that it has; (): all."""
    losses: tuple[str, ...] = ()
    """Ways to compute the loss that it has; (): all."""
    tensor_parallel: bool = True
    expert_parallel: bool = True
    replicates: bool = True
    """Data ranks can each hold the whole model (ZeRO 0)."""
    written_by: tuple[str, ...] = ()
    """Programs of `export` that write its plans, where none has its name: FSDP's are those of accelerate."""
    through: tuple[str, ...] = ()
    """Frameworks by which it can shard instead of its own way, as the Hugging Face Trainer does through DeepSpeed."""
    excludes: tuple[str, ...] = ()
    """Pairs that do not work together, such as "optimizer=adamw-8bit & offload=parameters": facts of the task (optimizer, method, base,
    objective, loss) or axes of the layout, each with its values, joined by commas."""
    pure_sharded: bool = False
    """Where ZeRO shards them, weights, gradients and moments all have 16 bits too, without a float32 copy."""
    kbit_casts: bool = False
    """Under adapters on a quantized base all other parameters (embedding, head, norms) are cast to float32, as PEFT's
    prepare_model_for_kbit_training does, and so is the stream between layers; logits are float32."""
    adapter_bytes: int = 4
    """Bytes per weight of an adapter, and of its gradient."""
    quantized_adapter_bytes: int = 0
    """`adapter_bytes` on a quantized base, where it differs; 0: the same."""
    quantizes_experts: bool = True
    """Experts of a quantized base are quantized like other linear layers. Otherwise they keep 16 bits, as the fused experts of
    transformers 5 do, which are no linear layers."""
    joins_adapters: bool = False
    """Adapters are beside joined projections (query, key and value; gate and up), each with one pair of matrices."""
    offloads_inputs: bool = False
    """With full recompute, the inputs of layers that are kept for the backward pass are in host memory."""
    updates_in_backward: bool = False
    """On one device with one micro-batch per step, full tuning can update each weight inside the backward pass, as soon as its gradient
    exists: gradients are never all in memory."""
    foreach_update: bool = False
    """The optimizer step is torch's default (foreach): it allocates one more value per trained parameter while it runs."""

    def default(self, axis: str) -> str:
        """Return its documented value of an axis that a run does not state; '' where none is documented."""
        return dict(pair.split("=", 1) for pair in self.unstated).get(axis, "")

    def trains_on(self, kind: str, vendor: str) -> bool:
        """Return whether it trains on a kind of chip of a vendor."""
        return not self.chips or kind in self.chips or vendor in self.chips

    @property
    def flash_attention(self) -> bool:
        """Whether attention never writes its scores to memory."""
        return self.attention != "unfused"

    def kernel(self, architecture: str) -> Kernel:
        """Return the attention kernel on an architecture."""
        return cast(Kernel, dict(pair.split("=", 1) for pair in self.attention_on).get(architecture, self.attention))

    @property
    def overlap(self) -> tuple[str, ...]:
        """The communication that it hides, as words of OVERLAPS."""
        hides = (self.overlaps_tp, self.overlaps_experts, self.overlaps_stages, self.overlaps_reduction)
        return tuple(word for word, hidden in zip(OVERLAPS, hides, strict=True) if hidden)

    def summed_bytes(self, precision: str) -> int:
        """Return bytes per element in which gradients are kept and summed."""
        return self.fp16_gradient_bytes if precision == "fp16" and self.fp16_gradient_bytes else self.gradient_bytes

    def wire_bytes(self, precision: str) -> int:
        """Return bytes per gradient element on the wire."""
        return min(self.reduced_bytes, self.summed_bytes(precision)) if precision == "fp16" else self.reduced_bytes

    def bytes_per_logit(self, loss: str) -> float:
        """Return bytes moved per logit with a loss of this kind: its own, or another that a run names."""
        return self.logit_bytes if loss == self.loss else LOGIT_BYTES[loss]

    def told(
        self, *, attention: str = "", overlap: str = "", graphs: str = "", gradients: str = "", modules: str = ""
    ) -> "Framework":
        """Return the framework with facts that a run states; '' leaves them as they are."""
        changes: dict[str, Any] = dict(overlap_changes(overlap))
        if attention:
            changes |= {"attention": one_of("attention kernel", attention, KERNELS), "attention_on": ()}
            changes |= {"dropout": True} if attention == "unfused" and self.flash_attention else {}
        if modules:
            changes |= {"selective": modules}
        if graphs:
            changes |= {"graphs": one_of("kind of graphs", graphs, GRAPHS), "graphs_alone": False}
        if gradients:
            size = ELEMENT_BYTES[one_of("dtype of gradients", gradients, ELEMENT_BYTES)]
            changes |= {"gradient_bytes": size, "fp16_gradient_bytes": 0, "reduced_bytes": size}
        return replace(self, **changes) if changes else self

    def with_compile(self) -> "Framework":
        """Return this framework with its layers compiled; itself where that is not an option."""
        fused = replace(self, unfused=self.compiled, keeps_intermediates=False, casts=min(self.casts, COMPILED_CASTS))
        if self.compiles_loss:
            fused = replace(fused, logit_bytes=min(self.logit_bytes, COMPILED_LOGIT_BYTES))
        return fused if self.compiled else self

    def on(self, kind: str, architecture: str = "") -> "Framework":
        """Return the framework on a kind of chip: elsewhere without kernels that need a GPU; on one with the rate of its attention."""
        if kind == "gpu" and self.program:
            rates = (flash_share(one.kernel(architecture), architecture) for one in (self, find_framework(self.program)))
            return replace(self, flash_ratio=next(rates) / next(rates))
        return self if kind == "gpu" else replace(self, splits_weights=False, joins_products=False, graphs="none", workspace=0.0)


def overlap_changes(text: str) -> dict[str, bool]:
    """Return the facts that words such as 'ep,tp,no-dp' change: what they do not name stays."""
    changes: dict[str, bool] = {}
    for word in filter(None, re.split(r"[\s,+]+", text.lower())):
        plain = word.removeprefix("no-")
        if word == "none":
            changes |= dict.fromkeys((name for facts in OVERLAP_FACTS.values() for name in facts), False)
            continue
        changes |= dict.fromkeys(OVERLAP_FACTS[one_of("overlap", plain, OVERLAP_FACTS)], plain == word)
    return changes


def overlap_text(changes: Mapping[str, bool]) -> str:
    """Return facts in the words of `--overlap`: the other way of `overlap_changes`."""
    words: list[str] = []
    left = dict(changes)
    for word, facts in OVERLAP_FACTS.items():
        hidden = {left.get(name) for name in facts}
        if len(hidden) == 1 and hidden != {None}:
            words.append(word if hidden == {True} else f"no-{word}")
            left = {name: value for name, value in left.items() if name not in facts}
    return ",".join(words)


TUNERS = {
    "gpu": ("trl", "unsloth", "axolotl", "llama-factory", "torchtune", "ms-swift", "automodel", "meshwise"),
    "apple": ("mlx-lm",),
    "npu": ("llama-factory", "ms-swift"),
    "tpu": ("maxtext",),
    "cpu": ("trl", "meshwise"),
}
"""Programs that fine-tune, by the kind of chip on which people use them, the usual one first."""


def tuners(kind: str, vendor: str, model_type: str) -> tuple[str, ...]:
    """Return the programs that fine-tune on a kind of chip, the usual one first: Optimum Habana, which is DeepSpeed, on Gaudi, and
    meshwise's own trainer for test-time training. None where no program is known."""
    if model_type == "ttt":
        return ("meshwise",)
    if kind == "npu" and vendor == "Intel":
        return ("deepspeed",)
    return tuple(name for name in TUNERS.get(kind, ()) if find_framework(name).trains_on(kind, vendor))


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


OLDEST = "2010-01-01"  # a day before every release


SHARDING_FACTS = (
    "gradient_bytes", "fp16_gradient_bytes", "master_gradient_bytes", "reduced_bytes", "shards_master", "pure_unsharded", "pure_sharded",
    "bucket", "bucket_per_rank", "overlaps_reduction", "overlaps_gather", "zero", "schedules", "context_parallel", "tensor_parallel",
    "offload", "offloads_gradients", "shards_partly", "shards_nf4", "foreach_update",
    "frees_gradients", "gathers_tables", "holds_inputs", "excludes",
)  # fmt: skip
"""Facts of the framework through which a program shards."""


def _through(own: Framework, other: Framework) -> Framework:
    """Return a program that shards through another framework; its data ranks have no replicas then, which are its own way."""
    if other.program not in own.through:
        raise UserError(f"{own.name} does not shard through {other.name}; expected {' or '.join((own.program, *_ways(own)))}")
    facts: dict[str, Any] = {name: getattr(other, name) for name in SHARDING_FACTS}
    title, program = f"{own.name} with {other.name}", f"{own.program}+{other.program}"
    return replace(own, key=other.key, name=title, program=program, replicates=False, through=(), **facts)


def _ways(framework: Framework) -> tuple[str, ...]:
    return tuple(f"{framework.program}+{name}" for name in framework.through)


def ways(name: str) -> tuple[str, ...]:
    """Return the names of a program in each way that it can shard: 'axolotl' and 'axolotl+deepspeed'."""
    return (name, *_ways(find_framework(name)))


@files.cached
def find_framework(name: str, release: str = "") -> Framework:
    """Return the framework with that name; case and punctuation do not count. 'axolotl+deepspeed' is Axolotl that shards through
    DeepSpeed. `release`: a release, or a day, of which it has the facts; '': its newest."""
    own, plus, other = name.partition("+")
    if plus:
        return _through(find_framework(own, release), find_framework(other))
    known = files.files("frameworks", ".toml")
    plain = files.squeeze(name)
    for key, path in known.items():
        for facts in _programs(files.table_of(path)):
            if plain in map(files.squeeze, _names(key, facts)):
                return _released(key, facts, path.name, release)
    raise unknown("framework", name, known)


def names() -> dict[str, str]:
    """Return every name of every framework and variant, each with the name by which `find_framework` finds it."""
    found: dict[str, str] = {}
    for key, path in files.files("frameworks", ".toml").items():
        for facts in _programs(files.table_of(path)):
            own = _names(key, facts)
            found |= dict.fromkeys(own, own[0])
    return found


@files.cached
def _publishers() -> dict[str, str]:
    """Return the programs that publications ran, each by a name that `find_framework` finds."""
    programs = (find_framework(name) for name in dict.fromkeys(names().values()))
    return {words: framework.name for framework in programs for words in framework.published_in}


def published(source: str, stated: Framework | None) -> Framework | None:
    """Return the program of a run: the one that its publication ran, where that is a form of the stated one, as NeMo is of Megatron."""
    if stated is None or stated.key not in GENERAL_PROGRAMS:
        return stated
    return next((find_framework(name) for words, name in _publishers().items() if words in source), stated)


GENERAL_PROGRAMS = ("megatron", "megatron-bridge", "megatron-deepspeed")
"""Programs whose names stand for all that are built on them."""


def _names(key: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the program of these facts; a variant does not have the key of its file."""
    own = cast(Mapping[str, Any], facts.get("variant") or facts)
    named = (str(own.get("name", "")), *own.get("aliases", ()))
    return named if own is not facts else (key, *named)


def _programs(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of the framework of a file, and of its variants, which keep those that they do not change."""
    plain = {key: value for key, value in table.items() if key != "variants"}
    variants = cast(list[dict[str, Any]], table.get("variants", []))
    return [plain, *(plain | {"aliases": [], "variant": one} for one in variants)]


def _released(key: str, facts: Mapping[str, Any], where: str, release: str) -> Framework:
    """Return a framework with the facts of a release. A variant changes those of its framework's releases, and has further ones."""
    variant = cast(Mapping[str, Any], facts.get("variant", {}))
    entries, own = _entries(facts, where), _entries(variant, where)
    known = tuple(sorted((one for one, _ in entries + own), key=lambda one: one.date))
    used = known[: _until(known, release)] if release else known
    base = {name: value for name, value in facts.items() if name not in ("releases", "variant")}
    base = _changed(base, entries, used) | {name: value for name, value in variant.items() if name not in ("releases", "sources")}
    base = _changed(base, own, used)
    if variant.get("sources"):
        base["sources"] = [*base.get("sources", []), *variant["sources"]]
    program = _names(key, facts)[-1 if variant else 0]
    return replace(
        records.read(Framework, base, where), key=key, program=program, releases=known, release=used[-1].release if used else ""
    )


RELEASE_KEYS = ("release", "date", "source")  # keys of an entry of `releases` that are no facts


def _entries(facts: Mapping[str, Any], where: str) -> list[tuple[Release, dict[str, Any]]]:
    """Return the releases that facts list, the oldest first, each with the facts that it changes."""
    found: list[tuple[Release, dict[str, Any]]] = []
    for entry in cast(list[dict[str, Any]], facts.get("releases", [])):
        told = {name: value for name, value in entry.items() if name in RELEASE_KEYS}
        changes = {name: value for name, value in entry.items() if name not in RELEASE_KEYS}
        release = records.read(Release, told, f"{where}: releases")
        words = tuple(f"{name} = {json.dumps(value)}" for name, value in changes.items())
        found.append((replace(release, changes=words), changes))
    return sorted(found, key=lambda pair: pair[0].date)


def _changed(facts: dict[str, Any], entries: list[tuple[Release, dict[str, Any]]], used: tuple[Release, ...]) -> dict[str, Any]:
    """Return facts as the used ones of the releases change them."""
    for release, changes in entries:
        if release in used:
            facts = facts | changes
    return facts


def filter_frameworks(words: str) -> list[str]:
    """Return the framework or variant that is called `words`, else all with every word in one of their names."""
    known: dict[str, list[str]] = {}
    for name, program in names().items():
        known.setdefault(program, []).append(name)
    exact = [program for program, own in known.items() if files.squeeze(words) in map(files.squeeze, own)]
    return exact or files.matching(words, known, known)


_DAY = re.compile(r"(?<!\d)(20[12]\d)(?:[-./]?(0\d|1[0-2]))?(?:[-./](\d\d))?(?!\d)")
_VERSION = re.compile(r"\d+(?:\.\d+)+")


def _until(known: tuple[Release, ...], release: str) -> int:
    """Return how many of the releases, the oldest first, a run of `release` has: those up to it, or up to a day that it states."""
    names = [one.release for one in known]
    plain = release.lower().removeprefix("v")
    if plain in names:
        return names.index(plain) + 1
    day = _DAY.fullmatch(plain)
    if not day:
        raise unknown("release", release, names, " (or a day, such as 2025-06)")
    return sum(one.date <= f"{day[1]}-{day[2] or '12'}-{day[3] or '31'}" for one in known)


def release_in_text(framework: Framework, text: str) -> str:
    """Return the release, or the day, that a text states ('26.02.01 NeMo Container', '2024-07'): of releases with numbers the latest that
    is not later; '' where it states none."""
    day, version = _DAY.search(text), _VERSION.search(text)
    if day:
        return "-".join(filter(None, day.groups()))
    numbered = [(_numbers(one.release), one.release) for one in framework.releases if _VERSION.fullmatch(one.release)]
    if not version or not numbered:
        return ""
    return max(((n, name) for n, name in numbered if n <= _numbers(version[0])), default=((), OLDEST))[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
