"""Timeline: what one rank did, as arrays; made from a profiler's trace. Times are seconds since the first event."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from meshwise.audit.doctor.scan import Trace
from meshwise.errors import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
CALLS = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "privateuse1_runtime", "xpu_runtime"})
OPERATORS = frozenset({"cpu_op", "Operator"})
MARKS = frozenset({"user_annotation"})
ANNOTATIONS = (
    "ProfilerStep#",
    "Optimizer.step#",
    "Optimizer.zero_grad#",
    "enumerate(DataLoader)",
)  # that torch before 1.10 wrote among the operators
PYTHON = re.compile(r"serialization\.py|checkpoint|safetensors|dataloader\.py|data/_utils", re.IGNORECASE)
"""Python functions that are kept of a trace with stacks."""
MAX_NAME = 400
NO_DETAIL = -1


@dataclass(frozen=True)
class Detail:
    """What a trace says about an operation beside its name: shapes and types of its inputs, or its message, group and bytes."""

    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    collective: str = ""
    group: str = ""
    ranks: int = 0
    elements: float = 0.0
    dtype: str = ""
    bytes: float = 0.0


@dataclass(frozen=True)
class Lane:
    """Operations of one kind, in the order of their starts."""

    name: Ints
    start: Floats
    end: Floats
    lane: Ints  # the thread or stream
    link: Ints  # number that joins a launch and its kernel (correlation)
    owner: Ints  # number that joins an operator and its kernels (external id); 0: none
    detail: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Any) -> "Lane":
        return Lane(*(getattr(self, one)[rows] for one in ("name", "start", "end", "lane", "link", "owner", "detail")))

    @property
    def seconds(self) -> Floats:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Everything that is kept of one rank's trace."""

    source: str
    names: tuple[str, ...]
    details: tuple[Detail, ...]
    gpu: Lane
    ops: Lane
    calls: Lane
    marks: Lane
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return len(self.gpu) > 0

    def matching(self, pattern: str) -> NDArray[np.bool_]:
        """Return, by number of a name, whether the name matches."""
        search = re.compile(pattern, re.IGNORECASE).search
        return np.array([bool(search(name)) for name in self.names] or [False])

    def named(self, lane: Lane, pattern: str) -> Lane:
        """Return the operations of a lane whose name matches."""
        return lane.take(self.matching(pattern)[lane.name]) if len(lane) else lane

    @property
    def rank(self) -> int | None:
        """The rank that the trace or the name of its file states."""
        stated = _table(self.facts.get("distributedInfo")).get("rank")
        if isinstance(stated, int):
            return stated
        found = re.search(r"rank[-_.]?(\d{1,6})", self.source, re.IGNORECASE)
        return int(found[1]) if found else None

    @property
    def world(self) -> int:
        stated = _table(self.facts.get("distributedInfo")).get("world_size")
        return stated if isinstance(stated, int) and 0 < stated < 10_000_000 else 1

    @property
    def chip(self) -> str:
        """The name of the GPU that the trace was taken on; '' if it has none."""
        devices = self.facts.get("deviceProperties")
        first = _table(devices[0]) if isinstance(devices, list) and devices else {}
        return str(first.get("name", ""))[:80]


def _table(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


@dataclass
class Columns:
    """Operations of one kind while a file is read."""

    times: "array[float]" = field(default_factory=lambda: array("d"))  # start and end of each
    numbers: "array[int]" = field(default_factory=lambda: array("q"))  # name, lane, link, owner and detail of each

    def __len__(self) -> int:
        return len(self.times) // 2

    def add(self, name: int, start: float, length: float, lane: int, link: int, owner: int, detail: int) -> None:
        self.times.extend((start, start + length))
        self.numbers.extend((name, lane, link, owner, detail))

    def sorted(self, zero: float, unit: float) -> Lane:
        """Return the operations by start, outer ones before those inside them; a time is seconds since `zero`."""
        start, end = np.asarray(self.times).reshape(-1, 2).T
        order = np.lexsort((-end, start))
        name, *others = np.ascontiguousarray(np.asarray(self.numbers).reshape(-1, 5)[order].T)
        return Lane(name, (start[order] - zero) * unit, (end[order] - zero) * unit, *others)


class Builder:
    """Collects operations, and interns their names and details."""

    def __init__(self) -> None:
        self.gpu, self.ops, self.calls, self.marks = (Columns() for _ in range(4))
        kinds = ((ON_GPU, self.gpu), (OPERATORS, self.ops), (CALLS, self.calls), (MARKS, self.marks))
        self.by_kind = {kind: columns for some, columns in kinds for kind in some}
        self.names: dict[str, int] = {}
        self.lanes: dict[object, int] = {}
        self.details: dict[Detail, int] = {}
        self._known: dict[str, int] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text[:MAX_NAME], len(self.names))

    def lane(self, value: object) -> int:
        return self.lanes.setdefault(value, len(self.lanes))

    def detail(self, detail: Detail) -> int:
        return self.details.setdefault(detail, len(self.details))

    def detail_of(self, args: dict[str, Any]) -> int:
        """Return the number of what the arguments of an event say; equal ones are read once."""
        if "Input dims" in args:  # as torch before 1.11 wrote it
            args |= {"Input Dims": args["Input dims"]}
        if "Input Dims" in args or "Collective name" in args or "bytes" in args or "In msg nelems" in args:
            key = f"{args.get('Input Dims')}{args.get('Input type')}{args.get('Collective name')}{args.get('In msg nelems')}" \
                  f"{args.get('bytes')}{args.get('Process Group Name')}{args.get('Group size')}"  # fmt: skip
            number = self._known.get(key)
            if number is None:
                number = self._known[key] = self.detail(_detail(args))
            return number
        return NO_DETAIL

    def build(self, source: str, facts: dict[str, Any], notes: tuple[str, ...], unit: float = 1e-6) -> Timeline:
        columns = (self.gpu, self.ops, self.calls, self.marks)
        zero = min((min(one.times[::2]) for one in columns if len(one)), default=0.0)
        lanes = (one.sorted(zero, unit) for one in columns)
        return Timeline(source, tuple(self.names), tuple(self.details), *lanes, facts=facts, notes=notes)


