"""Other tools' published formulas of training time and memory, in our own words, on a measured run. None: the tool does not answer it.

No code is copied. Where a constant was recalled rather than read, its comment says so. Seconds per step, bytes of the fullest device.
"""

from collections.abc import Callable
from dataclasses import dataclass

from meshwise.runs.train.case import Case

Answer = Callable[[Case], "float | None"]
FIXED_MFU = 0.4
"""MFU that people assume in a back-of-the-envelope estimate."""
LLM_ANALYSIS_EFFICIENCY = 0.5
"""llm-analysis: the flops efficiency that its README's examples assume."""
LINK_EFFICIENCY = 0.65
"""calculon: share of a link's bandwidth in its a100 systems (recalled)."""
MATRIX_EFFICIENCY = 0.8
"""calculon: efficiency of its a100 system for matrix products of 16 GFLOP (recalled); it rises to 0.99 from 128."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run that the formulas share."""

    case: Case
    dp: int
    tp: int
    pp: int
    micro_batches: float
    recompute: bool
    flops: float
    """FLOPs of a step per device, attention included, without recomputation."""
    peak: float
    layers: int
    hidden: int
    heads: int


def sizes(case: Case) -> Sizes | None:
    """Return the sizes; None for runs beyond these tools: experts, context parallelism, offload, adapters, optimizers other than AdamW,
    and layouts that are not stated."""
    axes, decoder = case.layout, case.model.decoder
    work = case.work
    other = work.finetune.adapts or work.objective.name != "sft" or work.optimizer != "adamw" or work.in_backward
    if axes.get("offload") or axes.get("cp", 1) > 1 or axes.get("ep", 1) > 1 or not axes.get("mbs") or other:
        return None
    tp, pp = axes["tp"], axes["pp"]
    dp = max(1, case.cluster.devices // (tp * pp * axes.get("cp", 1)))
    peak = case.chip.flops.get("bf16") or case.chip.flops.get("fp16")
    if not peak or case.work.precision not in ("bf16", "fp16"):
        return None
    batch = float(case.work.batch)  # pyright: ignore[reportArgumentType]
    flops = float(case.model.flops(float(case.work.batch_tokens), case.work.seq)) / case.cluster.devices  # pyright: ignore[reportArgumentType]
    return Sizes(
        case, dp, tp, pp, max(1.0, batch / dp / axes["mbs"]), axes.get("recompute", 0) == 2, flops, peak,
        len(case.model.layers), decoder.hidden, decoder.heads,
    )  # fmt: skip


def thumb(case: Case) -> float | None:
    """6 N D at a fixed MFU of the datasheet's bf16 peak (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""
    peak = case.chip.flops.get("bf16") or case.chip.flops.get("fp16")
    tokens = float(case.work.batch_tokens)  # pyright: ignore[reportArgumentType]
    return 6 * case.model.active_params * tokens / (case.cluster.devices * peak * FIXED_MFU) if peak else None


def tensor_seconds(s: Sizes, efficiency: float) -> float:
    """All-reduces of tensor parallelism: two forward and two backward per layer and micro-batch (arXiv:1909.08053, section 3)."""
    link = s.case.cluster.node.link or s.case.chip.host
    if s.tp == 1 or link is None:
        return 0.0
    message = 2.0 * s.case.layout["mbs"] * s.case.work.seq * s.hidden
    count = (4 + 2 * s.recompute) * s.layers / s.pp * s.micro_batches
    return count * 2 * message * (s.tp - 1) / s.tp / (link.bandwidth * efficiency)


def llm_analysis(case: Case) -> float | None:
    """llm-analysis (github.com/cli99/llm-analysis): FLOPs at a fixed efficiency and tensor-parallel traffic; no bubble, no exposed
    gradients."""
    s = sizes(case)
    if s is None:
        return None
    return s.flops * (4 / 3 if s.recompute else 1) / (s.peak * LLM_ANALYSIS_EFFICIENCY) + tensor_seconds(s, 1.0)


def calculon(case: Case) -> float | None:
    """calculon (Isaev et al. 2023, SC'23): efficient products, element-wise traffic, tensor- and data-parallel traffic and the bubble
    (pp - 1) / (m v)."""
    s = sizes(case)
    if s is None:
        return None
    compute = s.flops * (4 / 3 if s.recompute else 1) / (s.peak * MATRIX_EFFICIENCY)
    passes = 3 + s.recompute
    elements = 34 / 2 * s.case.work.seq * s.case.layout["mbs"] * s.hidden / s.tp * s.layers / s.pp * s.micro_batches
    vector = passes * 2 * elements / (s.case.chip.bandwidth * MATRIX_EFFICIENCY)
    bubble = (s.pp - 1) / (s.micro_batches * max(1, s.case.layout.get("vpp", 1)))
    shared = 2.0 * s.case.model.params / (s.tp * s.pp)
    network = s.case.cluster.network.bandwidth / s.case.cluster.node.devices if s.case.cluster.network else s.case.chip.bandwidth
    gradients = 2 * shared * (s.dp - 1) / s.dp / (network * LINK_EFFICIENCY) if s.dp > 1 else 0.0
    return (compute + vector + tensor_seconds(s, LINK_EFFICIENCY)) * (1 + bubble) + gradients


def states(s: Sizes) -> float:
    """Bytes of weights, gradients and optimizer state in mixed precision with ZeRO (arXiv:1910.02054, figure 1)."""
    stage, params = s.case.layout.get("zero", 0), s.case.model.params / (s.tp * s.pp)
    weights, gradients, optimizer = 2 * params, 2 * params, 12 * params
    return (
        weights / (s.dp if stage >= 3 else 1) + gradients / (s.dp if stage >= 2 else 1) + optimizer / (s.dp if stage >= 1 else 1)
    )


def activations(s: Sizes) -> float:
    """Bytes of activations (Korthikanti et al. 2022, arXiv:2205.05198, table 2): sbh (10 + 24 / t + 5 a s / h t) a layer, without the
    last term where attention is fused, of as many micro-batches as there are stages; 2 sbh with full recomputation."""
    tokens = s.case.work.seq * s.case.layout["mbs"]
    scores = (
        5 * s.heads * s.case.work.seq / s.hidden / s.tp
        if s.case.work.framework.kernel(s.case.chip.architecture) == "unfused"
        else 0.0
    )
    layer = 2.0 * tokens * s.hidden if s.recompute else tokens * s.hidden * (10 + 24 / s.tp + scores)
    return layer * s.layers / s.pp * min(s.pp, s.micro_batches)


def analysed_memory(case: Case) -> float | None:
    """Memory as llm-analysis and calculon add it up: states and activations, without context and allocator."""
    s = sizes(case)
    return states(s) + activations(s) if s is not None else None


def deepspeed_memory(case: Case) -> float | None:
    """DeepSpeed's estimators of model states (its documentation, "Memory Requirements"): stage 2: 4 N + 16 N / devices; stage 3:
    18 N / devices and the largest layer in 16 and 32 bits. Activations are left to the user."""
    s = sizes(case)
    if s is None or s.tp * s.pp > 1 or case.layout.get("zero", 0) < 2:
        return None
    params = float(case.model.params)
    if case.layout["zero"] == 2:
        return 4 * params + 16 * params / s.dp
    largest = params / max(1, s.layers)
    return 18 * params / s.dp + 4 * largest


def accelerate_memory(case: Case) -> float | None:
    """`accelerate estimate-memory` 1.15, training with Adam in mixed precision: its largest figure, the optimizer's, is twice the weights
    in 32 bits; one device, no activations."""
    s = sizes(case)
    return 8.0 * case.model.params if s is not None and case.cluster.devices == 1 else None


LLAMA_FACTORY = {"full": 18.0, "lora": 2.0, "qlora-8": 1.0, "qlora-4": 0.5}
"""GB per billion parameters by method (LLaMA-Factory's README, "Hardware Requirement": 18x, 2x, x, x/2; recalled)."""


def llama_factory_memory(case: Case) -> float | None:
    """LLaMA-Factory's table of estimated memory: a factor a method, whatever the length and batch; one device."""
    if case.cluster.devices > 1 or case.work.objective.name != "sft":
        return None
    tuned = case.work.finetune
    if not tuned.adapts:
        method = "full"
    elif not tuned.base or "16" in tuned.base:
        method = "lora"
    else:
        method = "qlora-8" if "8" in tuned.base else "qlora-4"
    return LLAMA_FACTORY[method] * float(case.model.params)


TIMES: dict[str, Answer] = {"6ND at 40% MFU": thumb, "llm-analysis' formulas": llm_analysis, "calculon's formulas": calculon}
MEMORIES: dict[str, Answer] = {
    "llm-analysis' formulas": analysed_memory, "DeepSpeed's estimators": deepspeed_memory, "accelerate estimate-memory": accelerate_memory,
    "LLaMA-Factory's table": llama_factory_memory,
}  # fmt: skip
