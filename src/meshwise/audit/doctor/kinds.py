"""The part of a step that a kernel or operator belongs to, by its name, and windows of time in which names mean something else."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.timeline import Floats, Lane, Timeline

COMPUTE = ("matmul", "attention", "elementwise", "loss", "optimizer")
COMMUNICATION = ("dp", "tp", "cp", "ep", "p2p")
IDLE = ("launch", "data", "sync", "allocator", "compile", "save", "wait")
PARTS = (*COMPUTE, *COMMUNICATION, "copy", *IDLE)
WORDS = {
    "matmul": "matrix products", "attention": "attention", "elementwise": "norms, activations, casts", "loss": "loss",
    "optimizer": "optimizer", "dp": "gradients and weights between ranks, exposed", "tp": "tensor-parallel communication, exposed",
    "cp": "context-parallel communication, exposed", "ep": "expert all-to-all, exposed", "p2p": "pipeline sends, exposed",
    "copy": "copies between host and device", "launch": "idle: the host was late", "data": "idle: waiting for data",
    "sync": "idle: the host waited for the device", "allocator": "idle: allocating memory", "compile": "idle: compiling",
    "save": "idle: writing files", "wait": "idle: waiting for another stream",
}  # fmt: skip
# Names of cuBLAS, CUTLASS, rocBLAS, flash-attention, NCCL, RCCL, ATen and our own trainer's kernels as profilers show them.
NAMES = (
    ("communication", r"nccl|rccl|gloo:|all_?reduce|all_?gather|reduce_?scatter|sendrecv|all_?to_?all|c10d::|_c10d_functional|broadcast_$"),
    ("attention", r"flash|fmha|attention|sdpa|cudnn.*mha|ScaledDotProduct|compute_dot_do_o|convert_dq|^wide_(?:forward|delta|scores|by_)"),
    ("optimizer", r"adam|multi_tensor_apply|_foreach|optimizer|addcdiv|addcmul|lerp|lion_|^_update$|^_squares$"),
    ("loss", r"cross_entropy|log_softmax|logsoftmax|nll_loss|logsumexp|SoftMaxForward|SoftMaxBackward|^_rows$|^_times$"),
    ("matmul", r"gemm|cutlass|cublas|nvjet|xmma|wgmma|Cijk_|matmul|splitKreduce|triton_tem|grouped_mm|^_by_rows$|^_by_weights$|^_gated$"
               r"|aten::(?:mm|addmm|bmm|baddbmm|linear|_scaled_mm)$|mkldnn.*linear|mkl_linear|convolution"),
)  # fmt: skip
ELEMENTWISE, COMMS = "elementwise", "communication"
WINDOWS = {
    "data": r"enumerate\(DataLoader\)|dataloader\.py.*__next__|^data$",
    "compile": r"entire_frame_compile|entire_backward_compile|compile_inner|inductor_compile|dynamo_timed",
    "save": r"(?:serialization|safetensors).*save|save_checkpoint|checkpoint.*save|^checkpoint$|torch\.save",
    "optimizer": r"^Optimizer\.step|^optimizer$|optimizer_step",
    "attention": r"scaled_dot_product|flash_attn|ScaledDotProduct|FlashAttn|flex_attention",
    "loss": r"cross_entropy|nll_loss|NllLoss|LogSoftmax|log_softmax|logsumexp|Logsumexp",
    "backward": r"^autograd::engine::evaluate_function|^backward$|CompiledFunctionBackward",
}
"""Marks and operators whose whole time belongs to one cause, part or phase."""


def kinds_of(timeline: Timeline) -> NDArray[np.int64]:
    """Return, by number of a name, the index of its part in NAMES; len(NAMES) is elementwise."""
    found = np.full(max(1, len(timeline.names)), len(NAMES))
    for index, (_, pattern) in reversed(list(enumerate(NAMES))):
        found[timeline.matching(pattern)] = index
    return found


def windows(timeline: Timeline) -> dict[str, Cover]:
    """Return the time that marks and operators of each kind cover."""
    made: dict[str, Cover] = {}
    for kind, pattern in WINDOWS.items():
        lanes = [timeline.named(timeline.marks, pattern), timeline.named(timeline.ops, pattern)]
        made[kind] = Cover.of(np.concatenate([lane.start for lane in lanes]), np.concatenate([lane.end for lane in lanes]))
    if not len(made["optimizer"].start):
        made["optimizer"] = Cover.of(*runs(timeline, UPDATES, CHANGES, MIN_CHANGES))
    return made


UPDATES = r"^aten::(?:(?:add|sub|mul|div|addcmul|addcdiv|lerp|sqrt|neg|pow|square|sign|maximum)_?|copy_|to|_to_copy|empty\w*|result_type" \
          r"|zeros_like|zero_|fill_|detach|alias|clone|item|_local_scalar_dense|lift_fresh)$|^detach$"  # fmt: skip
CHANGES = r"^aten::(?:add|sub|addcdiv|lerp|copy)_$"
MIN_CHANGES = 8
"""Operators that an update of weights without torch's optimizers is made of, those that write a weight, and how many write at least."""