def read(path: Path) -> Timeline:
    """Read a trace of torch's profiler, plain or gzipped, of one rank."""
    trace, builder = Trace(path), Builder()
    for event in trace:
        add_event(builder, event)
    if not len(builder.gpu) and not len(builder.ops):
        why = "damaged or cut off before the first" if trace.cut_off else "not a trace of torch's profiler, or an empty one"
        raise UserError(f"{path.name}: no kernels and no operators: {why}")
    notes = (f"{path.name} is cut off: what is before the end was read",) if trace.cut_off else ()
    return builder.build(path.name, trace.facts, notes)


def add_event(builder: Builder, event: dict[str, Any]) -> None:
    """Add one event of a Chrome trace, if it is of use."""
    if event.get("ph") != "X":
        return
    kind, start, length = str(event.get("cat")), event.get("ts"), event.get("dur")
    columns = builder.by_kind.get(kind)
    if (kind == "python_function" and PYTHON.search(str(event.get("name")))) or (
        kind in OPERATORS and str(event.get("name")).startswith(ANNOTATIONS)
    ):
        columns = builder.marks
    if columns is None or not _is_time(start) or not _is_time(length):
        return
    args = event.get("args")
    args = cast(dict[str, Any], args) if type(args) is dict else {}
    link, owner = args.get("correlation", 0), args.get("External id", args.get("external id", 0))
    columns.add(
        builder.name(str(event.get("name", ""))), float(cast(float, start)), max(0.0, float(cast(float, length))),
        builder.lane(f"{event.get('pid')}/{event.get('tid')}" if columns is not builder.gpu else str(args.get("stream", event.get("tid")))),
        link if type(link) is int and abs(link) < 1 << 62 else 0, owner if type(owner) is int and abs(owner) < 1 << 62 else 0,
        builder.detail_of(args) if args else NO_DETAIL,
    )  # fmt: skip


def _is_time(value: object) -> bool:
    return (type(value) is float or type(value) is int) and abs(cast(float, value)) < 1e18  # not so for NaN


def _number(value: object) -> float:
    return float(cast(float, value)) if _is_time(value) else 0.0


def _detail(args: dict[str, Any]) -> Detail:
    dims = args.get("Input Dims")
    types = args.get("Input type")
    return Detail(
        dims=tuple(_dims(one) for one in cast(list[Any], dims)[:8]) if isinstance(dims, list) else (),
        types=tuple(str(one)[:40] for one in cast(list[Any], types)[:8]) if isinstance(types, list) else (),
        collective=str(args.get("Collective name", ""))[:40],
        group=str(args.get("Process Group Description") or args.get("Process Group Name", ""))[:60],
        ranks=int(_number(args.get("Group size"))),
        elements=max(_number(args.get("In msg nelems")), _number(args.get("Out msg nelems"))),
        dtype=str(args.get("dtype", ""))[:20],
        bytes=_number(args.get("bytes")),
    )  # fmt: skip


def _dims(value: object) -> tuple[int, ...]:
    """Return a shape; of a list of tensors, the shape of the first."""
    one = cast(list[Any], value) if isinstance(value, list) else []
    if one and isinstance(one[0], list):
        sizes = [math.prod(d for d in cast(list[Any], each) if type(d) is int) for each in one if isinstance(each, list)]
        return (int(min(sum(sizes), 1 << 60)),)
    return tuple(d for d in one[:8] if type(d) is int and 0 <= d < 1 << 40)
