"""Faults in what the device computes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.profile import HALF, Evidence, Product
from meshwise.cost.train.compute import product

FUSED_ATTENTION = r"flash|fmha|efficient_attention|cudnn_attention|cudnn.*sdpa|sdpa.*cudnn|flex_attention|^wide_"
MIN_SHARE = 0.03  # share of a step below which a part is not worth a finding
TF32_MARGIN = 1.1  # rate of float32 products over that of the units without TF32 up to which they do not use it
FUSED_UPDATE = r"fused|^_update$|triton_"
POINTWISE = r"^aten::(?:add|sub|mul|div|addcmul|addcdiv|lerp|sqrt|rsqrt|pow|square|sign|neg|maximum|where)_?$|elementwise"
LOOPED_SAVING, LISTED_SAVING = 0.6, 0.3
"""Share of an update that one fused kernel saves, which reads and writes every number once: AdamW by one operator per tensor and operation
moves 17 tensors instead of 7, by lists of tensors about 10."""
MIN_UPDATES, LEAST_UPDATE = (
    8,
    0.005,
)  # operations of an update, and its share of a step, below which it does not matter how it is written
MAX_LOSS_PASSES = 8.5
"""Operations over all logits in one micro-batch up to which a loss is usual: torch's own has four, and casts to float32 double them."""
FUSED_LOSS_PASSES = 3
WHOLE_PASS = 0.08  # time of an operation over that of the longest one on logits from which on it reads or writes all of them
HEAD_SIZES = (16, 32, 64, 96, 128, 192, 256)
"""Sizes of a head for which attention kernels are built; others are padded to the next one."""
SLOW_CHIP, SLOW_SHAPE = 1.35, 1.2  # measured over predicted seconds of products, from which on a chip or an odd shape is slow
MIN_PRODUCT_SECONDS = 50e-6
SKEW, LEAST_ROUTED = 2.0, 0.01  # rows of the fullest expert over the mean, and their share of a step, from which on it matters
MIN_EXPERTS = 4
BELOW = 1.6


def no_flash_attention(e: Evidence) -> Iterator[Fault]:
    """Scores of attention are written to memory."""
    pieces = e.split.pieces
    mixed = pieces.part == "attention"
    total = e.seconds(mixed)
    if total < MIN_SHARE * e.step or (mixed & e.names(FUSED_ATTENTION)).any():
        return
    softmax = mixed & e.names(r"softmax")
    if not softmax.any():
        return
    products = mixed & e.names(r"gemm|cutlass|nvjet|xmma|aten::bmm|aten::baddbmm|aten::mm")
    lost = total - e.seconds(products)
    yield Fault(
        "no flash attention", "certain", lost,
        f"attention writes its scores to memory: {milliseconds(lost)} of its {milliseconds(total)} a step are softmax, masks and copies of "
        "them",
        "use torch's scaled_dot_product_attention without a mask of its own (is_causal=True), or attn_implementation='sdpa' or "
        "'flash_attention_2'",
        f"{int(softmax.sum() / e.count)} softmax kernels over scores a step, and no fused attention kernel",
    )  # fmt: skip


def wide_products(e: Evidence) -> Iterator[Fault]:
    """Products in float32 on a chip with units for 16 bits."""
    if not e.timeline.on_gpu or not e.device or e.device.peak < 2 * e.device.vector:
        return
    wide = [one for one in e.profile.products if one.dtype == "float" and one.should_be]
    seconds, flops = sum(one.seconds for one in wide), sum(one.flops for one in wide)
    if seconds < 2 * MIN_SHARE * e.step:
        return
    lost = seconds - sum(one.should_be for one in wide)
    rate = flops / seconds
    off = rate < TF32_MARGIN * e.device.vector
    name = "TF32 off" if off else "float32 products"
    yield Fault(
        name, "certain", max(0.0, lost),
        f"matrix products are in float32{' without TF32' if off else ''}: {rate / 1e12:.3g} TFLOP/s, where 16 bits reach "
        f"{flops / max(1e-12, sum(one.should_be for one in wide)) / 1e12:.3g} for these shapes",
        "train in bfloat16 (torch.autocast, or mixed_precision='bf16')"
        + ("; if it must be float32, torch.set_float32_matmul_precision('high')" if off else ""),
        f"{milliseconds(seconds)} a step in products of float32 inputs",
    )  # fmt: skip


