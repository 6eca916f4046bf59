"""Split a torch profiler trace into seconds by part: GPU kernels, or CPU operators if there are none, and idle time."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from meshwise.catalogue import files
from meshwise.errors import UserError

PARTS = ("matmul", "attention", "communication", "optimizer", "elementwise", "idle")
READ_CHARS = 1 << 18
MAX_EVENT_CHARS = 1 << 22
"""Characters of one event; a file with a longer one is not a trace."""
# Names of cuBLAS, CUTLASS, flash-attention, NCCL and ATen kernels as profilers show them.
KINDS = (
    (
        "communication",
        re.compile(
            r"nccl|gloo|all_?reduce|all_?gather|reduce_?scatter|sendrecv|all_?to_?all|c10d::|_c10d_functional|broadcast_",
            re.IGNORECASE,
        ),
    ),
    ("attention", re.compile(r"flash|fmha|attention|sdpa|cudnn.*mha|softmax_warp", re.IGNORECASE)),
    ("optimizer", re.compile(r"adam|multi_tensor|_foreach|optimizer|addcdiv|addcmul|lerp", re.IGNORECASE)),
    (
        "matmul",
        re.compile(
            r"gemm|cutlass|cublas|nvjet|xmma|wgmma|matmul|aten::(?:mm|addmm|bmm|baddbmm|linear|_grouped_mm|_scaled_mm)\b|mkldnn.*linear",
            re.IGNORECASE,
        ),
    ),
)
UPDATE = "optimizer step"
"""Name given to kernels inside the annotation of the optimizer's step: their own names could belong to any product or sum."""
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True)
class Span:
    """One kernel, copy or operator; times in microseconds."""

    name: str
    start: float
    end: float
    lane: str
    gpu: bool


def part_of(name: str) -> str:
    """Return the part of the step that a kernel or operator belongs to."""
    return next((part for part, pattern in KINDS if pattern.search(name)), "elementwise")


def events(stream: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace one by one, so that a trace of a gigabyte is never whole in memory."""
    decoder, held = json.JSONDecoder(), ""
    while '"traceEvents"' not in held:
        more = stream.read(READ_CHARS)
        if not more:
            raise UserError("it has no 'traceEvents'")
        held = held[-32:] + more
    held = held[held.index('"traceEvents"') :]
    held = held[held.index("[") + 1 :] if "[" in held else ""
    while True:
        held = held.lstrip(" \r\n\t,")
        if held.startswith("]"):
            return
        try:
            event, end = decoder.raw_decode(held)
        except (ValueError, RecursionError):
            more = stream.read(READ_CHARS)
            if not more or len(held) > MAX_EVENT_CHARS:
                return  # the file is cut off: all whole events have been read
            held += more
            continue
        held = held[end:]
        if isinstance(event, dict):
            yield cast(dict[str, Any], event)


def spans(path: Path) -> list[Span]:
    """Return GPU kernels and copies, or CPU operators if there are none."""
    operations: list[Span] = []
    updates: list[Span] = []
    opened = files.open_file(path)
    try:
        with TextIOWrapper(opened, encoding="utf-8", errors="replace") as file:
            for event in events(file):
                span = _span(event)
                if span and (str(event.get("cat")) in ON_GPU or event.get("cat") == "cpu_op"):
                    operations.append(span)
                elif span and "annotation" in str(event.get("cat")) and "optimizer" in span.name.lower():
                    updates.append(span)
    except OSError as error:
        raise files.unreadable(path, error) from None
    except UserError as error:
        raise UserError(f"{path.name}: not a trace of torch's profiler: {error}") from None
    kept = [span for span in operations if span.gpu] or operations
    windows = [(span.start, span.end) for span in updates if span.gpu == kept[0].gpu] if kept else []
    return [replace(s, name=UPDATE) if any(start <= s.start and s.end <= end for start, end in windows) else s for s in kept]


def _span(event: dict[str, Any]) -> Span | None:
    start, length, kind = event.get("ts"), event.get("dur"), str(event.get("cat"))
    if event.get("ph") != "X" or not _is_number(start) or not _is_number(length):
        return None
    begin, duration = float(cast(Any, start)), float(cast(Any, length))
    lane = f"{event.get('pid')}/{event.get('tid')}"
    return Span(str(event.get("name", "")), begin, begin + duration, lane, kind in ON_GPU or kind.startswith("gpu_"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e18


def union(intervals: list[tuple[float, float]]) -> float:
    """Return the total length of intervals, counting overlaps once."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def parts(spans: list[Span]) -> dict[str, float]:
    """Return seconds by part over the whole trace, which sum to its length. Communication counts only while nothing computes."""
    if not spans:
        return {}
    length = max(span.end for span in spans) - min(span.start for span in spans)
    lane_spans = spans if spans[0].gpu else list(_own_time(spans))
    busy = union([(s.start, s.end) for s in lane_spans])
    working = [s for s in lane_spans if part_of(s.name) != "communication"]
    computing = union([(s.start, s.end) for s in working])
    sums = dict.fromkeys(cast(tuple[str, ...], PARTS), 0.0)
    for span in working:
        sums[part_of(span.name)] += span.end - span.start
    whole = sum(sums.values())
    # Kernels on several streams overlap: the time in which anything computed is split in proportion to the sums.
    times = {part: value * computing / whole if whole else 0.0 for part, value in sums.items()}
    times |= {"communication": busy - computing, "idle": max(0.0, length - busy)}
    return {part: times[part] / 1e6 for part in PARTS}


def _own_time(spans: list[Span]) -> Iterator[Span]:
    """Yield the time of each operator without the operators it calls, as spans that do not overlap in a lane."""
    for lane in {span.lane for span in spans}:
        stack: list[tuple[Span, float]] = []
        for span in sorted((s for s in spans if s.lane == lane), key=lambda s: (s.start, -s.end)):
            while stack and stack[-1][0].end <= span.start:
                yield from _remainder(stack)
            if stack:
                top, since = stack[-1]
                if span.start > since:
                    yield Span(top.name, since, span.start, lane, False)
                stack[-1] = (top, max(since, span.end))
            stack.append((span, span.start))
        while stack:
            yield from _remainder(stack)


def _remainder(stack: list[tuple[Span, float]]) -> Iterator[Span]:
    span, since = stack.pop()
    if span.end > since:
        yield Span(span.name, since, span.end, span.lane, False)
