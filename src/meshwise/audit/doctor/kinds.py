"""The part of a step that a kernel or operator belongs to, by its name, and windows of time in which names mean something else."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math

import numpy as np
from numpy.typing import NDArray

from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.timeline import Lane, Timeline

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
    "save": r"serialization\.py.*save|save_checkpoint|checkpoint.*save|^checkpoint$|torch\.save",
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
    return made


def score_details(timeline: Timeline) -> NDArray[np.bool_]:
    """Return, by number of a detail, whether it has the scores of attention (queries x keys) as an input or as its product. Scores are
    what a softmax over a tensor of four dimensions reads, or of three where a product of batches makes it."""
    softmax = timeline.named(timeline.ops, r"^aten::_?softmax$|_softmax_backward|scaled_masked_softmax|scaled_upper_triang")
    sizes: set[tuple[int, int]] = set()
    for number in np.unique(softmax.detail[softmax.detail >= 0]):
        for dims in timeline.details[int(number)].dims[:1]:
            if len(dims) >= 3 and dims[-2] >= MIN_SCORES and dims[-1] >= MIN_SCORES:
                sizes.add((math.prod(dims), dims[-1]))
    return np.array([_makes(sizes, detail.dims) for detail in timeline.details] or [False])


MIN_SCORES = 16  # queries and keys from which on a softmax is one of attention


def _makes(sizes: set[tuple[int, int]], dims: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether one of the inputs is a matrix of scores, or the product of the last two is."""
    if not sizes:
        return False
    if any(len(one) >= 3 and (math.prod(one), one[-1]) in sizes for one in dims):
        return True
    pairs = [one for one in dims if len(one) == 3]
    return len(pairs) >= 2 and (pairs[0][0] * pairs[0][1] * pairs[1][2], pairs[1][2]) in sizes


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