def slow_update(e: Evidence) -> Iterator[Fault]:
    """An optimizer that runs one kernel per tensor and operation, or by lists of tensors."""
    update = e.split.pieces.part == "optimizer"
    loops, lists = update & e.names(POINTWISE), update & e.names(r"multi_tensor_apply|_foreach")
    if (update & e.names(FUSED_UPDATE)).any() or loops.sum() + lists.sum() < MIN_UPDATES * e.count:
        return
    windows = e.split.cover["optimizer"]
    idle = float(windows.inside(*e.split.gaps).sum()) / e.count if len(e.split.gaps[0]) else 0.0
    seconds, by_lists = e.seconds(update) + idle, e.seconds(lists) > 0.5 * e.seconds(update)
    if seconds < LEAST_UPDATE * e.step:
        return
    lost = (LISTED_SAVING if by_lists else LOOPED_SAVING) * e.seconds(update) + (0.0 if by_lists else 0.9 * idle)
    certain = e.timeline.on_gpu and not by_lists  # on a CPU loops are the default, and threads make up for a part
    yield Fault(
        "no fused optimizer", "unusual" if lost < 0.5 * MIN_SHARE * e.step else "certain" if certain else "likely", lost,
        f"the optimizer updates {'by lists of tensors' if by_lists else 'tensor by tensor'}: {update.sum() / e.count:.0f} "
        f"{'kernels' if e.timeline.on_gpu else 'operators'} and {milliseconds(seconds)} a step",
        "pass fused=True to the optimizer (foreach=True where it has no fused kernel)",
        f"{(loops | lists).sum() / e.count:.0f} of them compute, none of them fused",
    )  # fmt: skip


def eager_loss(e: Evidence) -> Iterator[Fault]:
    """A loss that passes over all logits many times."""
    t, pieces = e.timeline, e.split.pieces
    vocabulary = _logits(e)
    if not vocabulary:
        return
    rows, size = vocabulary
    logits = np.array(
        [
            any(len(one) in (2, 3) and one[-1] == size and int(np.prod(one)) >= 0.9 * rows * size for one in d.dims)
            for d in t.details
        ]
    )
    over = (pieces.detail >= 0) & logits[np.maximum(pieces.detail, 0)] & (pieces.part != "matmul") & (pieces.part != "optimizer")
    over &= pieces.part != "attention"
    lengths = pieces.seconds[over]
    read = (
        int((lengths > WHOLE_PASS * lengths.max()).sum()) if len(lengths) else 0
    )  # views and small results do not pass over them
    seconds, passes = e.seconds(over), read / e.count / max(1, e.profile.micro_batches)
    if passes <= MAX_LOSS_PASSES or seconds < MIN_SHARE * e.step:
        return
    lost = float(seconds * (1 - FUSED_LOSS_PASSES / passes))
    yield Fault(
        "eager loss", "certain" if passes > 2 * MAX_LOSS_PASSES else "likely", lost,
        f"the loss passes {passes:.0f} times over {rows:,} x {size:,} logits: {milliseconds(seconds)} a step",
        "compute the loss with one fused or compiled kernel (torch.compile, Liger, cut cross-entropy), in chunks of the tokens",
        f"{passes:.0f} operations on tensors of {size:,} columns in a micro-batch; a fused loss has {FUSED_LOSS_PASSES}",
    )  # fmt: skip


def _logits(e: Evidence) -> tuple[int, int] | None:
    """Return rows and columns of the largest product: the head's, where it is wider than any other."""
    wide = [one for one in e.profile.products if one.batch == 1 and one.n > 2 * one.k]
    head = max(wide, key=lambda one: one.n, default=None)
    return (head.m, head.n) if head else None


