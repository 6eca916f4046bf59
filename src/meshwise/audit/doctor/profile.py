"""Profile: a rank's trace in a few hundred numbers: parts, phases, products with shapes, messages with bytes, and its longest kernels."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwise.audit.doctor.intervals import Cover
from meshwise.audit.doctor.split import Split, message_bytes, split
from meshwise.audit.doctor.timeline import Detail, Lane, Timeline
from meshwise.cost.train.compute import Device, product

MAX_KERNELS = 12
HALF = ("c10::bfloat16", "c10::half", "bfloat16", "half")


@dataclass(frozen=True)
class Product:
    """Matrix products of one shape, per step: `batch` times m x k by k x n."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    count: float
    seconds: float
    should_be: float = 0.0  # predicted seconds in 16 bits on the same chip; 0 where the chip is unknown

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch * self.count


@dataclass(frozen=True)
class Message:
    """Collectives of one kind, group and size, per step."""

    kind: str
    part: str
    group: str
    ranks: int
    bytes: float
    count: float
    seconds: float
    exposed: float
    shortest: float  # seconds of the fastest one: what it takes when no rank comes late


@dataclass(frozen=True)
class Kernel:
    """Kernels or operators of one name, per step."""

    name: str
    part: str
    count: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """One rank."""

    source: str
    rank: int | None
    world: int
    chip: str
    on_gpu: bool
    steps: tuple[float, ...]
    found_by: str
    parts: dict[str, float]  # seconds per step; they add up to the step
    phases: dict[str, float]
    """Seconds per step in which the device worked on the forward pass, the backward pass and the optimizer."""
    hidden: dict[str, float]  # seconds per step of communication behind computation, by part
    micro_batches: int
    layers: int
    products: tuple[Product, ...]
    messages: tuple[Message, ...]
    kernels: tuple[Kernel, ...]
    launches: float  # kernels or operators per step
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> float:
        return sum(self.steps) / len(self.steps)

    @property
    def working(self) -> float:
        """Seconds per step that do not depend on other ranks."""
        return sum(seconds for part, seconds in self.parts.items() if part not in ("dp", "tp", "cp", "ep", "p2p", "wait"))


@dataclass(frozen=True)
class Evidence:
    """A timeline with its split, as rules need it."""

    timeline: Timeline
    split: Split
    device: Device | None = None  # rates of the chip, if it is known

    @staticmethod
    def of(timeline: Timeline, device: Device | None = None) -> "Evidence":
        return Evidence(timeline, split(timeline), device)

    @property
    def count(self) -> int:
        return self.split.steps.count

    @property
    def step(self) -> float:
        return self.split.step

    def ops(self, pattern: str) -> Lane:
        """Return the operators inside the steps whose name matches."""
        return self._inside(self.timeline.named(self.timeline.ops, pattern))

    def calls(self, pattern: str) -> Lane:
        return self._inside(self.timeline.named(self.timeline.calls, pattern))

    def _inside(self, lane: Lane) -> Lane:
        bounds = self.split.steps.bounds
        return lane.take((lane.end > bounds[0]) & (lane.start < bounds[-1]))

    def names(self, pattern: str) -> np.ndarray:
        """Return, by piece of computation, whether its name matches."""
        return self.timeline.matching(pattern)[self.split.pieces.lane.name]

    def seconds(self, rows: np.ndarray) -> float:
        """Return seconds per step of some pieces."""
        return float(self.split.pieces.seconds[rows].sum()) / self.count

    @cached_property
    def profile(self) -> Profile:
        return profile(self)


def profile(e: Evidence) -> Profile:
    """Return the profile of one rank."""
    t, s = e.timeline, e.split
    hidden: dict[str, float] = defaultdict(float)
    for part, seconds in zip(s.messages.part.tolist(), (s.messages.lane.seconds - s.messages.exposed).tolist(), strict=True):
        hidden[part] += max(0.0, seconds) / e.count
    micro_batches, layers = _passes(e)
    return Profile(
        source=t.source, rank=t.rank, world=t.world, chip=t.chip, on_gpu=t.on_gpu,
        steps=tuple(s.steps.seconds.tolist()), found_by=s.steps.found_by, parts={part: s.mean(part) for part in s.parts},
        phases=_phases(e), hidden=dict(hidden), micro_batches=micro_batches, layers=layers, products=products(e), messages=messages(e),
        kernels=_kernels(e), launches=len(s.pieces.start) / e.count, notes=t.notes,
    )  # fmt: skip


def _phases(e: Evidence) -> dict[str, float]:
    pieces = e.split.pieces
    update = pieces.part == "optimizer"
    back = pieces.backward & ~update
    return {"forward": e.seconds(~back & ~update), "backward": e.seconds(back), "optimizer": e.seconds(update)}


