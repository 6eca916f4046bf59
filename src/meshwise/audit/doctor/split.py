"""Split the steps of a timeline into parts that add up to them: what computed, what communicated while nothing did, and idle by cause."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
from array import array
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from meshwise.audit.doctor import kinds, steps
from meshwise.audit.doctor.intervals import Cover, disjoint
from meshwise.audit.doctor.steps import Steps
from meshwise.audit.doctor.timeline import Detail, Floats, Ints, Lane, Timeline

WAITS = r"Synchronize|cudaMemcpy$|hipMemcpy$|hipMemcpyWithStream|EventQuery$"
ALLOCATES = (
    r"(?:cuda|hip)(?:Malloc|Free|MemCreate|MemMap|MemUnmap|MemRelease|HostAlloc|FreeHost)|cuMem(?:Create|Map|Unmap|Release)"
)
NEAR = 5e-6  # seconds by which the clocks of host and device may differ
SHORT_GAP = 10e-6  # a gap up to this long before a kernel that was launched in time is the device's own
UNITS = {"float": 4, "float32": 4, "double": 8, "float64": 8, "long": 8, "int64": 8, "int": 4, "int32": 4, "c10::bfloat16": 2,
         "bfloat16": 2, "c10::half": 2, "half": 2, "float16": 2, "bool": 1, "byte": 1, "uint8": 1, "int8": 1}  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """Spans of computation that do not overlap, each of one operation."""

    lane: Lane
    part: NDArray[np.str_]
    start: Floats
    end: Floats
    detail: Ints
    backward: NDArray[np.bool_]

    @property
    def seconds(self) -> Floats:
        return self.end - self.start


@dataclass(frozen=True)
class Messages:
    """Collectives and sends: how long each took, and how much of it nothing hid."""

    lane: Lane
    part: NDArray[np.str_]
    exposed: Floats
    detail: Ints


@dataclass(frozen=True)
class Split:
    """A timeline in parts."""

    steps: Steps
    parts: dict[str, Floats]  # seconds of each step by part
    pieces: Pieces
    messages: Messages
    gaps: tuple[Floats, Floats]  # idle spans
    causes: dict[str, Floats]  # seconds of each idle span by cause
    cover: dict[str, Cover]
    busy: Cover

    def mean(self, part: str) -> float:
        """Return seconds per step of a part."""
        return float(self.parts[part].sum()) / self.steps.count if part in self.parts else 0.0

    @property
    def step(self) -> float:
        return self.steps.whole / self.steps.count


def split(timeline: Timeline) -> Split:
    """Return the parts of a timeline's steps."""
    launches = steps.launched(timeline) if timeline.on_gpu else timeline.ops.start
    cover = kinds.windows(timeline)
    found = steps.find(timeline, launches, cover["optimizer"])
    pieces, messages, copies = (_on_gpu if timeline.on_gpu else _on_cpu)(timeline, launches, cover)
    first, last = float(found.bounds[0]), float(found.bounds[-1])
    computed = Cover.of(pieces.start, pieces.end)
    sent = Cover.of(messages.lane.start, messages.lane.end)
    both = _union(computed, sent)
    busy = _union(both, Cover.of(copies.start, copies.end))
    gaps = busy.gaps(first, last)
    causes = _causes(timeline, launches, gaps, cover)
    parts = {part: _by_step(found, pieces.start[rows], pieces.end[rows]) for part in np.unique(pieces.part)
             if (rows := pieces.part == part).any()}  # fmt: skip
    starts, ends = disjoint(messages.lane.start, messages.lane.end)
    for part in np.unique(messages.part):
        rows = messages.part == part
        parts[str(part)] = _by_step(found, starts[rows], ends[rows], computed)
    starts, ends = disjoint(copies.start, copies.end)
    parts["copy"] = _by_step(found, starts, ends, both)
    for cause, seconds in causes.items():
        at = np.searchsorted(found.bounds, gaps[0], side="right") - 1
        parts[cause] = parts.get(cause, np.zeros(found.count)) + np.bincount(
            np.clip(at, 0, found.count - 1), seconds, found.count
        )
    kept = {part: parts[part] for part in kinds.PARTS if part in parts and parts[part].sum() > 0}
    return Split(found, kept, pieces, messages, gaps, causes, cover, busy)