def head_size(e: Evidence) -> Iterator[Fault]:
    """A size of attention heads that kernels pad, or cannot use at all."""
    ops = e.ops(r"^aten::scaled_dot_product_attention$|_scaled_dot_product_.*attention|_flash_attention_forward")
    sizes = {dims[-1] for number in np.unique(ops.detail[ops.detail >= 0]) for dims in e.timeline.details[int(number)].dims[:1]
             if len(dims) == 4}  # fmt: skip
    mixed = e.seconds(e.split.pieces.part == "attention")
    for size in sizes:
        padded = next((one for one in HEAD_SIZES if one >= size), size)
        odd = size % 8 > 0
        if size in HEAD_SIZES or size > max(HEAD_SIZES) or mixed < MIN_SHARE * e.step:
            continue
        lost = mixed * (1 - size / padded) + (sum(one.seconds - one.should_be for one in e.profile.products if one.should_be
               and (one.n % 8 or one.k % 8)) if odd else 0.0)  # fmt: skip
        yield Fault(
            "head size", "certain" if odd else "likely", max(lost, 0.3 * mixed if odd else 0.0),
            f"heads have {size} numbers, which attention kernels pad to {padded}{', and rows are no multiple of 16 bytes' * odd}",
            f"use heads of {padded if padded - size < size - 64 else 64}: as many numbers in fewer or more heads",
            f"attention takes {milliseconds(mixed)} a step, {1 - size / padded:.0%} of it on padding",
        )  # fmt: skip


def uneven_shapes(e: Evidence) -> Iterator[Fault]:
    """Products whose rows in memory are no multiple of 16 bytes, where they take longer for it than products of even sizes do."""
    if not e.device or not e.timeline.on_gpu:
        return
    known = [one for one in e.profile.products if one.dtype in HALF and one.batch == 1]
    odd = [one for one in known if one.n % 8 or one.k % 8 or (one.m % 8 and one.m > 64)]
    even = [one.seconds / one.should_be for one in known if one not in odd and one.should_be > MIN_PRODUCT_SECONDS]
    usual = float(np.median(even)) if even else 1.0

    def padded(one: Product) -> float:
        return usual * one.count * float(product(e.device, *(_padded(size) for size in (one.m, one.n, one.k))).max())

    slow = [one for one in odd if one.seconds > SLOW_SHAPE * padded(one)]
    lost, total = sum(one.seconds - padded(one) for one in slow), sum(one.seconds for one in slow)
    if lost > 0.5 * MIN_SHARE * e.step:
        worst = max(slow, key=lambda one: one.seconds)
        better = " x ".join(f"{_padded(size):,}" for size in (worst.m, worst.n, worst.k))
        yield Fault(
            "uneven shapes", "certain" if lost > MIN_SHARE * e.step else "likely", lost,
            f"products of {worst.m:,} x {worst.n:,} x {worst.k:,} run without the fast units: a size is no multiple of 8",
            f"pad the vocabulary or width to a multiple of 64: {better}",
            f"{milliseconds(total)} a step; padded they are predicted to take {milliseconds(total - lost)}",
        )  # fmt: skip