def runs(timeline: Timeline, made_of: str, counted: str, least: int, without: Cover | None = None) -> tuple[Floats, Floats]:
    """Return start and end of unbroken rows of operators of one thread whose names match, with so many at least that are counted and have
    tensors. `without`: times of others."""
    ops = timeline.ops
    order = np.lexsort((ops.start, ops.lane))
    kept, weights = timeline.matching(made_of)[ops.name[order]], timeline.matching(counted)[ops.name[order]]
    kept &= ~without.holds(ops.start[order]) if without else True
    sized = np.array([any(detail.dims[:1]) and bool(detail.dims[0]) for detail in timeline.details] or [False])
    weights &= (ops.detail[order] >= 0) & sized[np.maximum(ops.detail[order], 0)]
    breaks = np.flatnonzero(~kept | (np.diff(ops.lane[order], prepend=-1) != 0))
    bounds = np.unique(np.concatenate([[0], breaks, breaks + 1, [len(order)]]).clip(0, len(order)))
    total = np.concatenate([[0], np.cumsum(weights & kept)])
    found = [(low, high) for low, high in pairwise(bounds) if total[high] - total[low] >= least]
    first, last = (
        np.array([ops.start[order[low]] for low, _ in found]),
        np.array([ops.end[order[low:high]].max() for low, high in found]),
    )
    return first, last


MIN_SCORES = 16  # queries and keys from which on a softmax is one of attention


def score_details(timeline: Timeline) -> NDArray[np.bool_]:
    """Return, by number of a detail, whether it has the scores of attention (queries x keys) as an input or as its product. Scores are
    what a softmax over a tensor of four dimensions reads, or of three where a product of batches makes it, as it never makes logits."""
    softmax = timeline.named(timeline.ops, r"^aten::_?softmax$|_softmax_backward|scaled_masked_softmax|scaled_upper_triang")
    products = [_product(detail.dims) for detail in timeline.details]
    sizes: set[tuple[int, int]] = set()
    for number in np.unique(softmax.detail[softmax.detail >= 0]):
        for dims in timeline.details[int(number)].dims[:1]:
            size = (math.prod(dims), dims[-1] if dims else 0)
            if (len(dims) > 3 or (len(dims) == 3 and size in products)) and min(dims[-2:]) >= MIN_SCORES:
                sizes.add(size)
    return np.array(
        [
            product in sizes or any(len(one) >= 3 and (math.prod(one), one[-1]) in sizes for one in detail.dims)
            for detail, product in zip(timeline.details, products, strict=True)
        ]
        or [False]
    )


def _product(dims: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Return the numbers and the columns of what the last two of three dimensions multiply to; none if there are no such."""
    pairs = [one for one in dims if len(one) == 3][-2:]
    fits = len(pairs) == 2 and pairs[0][0] == pairs[1][0] and pairs[0][2] == pairs[1][1]
    return (pairs[0][0] * pairs[0][1] * pairs[1][2], pairs[1][2]) if fits else (0, 0)


def parts_of(
    timeline: Timeline, lane: Lane, at: NDArray[np.float64], cover: dict[str, Cover], details: NDArray[np.int64]
) -> NDArray[np.str_]:
    """Return the part of each operation that the host started `at`; communication is one part here."""
    words = np.array([*(name for name, _ in NAMES), ELEMENTWISE])
    parts = words[kinds_of(timeline)[lane.name]] if len(lane) else np.zeros(0, words.dtype)
    scores = score_details(timeline)
    scored = (details >= 0) & scores[np.maximum(details, 0)]
    plain = parts != COMMS
    parts = np.where(plain & (cover["loss"].holds(at) & (parts != "matmul")), "loss", parts)
    parts = np.where(plain & (scored | cover["attention"].holds(at)), "attention", parts)
    return np.where(plain & cover["optimizer"].holds(at), "optimizer", parts)