def _union(one: Cover, other: Cover) -> Cover:
    return Cover.of(np.concatenate([one.start, other.start]), np.concatenate([one.end, other.end]))


def _by_step(found: Steps, start: Floats, end: Floats, hidden: Cover | None = None) -> Floats:
    """Return seconds of spans in each step, without what `hidden` covers; a span across a bound counts on both sides of it."""
    totals = np.zeros(found.count)
    if not len(start):
        return totals
    start, end = np.clip(start, found.bounds[0], found.bounds[-1]), np.clip(end, found.bounds[0], found.bounds[-1])
    lengths = end - start - (hidden.inside(start, end) if hidden else 0.0)
    last = found.count - 1
    first, final = (np.clip(np.searchsorted(found.bounds, at, side="right") - 1, 0, last) for at in (start, end))
    within = first == final
    totals += np.bincount(first[within], lengths[within], found.count)
    for low, high, step, until in zip(start[~within], end[~within], first[~within], final[~within], strict=True):
        cuts = np.concatenate([[low], found.bounds[step + 1 : until + 1], [high]])
        totals[step : until + 1] += np.diff(cuts) - (hidden.inside(cuts[:-1], cuts[1:]) if hidden else 0.0)
    return totals


def _owner_details(timeline: Timeline, lane: Lane) -> Ints:
    """Return the detail of each kernel: its own, or that of the operator which launched it."""
    known = timeline.ops.take(timeline.ops.owner > 0)
    if not len(known):
        return lane.detail
    order = np.argsort(known.owner, kind="stable")
    keys = known.owner[order]
    at = np.minimum(np.searchsorted(keys, lane.owner), len(keys) - 1)
    theirs = np.where((keys[at] == lane.owner) & (lane.owner > 0), known.detail[order][at], -1)
    return np.where(lane.detail >= 0, lane.detail, theirs)


def _on_gpu(timeline: Timeline, launches: Floats, cover: dict[str, Cover]) -> tuple[Pieces, Messages, Lane]:
    """Return computation, messages and copies of a GPU."""
    gpu = timeline.gpu
    details = _owner_details(timeline, gpu)
    parts = kinds.parts_of(timeline, gpu, launches, cover, details)
    copied = timeline.matching(r"^(?:Memcpy|Copy).*(?:HtoD|DtoH|PtoP|HostToDevice|DeviceToHost)")[gpu.name]
    sent = (parts == kinds.COMMS) & ~copied
    rows = ~sent & ~copied
    computing = gpu.take(rows)
    start, end = disjoint(computing.start, computing.end)
    pieces = Pieces(computing, parts[rows], start, end, details[rows], cover["backward"].holds(launches[rows]))
    return pieces, _messages(timeline, gpu.take(sent), details[sent], Cover.of(start, end)), gpu.take(copied)


def _on_cpu(timeline: Timeline, launches: Floats, cover: dict[str, Cover]) -> tuple[Pieces, Messages, Lane]:
    """Return computation and messages of a CPU: operators without those that they call. Whatever waits for data, compiles or writes files
    counts as that."""
    index, start, end = own_time(timeline.ops)
    ops = timeline.ops.take(index)
    other = cover["data"].holds(start) | cover["compile"].holds(start) | cover["save"].holds(start)
    parts = kinds.parts_of(timeline, ops, start, cover, ops.detail)
    background = timeline.named(timeline.marks, r"gloo:|nccl:|mpi:|ucc:")
    working = (parts != kinds.COMMS) & ~other
    order = np.argsort(start[working], kind="stable")
    computing = ops.take(working).take(order)
    begins, stops = disjoint(start[working][order], end[working][order])
    backward = cover["backward"].holds(begins)
    pieces = Pieces(computing, parts[working][order], begins, stops, computing.detail, backward)
    called = timeline.named(timeline.ops, r"^c10d::|_c10d_functional") if not len(background) else timeline.ops.take([])
    sent = background if len(background) else called
    return pieces, _messages(timeline, sent, sent.detail, Cover.of(begins, stops)), timeline.ops.take([])