def _padded(size: int) -> int:
    return -(-size // 64) * 64 if size % 8 else size


def below_roofline(e: Evidence) -> Iterator[Fault]:
    """Products of 16 bits that take much longer than their shape should, although its sizes are even: tiles and waves that are not full."""
    if not e.device or not e.timeline.on_gpu:
        return
    for one in e.profile.products[:6]:
        if one.dtype not in HALF or one.seconds < MIN_SHARE * e.step or one.n % 8 or one.k % 8:
            continue
        full = one.flops / (e.device.peak * float(np.max(e.device.share)))
        if one.should_be > BELOW * full and one.batch == 1:
            better = one.m * max(2, round(one.should_be / full))
            yield Fault(
                "unfilled waves", "unusual", one.seconds * (1 - full / one.should_be) * 0.5,
                f"products of {one.m:,} x {one.n:,} x {one.k:,} cannot fill the chip: {one.should_be / full:.2g} times the time per "
                "FLOP of a large one",
                f"a larger micro-batch: {better:,} rows instead of {one.m:,}",
                f"{milliseconds(one.seconds)} a step measured, {milliseconds(one.should_be)} predicted for the shape, "
                f"{milliseconds(full)} at the rate of a large product",
            )  # fmt: skip
            return


def slow_chip(e: Evidence) -> Iterator[Fault]:
    """All large products of 16 bits take longer than on a healthy chip."""
    if not e.device or not e.timeline.on_gpu:
        return
    large = [
        one for one in e.profile.products if one.dtype in HALF and _even(one) and one.should_be / one.count > MIN_PRODUCT_SECONDS
    ]
    if len(large) < 2:
        return
    ratio = float(np.median([one.seconds / one.should_be for one in large]))
    seconds = sum(one.seconds for one in large)
    if ratio > SLOW_CHIP and min(one.seconds / one.should_be for one in large) > 1.15:
        yield Fault(
            "slow chip", "likely", seconds * (1 - 1 / ratio),
            f"every large matrix product takes about {ratio:.2g} times as long as on a healthy {e.timeline.chip or 'chip'}",
            "look at clocks, power limit, temperature and other processes of this GPU (nvidia-smi -q -d PERFORMANCE), and measure it: "
            "meshwise probe",
            f"{len(large)} shapes, {milliseconds(seconds)} a step, {milliseconds(seconds / ratio)} predicted",
        )  # fmt: skip


def _even(one: Product) -> bool:
    return not (one.n % 8 or one.k % 8 or one.m % 8)


def uneven_experts(e: Evidence) -> Iterator[Fault]:
    """Experts of one layer get very different numbers of tokens, some perhaps none."""
    routed, every, dense = _routed(e)
    for rows, certainty in ((routed, "likely"), (every, "unusual")):  # all tokens: a full expert, or one that is shared
        seconds = {
            shape: sum(
                one.seconds for one in e.profile.products if (one.n, one.k) == shape and (rows is every or one.m not in dense)
            )
            for shape in rows
        }
        total, shape = sum(seconds.values()), max(seconds, key=lambda one: seconds[one], default=(0, 0))
        of = rows.get(shape, [0])
        mean, most = sum(of) / len(of), max(of)
        if total < LEAST_ROUTED * e.step or most < SKEW * mean:
            continue
        yield Fault(
            "expert imbalance", certainty, total * (1 - mean / most),
            f"experts get uneven numbers of tokens: the fullest {most:,}, {most / mean:.2g} times the mean of {mean:,.0f}"
            + (f"; {of.count(0) / len(of):.0%} get none" if 0 in of else ""),
            "balance the router: an auxiliary loss, a bias per expert, or a capacity; with expert parallelism all devices wait for the "
            "fullest",
            f"products with weights of {shape[1]:,} x {shape[0]:,} have {min(of):,} to {most:,} rows",
        )  # fmt: skip
        return


def _routed(e: Evidence) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]], set[int]]:
    """Return the rows of forward products by the shape of their weights where they differ within a micro-batch, and the rows of all others:
    whatever is not routed has as many rows as the batch has tokens. Between both: all rows of those of which few have as many."""
    ops = e.ops(r"^aten::(?:mm|addmm)$")
    known = ops.take((ops.detail >= 0) & ~e.split.cover["backward"].holds(ops.start))
    steps = np.searchsorted(e.split.steps.bounds, known.start, side="right")
    counts: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for detail, step in zip(known.detail.tolist(), steps.tolist(), strict=True):
        sizes = [one for one in e.timeline.details[detail].dims if len(one) == 2][-2:]
        if len(sizes) == 2 and sizes[0][1] == sizes[1][0]:
            counts[sizes[1][1], sizes[0][1]][step].append(sizes[0][0])
    batches = max(1, e.profile.micro_batches)
    even = {shape for shape, by_step in counts.items() if all(len(set(rows)) <= batches for rows in by_step.values())}
    dense = {m for shape in even for rows in counts[shape].values() for m in rows}
    every = {shape: [m for rows in by_step.values() for m in rows] for shape, by_step in counts.items()}
    routed = {shape: [m for m in rows if m not in dense] for shape, rows in every.items()}
    routed = {shape: rows for shape, rows in routed.items() if len(rows) >= MIN_EXPERTS * e.count and any(rows)}
    mostly = {shape: every[shape] for shape, rows in routed.items() if shape[0] != shape[1] and 2 * len(rows) > len(every[shape])}
    return routed, mostly, dense


RULES = (
    no_flash_attention, wide_products, slow_update, eager_loss, head_size, uneven_shapes, below_roofline, slow_chip,
    uneven_experts,
)  # fmt: skip
