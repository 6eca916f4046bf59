"""Faults in what the device waits for."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Iterator

import numpy as np

from meshwise.audit.doctor.fault import Fault, milliseconds
from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.kinds import runs
from meshwise.audit.doctor.profile import Evidence
from meshwise.audit.doctor.split import ALLOCATES, WAITS

MIN_SHARE = 0.03
CERTAIN_SHARE, RETRIED_SHARE = (
    0.1,
    0.003,
)  # memory that every step gives back and asks for again is one setting away from none of it
LATE_SHARE = 0.2  # share of a step that the device may wait for launches before kernels count as too small
TRACED_HOST = 1.15  # time of a host that is traced over that of one that is not
MIN_LAUNCHES = 50
LONG_PAUSE = 0.04  # share of a step from which on one pause of the host is looked at alone
READ = r"^aten::(?:detach|clone|_?to|_to_copy|copy_)$"
READS = r"^aten::(?:detach|alias|clone|to|_to_copy|copy_|empty\w*|contiguous|item|_local_scalar_dense|resolve_\w+|lift_fresh|numpy_T|view" \
        r"|set_|as_strided|resize_|is_pinned|pin_memory)$|^detach_?$"  # fmt: skip
MIN_READ = 8
"""Operators that read a tensor, those around them where nothing is computed, and how many tensors at least are more than a few values."""
TO_HOST = r"DtoH|DeviceToHost"
FROM_HOST = r"^aten::(?:to|_to_copy|copy_|embedding|stack|cat|pin_memory|tensor|from_numpy|lift_fresh|slice)$"


def starving(e: Evidence) -> Iterator[Fault]:
    """The device waits for the data loader."""
    lost = e.split.mean("data")
    if lost > MIN_SHARE * e.step:
        workers = bool(len(e.timeline.named(e.timeline.marks, r"_MultiProcessingDataLoaderIter")))
        yield Fault(
            "data loader", "certain" if lost > CERTAIN_SHARE * e.step else "likely", lost,
            f"the device waits {milliseconds(lost)} a step for data, {lost / e.step:.0%} of it",
            "more workers or a larger prefetch_factor, or tokenize beforehand" if workers else
            "load with workers (num_workers=4, pin_memory=True, persistent_workers=True), or tokenize beforehand",
            f"it is idle inside {'the iterator of worker processes' if workers else 'the data loader, which runs in the training process'}",
        )  # fmt: skip


def _drained(e: Evidence) -> bool:
    """Return whether the host would be ahead of the device if it did not wait for it: then idle time before late launches is the wait's,
    which lets the queue run dry."""
    waits = e.calls(WAITS)
    waited = float(waits.seconds.sum()) / e.count
    return len(waits) >= 2 * e.count and e.step - waited < TRACED_HOST * e.split.busy.total / e.count


def synchronising(e: Evidence) -> Iterator[Fault]:
    """The host waits for the device, and launches late afterwards; certain where operators read values, as a wait may be meant."""
    lost = e.split.mean("sync") + (e.split.mean("launch") if _drained(e) else 0.0)
    if lost < MIN_SHARE * e.step:
        return
    reads = len(e.ops(r"^aten::(?:item|_local_scalar_dense|nonzero|is_nonzero|masked_select)$")) / e.count
    waits = len(e.calls(WAITS)) / e.count
    read = reads >= 0.5
    cause = (
        f"values are read from the device ({reads:.0f} operators such as aten::item a step)" if read else "the host synchronises"
    )
    yield Fault("synchronisation", "certain" if read else "likely", lost,
        f"{cause}: the queue of kernels runs dry {waits:.0f} times a step, {milliseconds(lost)} idle",
        "keep the loss and norms on the device and read them every few steps (loss.detach(); masks instead of nonzero)",
        f"{waits:.0f} synchronising calls a step; idle time right after them")  # fmt: skip


def small_kernels(e: Evidence) -> Iterator[Fault]:
    """The host cannot launch as fast as the device computes."""
    saved = float(_saved(e).inside(*e.split.gaps).sum()) / e.count
    lost, count = e.split.mean("launch") - saved - sum(pause for pause, _ in _pauses(e)), e.profile.launches
    if lost < LATE_SHARE * e.step or count < MIN_LAUNCHES or _drained(e):
        return
    mean = float(e.split.pieces.seconds.mean())
    yield Fault("small kernels", "certain" if e.timeline.on_gpu and lost > 0.3 * e.step else "likely", 0.8 * lost,
        f"{count:,.0f} {'kernels' if e.timeline.on_gpu else 'operators'} a step of {mean * 1e6:.3g} us each: the host launches them too "
        f"slowly, {lost / e.step:.0%} of the step is idle",
        "torch.compile(mode='reduce-overhead'), CUDA graphs, or a larger micro-batch",
        f"{milliseconds(lost)} a step in {len(e.split.gaps[0]) / e.count:,.0f} gaps before kernels that were launched late")  # fmt: skip


def compiling(e: Evidence) -> Iterator[Fault]:
    """Code is compiled inside the steps."""
    lost = e.split.mean("compile")
    if lost < MIN_SHARE * e.step:
        return
    frames = len(e.ops(r"^entire_frame_compile$")) or len(e.ops(r"compile_inner"))
    yield Fault("recompilation", "certain", lost,
        f"torch.compile compiles during the steps: {frames} time{'s' * (frames != 1)}, {milliseconds(lost)} a step",
        "give inputs of the same shapes (pad or pack), mark_dynamic, or dynamic=True; TORCH_LOGS=recompiles says why",
        "operators of Dynamo and Inductor lie inside the traced steps")  # fmt: skip


def allocating(e: Evidence) -> Iterator[Fault]:
    """Memory is returned to the driver and asked for again."""
    calls = e.calls(ALLOCATES)
    freed = e.calls(r"(?:cuda|hip)Free$|MemUnmap|MemRelease")
    lost = max(e.split.mean("allocator"), float(calls.seconds.sum()) / e.count * 0.5)
    if not len(calls) or lost < (RETRIED_SHARE if len(freed) >= e.count else 0.5 * MIN_SHARE) * e.step:
        return
    yield Fault(
        "allocator", "certain" if len(freed) else "likely", lost,
        f"memory is allocated from the driver inside the step: {len(calls) / e.count:.0f} calls, "
        f"{milliseconds(float(calls.seconds.sum()) / e.count)}",
        "leave room: a smaller micro-batch, recompute, or PYTORCH_ALLOC_CONF=expandable_segments:True; drop calls of empty_cache()"
        if len(freed) else "let the first steps pass before tracing; sizes that change from step to step make the allocator grow",
        f"{len(freed) / e.count:.0f} of the calls give memory back: {'retries near the limit, or empty_cache' if len(freed) else 'none'}",
    )  # fmt: skip


def _saved(e: Evidence) -> Cover:
    """Return the time in which the host reads many tensors one after another, computes nothing, and then does something else: as whoever
    writes a checkpoint does."""
    first, last = runs(e.timeline, READS, READ, MIN_READ, without=e.split.cover["optimizer"])
    starts = np.append(e.timeline.ops.start, np.inf)
    until = np.minimum(starts[np.searchsorted(e.timeline.ops.start, last, side="right")], e.split.steps.bounds[-1])
    return Cover.of(first, np.maximum(until, last))


def _idle(e: Evidence, without: Cover) -> np.ndarray:
    """Return the seconds of each gap in which the host was late or waited, outside some spans."""
    first, last = e.split.gaps
    idle = sum((e.split.causes.get(cause, 0.0) for cause in ("launch", "sync")), np.zeros(len(first)))
    return np.maximum(0.0, idle - without.inside(first, last))


def _pauses(e: Evidence) -> list[tuple[float, str]]:
    """Return long pauses of the host, seconds per step, each with when it makes them: before a batch, or in the middle of the step."""
    first, last = e.split.gaps
    idle, ops, pieces = _idle(e, _saved(e)), e.timeline.ops, e.split.pieces
    update, work = (np.append(-np.inf, pieces.end[rows]) for rows in (
        pieces.part == "optimizer", np.isin(pieces.part, ("matmul", "attention", "loss"))))  # fmt: skip
    found: list[tuple[float, str]] = []
    for gap in np.flatnonzero(idle > LONG_PAUSE * e.step).tolist():
        until = int(np.searchsorted(ops.start, last[gap]))
        loads = any(re.search(FROM_HOST, e.timeline.names[i]) for i in ops.name[until : until + 2])
        updated, worked = (times[np.searchsorted(times, first[gap], side="right") - 1] for times in (update, work))
        found.append((float(idle[gap]) / e.count, "data" if loads or updated >= worked else "host"))
    return found


def pauses(e: Evidence) -> Iterator[Fault]:
    """The host does something else: writes a checkpoint, prepares data without torch's loader, or runs Python."""
    saved, (first, last) = _saved(e), e.split.gaps
    copied = e.timeline.named(e.timeline.gpu, TO_HOST)
    copied = copied.take((copied.start >= e.split.steps.bounds[0]) & (copied.start < e.split.steps.bounds[-1]))
    reading = float(
        (saved.inside(first, last) * (e.split.causes["save"] == 0)).sum() + saved.inside(copied.start, copied.end).sum()
    )
    written = e.split.mean("save") + reading / e.count
    told = bool(len(e.split.cover["save"].start))
    if written > MIN_SHARE * e.step:
        yield Fault("checkpoint in the step", "certain" if told else "likely", written,
            f"the device waits {milliseconds(written)} a step while the weights are copied and written",
            "write checkpoints asynchronously (torch.distributed.checkpoint.async_save), and less often",
            "files are written inside the step" if told else "many tensors are read or copied to the host one after another")  # fmt: skip
    found, loader = _pauses(e), bool(len(e.split.cover["data"].start))
    before, within = (sum(seconds for seconds, one in found if one == kind) for kind in ("data", "host"))
    if loader:  # what torch's loader takes is known, so that this is something else
        before, within = 0.0, before + within
    for name, lost, change in (
        ("data loader", before, "prepare batches ahead in worker processes (a DataLoader with num_workers)"),
        ("host work", within or before, "move logging, metrics and Python loops out of the step, or behind it"),
    ):
        if lost > MIN_SHARE * e.step:
            second = name == "host work" and not within
            what = "between an update and the next batch" if before else "in the middle of the step"
            yield Fault(name, "unusual" if second or lost < CERTAIN_SHARE * e.step else "likely", lost,
                        f"the host does nothing for torch {what}: {milliseconds(lost)} a step{', if that is not its data' * second}",
                        change, f"{len(found)} long pauses in {e.count} steps")  # fmt: skip