def _passes(e: Evidence) -> tuple[int, int]:
    """Return micro-batches of a step and layers of a micro-batch: by embeddings and attention of the forward pass; 0 if unknown."""
    embeddings = round(len(e.ops(r"^aten::embedding$")) / e.count)
    mixed = len(e.ops(r"^aten::scaled_dot_product_attention$"))
    if not mixed:
        forward = ~e.split.pieces.backward
        mixed = int(
            (e.names(r"flash_fwd|fmha.*(?:fprop|fwd)|sdpa.*fprop|^aten::_softmax$|flex_attention(?!.*backward)") & forward).sum()
        )
    micro = max(embeddings, 0)
    return micro, round(mixed / e.count / max(1, micro))


def shape_of(name: str, detail: Detail) -> tuple[int, int, int, int] | None:
    """Return batch, m, n and k of a product by the shapes of its inputs."""
    matrices = [dims for dims in detail.dims if len(dims) == (3 if "bmm" in name else 2)]
    if len(matrices) < 2:
        return None
    one, other = matrices[:2]
    if one[-1] != other[-2] or not all((*one, *other)):
        return None
    return (one[0] if len(one) == 3 else 1), one[-2], other[-1], one[-1]


def products(e: Evidence) -> tuple[Product, ...]:
    """Return the matrix products of a step by shape, the longest first."""
    pieces, t = e.split.pieces, e.timeline
    rows = np.flatnonzero((pieces.part == "matmul") & (pieces.detail >= 0))
    seconds: dict[tuple[int, ...], float] = defaultdict(float)
    count: dict[tuple[int, ...], float] = defaultdict(float)
    types: dict[tuple[int, ...], str] = {}
    shapes = {int(d): shape_of("bmm" if any(len(one) == 3 for one in t.details[int(d)].dims) else "mm", t.details[int(d)])
              for d in np.unique(pieces.detail[rows])}  # fmt: skip
    lengths = pieces.seconds
    for row in rows.tolist():
        detail = int(pieces.detail[row])
        shape = shapes[detail]
        if shape:
            seconds[shape] += float(lengths[row])
            count[shape] += 1
            types[shape] = next((one for one in t.details[detail].types if one), "").lower()
    made = [_product(e, shape, types[shape], count[shape] / e.count, seconds[shape] / e.count) for shape in seconds]
    return tuple(sorted(made, key=lambda one: -one.seconds))


def _product(e: Evidence, shape: tuple[int, ...], dtype: str, count: float, seconds: float) -> Product:
    batch, m, n, k = shape
    ideal = count * float(product(e.device, m, n, k, batch).max()) if e.device else 0.0
    return Product(m, n, k, batch, dtype, count, seconds, ideal)


def messages(e: Evidence, kept: Cover | None = None) -> tuple[Message, ...]:
    """Return the collectives of a step by kind, group and size, the longest first. `kept`: the times of those that count."""
    sent, t = e.split.messages, e.timeline
    groups: dict[tuple[str, str, str, int, float], list[tuple[float, float]]] = defaultdict(list)
    lengths = sent.lane.seconds
    bounds = e.split.steps.bounds
    kept = kept or Cover.of(bounds[:1], bounds[-1:])
    counts = kept.holds(sent.lane.start) & (sent.lane.start >= bounds[0]) & (sent.lane.start < bounds[-1])
    for i, (name, number) in enumerate(zip(sent.lane.name.tolist(), sent.detail.tolist(), strict=True)):
        if not counts[i]:
            continue
        detail = t.details[number] if number >= 0 else Detail()
        kind = detail.collective or t.names[name].removeprefix("gloo:")
        groups[kind, str(sent.part[i]), detail.group, detail.ranks or t.world, message_bytes(detail)].append(
            (float(lengths[i]), float(sent.exposed[i]))
        )
    made = [Message(kind[:60], part, group, ranks, size, len(each) / e.count, sum(a for a, _ in each) / e.count,
                    sum(b for _, b in each) / e.count, min(a for a, _ in each))
            for (kind, part, group, ranks, size), each in groups.items()]  # fmt: skip
    return tuple(sorted(made, key=lambda one: -one.seconds))


def _kernels(e: Evidence) -> tuple[Kernel, ...]:
    """Return the longest kernels by name and part."""
    pieces = e.split.pieces
    parts, number = np.unique(pieces.part, return_inverse=True)
    pairs, which = np.unique(pieces.lane.name * len(parts) + number, return_inverse=True)
    total, counts = np.bincount(which, pieces.seconds), np.bincount(which)
    made = [
        Kernel(e.timeline.names[pair // len(parts)][:100], str(parts[pair % len(parts)]), count / e.count, seconds / e.count)
        for pair, count, seconds in zip(pairs.tolist(), counts.tolist(), total.tolist(), strict=True)
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda kernel: -kernel.seconds)[:MAX_KERNELS])