def own_time(ops: Lane) -> tuple[Ints, Floats, Floats]:
    """Return spans of operators without the operators that they call: index of the operator, start and end, by start."""
    spans = array("d")  # of three numbers each
    for lane in np.unique(ops.lane):
        rows = np.flatnonzero(ops.lane == lane)
        stack: list[tuple[int, float]] = []
        since = 0.0
        each = zip(rows.tolist(), ops.start[rows].tolist(), ops.end[rows].tolist(), strict=True)
        for row, start, end in chain(each, [(-1, math.inf, math.inf)]):  # the last ends all that is open
            while stack and stack[-1][1] <= start:
                top, until = stack.pop()
                if until > since:
                    spans.extend((top, since, until))
                    since = until
            if stack and start > since:
                spans.extend((stack[-1][0], since, start))
            stack.append((row, min(end, stack[-1][1]) if stack else end))
            since = max(since, start)
    found = np.frombuffer(spans, dtype=np.float64).reshape(-1, 3) if len(spans) else np.zeros((0, 3))
    found = found[np.argsort(found[:, 1], kind="stable")]
    return found[:, 0].astype(np.int64), found[:, 1], found[:, 2]


def _messages(timeline: Timeline, lane: Lane, details: Ints, computed: Cover) -> Messages:
    parts = [message_part(timeline.names[name], timeline.details[detail] if detail >= 0 else Detail())
             for name, detail in zip(lane.name.tolist(), details.tolist(), strict=True)]  # fmt: skip
    return Messages(lane, np.array(parts, dtype="<U16"), lane.seconds - computed.inside(lane.start, lane.end), details)


def message_part(name: str, detail: Detail) -> str:
    """Return the part of the cost model that a collective belongs to: by its group's name where it has one, else by its kind."""
    group, text = detail.group.lower(), f"{detail.collective} {name}".lower().replace("_", "")
    for word in ("tp", "cp", "ep", "pp"):
        if group in (word, f"mesh_{word}") or group.endswith(f"_{word}"):
            return "p2p" if word == "pp" else word
    if "alltoall" in text:
        return "ep"
    return "p2p" if any(word in text for word in ("sendrecv", "send", "recv")) else "dp"


def message_bytes(detail: Detail) -> float:
    """Return the bytes of a message by what the trace says about it; 0 if it says nothing."""
    if detail.elements:
        return detail.elements * UNITS.get(detail.dtype.lower(), 2)
    if detail.dims and (detail.dims[0] or detail.types):  # a number of its own has no dimensions
        return float(np.prod([float(d) for d in detail.dims[0]])) * UNITS.get(detail.types[0].lower() if detail.types else "", 4)
    return detail.bytes


def _causes(timeline: Timeline, launches: Floats, gaps: tuple[Floats, Floats], cover: dict[str, Cover]) -> dict[str, Floats]:
    """Return the seconds of each idle span by cause."""
    first, last = gaps
    left = last - first
    causes: dict[str, Floats] = {}
    allocating = timeline.named(timeline.calls, ALLOCATES)
    spans = {"data": cover["data"], "compile": cover["compile"], "save": cover["save"],
             "allocator": Cover.of(allocating.start, allocating.end)}  # fmt: skip
    for cause, union in spans.items():
        causes[cause] = np.minimum(left, union.inside(first, last))
        left = left - causes[cause]
    if not timeline.on_gpu:
        return causes | {"launch": left}
    waits = timeline.named(timeline.calls, WAITS)
    waits = waits.take(np.argsort(waits.end, kind="stable"))
    drained = np.zeros(len(first), dtype=bool)
    if len(waits):
        at = np.minimum(np.searchsorted(waits.end, first - NEAR), len(waits) - 1)
        drained = (waits.end[at] >= first - NEAR) & (waits.end[at] <= last) & (waits.start[at] <= first + NEAR)
    following = np.minimum(np.searchsorted(timeline.gpu.start, last - 1e-9), len(timeline.gpu) - 1)
    late = (launches[following] >= first - NEAR) | (last - first < SHORT_GAP)
    causes["sync"] = np.where(drained, left, 0.0)
    causes["launch"] = np.where(~drained & late, left, 0.0)
    causes["wait"] = np.where(~drained & ~late, left, 0.0)
    return causes