def host_copies(e: Evidence) -> Iterator[Fault]:
    """Copies between host and device that nothing hides."""
    lost = e.split.mean("copy")
    if lost < MIN_SHARE * e.step:
        return
    copies = e.timeline.named(e.timeline.gpu, r"^(?:Memcpy|Copy).*(?:HtoD|DtoH|HostToDevice|DeviceToHost)")
    total = max(1e-12, float(copies.seconds.sum()))
    pageable, back = (float(e.timeline.named(copies, words).seconds.sum()) / total for words in ("Pageable", TO_HOST))
    sizes = [e.timeline.details[int(d)].bytes for d in copies.detail if d >= 0]
    rate = f", {sum(sizes) / total / 1e9:.3g} GB/s" if sizes else ""
    unpinned = pageable > 0.5 and back < 0.5
    pin = "pin the host's tensors (pin_memory=True) and copy with non_blocking=True on a stream of their own"
    keep = "compute on the device what is needed of these tensors, or copy to pinned memory on a stream of its own, behind computation"
    yield Fault(
        "pageable copies" if unpinned else "copies to the host", "certain", lost * (0.7 if pageable > 0.5 else 0.5),
        f"copies between host and device take {milliseconds(lost)} a step that nothing hides{rate}", pin if unpinned else keep,
        f"{len(copies) / e.count:.0f} copies a step, {back:.0%} of their time to the host, {pageable:.0%} in memory that is not pinned",
    )  # fmt: skip


RULES = (starving, synchronising, small_kernels, compiling, allocating, pauses, host_copies)
