"""Find the cheapest chip and number of nodes to train on within a deadline."""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwise.catalogue import chips as hardware
from meshwise.catalogue import records, rescale
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.records import frame
from meshwise.cost.train.compute import Device
from meshwise.cost.train.question import Question
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.models.count import flat
from meshwise.output import Drawn
from meshwise.plan.ask import TrainAsk
from meshwise.plan.axes import TRAIN_AXES, with_one_seller
from meshwise.plan.train import lookup
from meshwise.plan.train.lookup import with_one_framework
from meshwise.plan.train.vary import Point, answer_point, starting_ask, too_late
from meshwise.plan.vary import Value, Variant, first_values, parse

MAX_DEVICES = 16384  # largest number of devices to try by default: as many as Llama 3 405B was trained on
NODE_COUNT_PRIMES = (2, 3, 5)  # prime factors of the node counts to try: models and batches seldom divide by other primes

MFU_MARGIN = 1.1  # skip a node count that would need an MFU more than this factor above the best seen so far to meet the deadline
CONSIDERED_GPUS = "GPUs in the catalogue with a rental price, a link, a network and a rate in the requested precision"


@dataclass(frozen=True, repr=False)
class Cheapest(Drawn):
    """The cheapest chip and number of nodes, and every point that was tried."""

    ask: TrainAsk
    vary: tuple[str, ...]

    best: Point
    tried: tuple[Point, ...]
    chips: tuple[str, ...]  # chips that were tried
    unpriced: tuple[str, ...]  # chips that were asked for but have no rental price

    @property
    def command(self) -> str:
        return " ".join([self.ask.command(), *(f"--vary {shlex.quote(text)}" for text in self.vary), "--cheapest"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per point, with the columns of `--csv`."""
        rows: list[dict[str, Any]] = []
        for point in self.tried:
            row = point.row()
            choice: dict[str, Any] = row.pop("choice") or {}
            rows.append(flat(row | choice | {"cheapest": point is self.best}))
        return rows

    def to_frame(self) -> Any:
        """Return the rows as a data frame of polars or pandas, whichever is installed."""
        return frame(self.rows())

    def to_json(self) -> dict[str, Any]:
        points = [point.row() for point in self.tried]
        about = {"format": 1, "ask": records.plain(self.ask), "vary": list(self.vary)}
        return about | {"cheapest": self.best.row(), "points": points}

    def __repr__(self) -> str:
        assert self.best.ask
        return f"<Cheapest {self.best.ask.on!r} of {len(self.tried)} points: {self.command}>"

    def of_chip(self, key: str) -> list[Point]:
        """Return the points of one chip, sorted by node count."""
        points = [point for point in self.tried if point.values["chip"] == key]
        return sorted(points, key=lambda point: int(point.values["nodes"]))

    def cheapest_of(self, key: str, within: float) -> Point | None:
        """Return the cheapest point of a chip that meets the deadline, else the fastest."""
        done = [point for point in self.of_chip(key) if point.choice]
        return min(done, key=lambda point: _rank(point, within), default=None)


def _least(points: Iterable[Point], within: float) -> float:
    """Return the dollars of the cheapest point that meets the deadline; infinity where none does."""
    return min((p.choice.total_dollars or math.inf for p in points if p.choice and p.meets(within)), default=math.inf)


def _rank(point: Point, within: float) -> tuple[bool, float]:
    assert point.choice
    return (False, point.choice.total_dollars or math.inf) if point.meets(within) else (True, point.choice.step)


def answer(ask: TrainAsk, texts: Sequence[str]) -> Cheapest:
    """Try every kind of node, in the order of a lower bound on its cost. DoesNotFit where nothing fits, or nothing meets the deadline."""
    if not ask.tokens:
        raise UserError("--cheapest needs --tokens: how many to train on, such as --tokens 15T")
    ask = starting_ask(ask, texts)
    if "chip" in first_values(texts, TRAIN_AXES) and not ask.on:
        ask = replace(ask, on=first_values(texts, TRAIN_AXES)["chip"])
    varied = parse(texts, TRAIN_AXES, ask)
    given = {along.axis.name: along.values for along in varied}
    other = sorted(set(given) - {"chip", "nodes", "devices"})
    if other:
        raise UserError(
            f"--cheapest chooses the chip and the number of nodes; it goes with --vary chip, nodes or devices, not with --vary {other[0]}"
        )
    keys = [str(key) for key in given.get("chip", ())] or ([rescale.chip_of(ask.on).key] if ask.on else rentable_chips(ask))
    if not keys:
        raise UserError(f"no chip to try among the {CONSIDERED_GPUS}, {ask.precision}; name some with --vary chip=...")
    ask = with_one_seller(ask, [key for key in keys if hardware.find_chip(key).kind != "tpu"])
    kinds = [_kind(ask, key) for key in keys]
    priced = [kind for kind in kinds if kind.rent]
    if not priced:
        raise DoesNotFit(f"no rental price for {', '.join(keys)} in the catalogue: add one to a chip or cluster file of your own")
    counted = "nodes" in given or "devices" in given
    if counted and ask.at_most:
        raise UserError("--vary nodes or devices lists the counts to try and --at-most bounds them; give only one")
    tried: list[Point] = []
    for kind in sorted(priced, key=lambda kind: kind.least_dollars):
        cheapest = _least(tried, ask.within)
        if kind.least_dollars > cheapest:
            continue  # even at its peak rate it would cost more
        tried += kind.points(list(_counts(given, kind)) if counted else None, ask.at_most)
    done = [point for point in tried if point.choice]
    if not done:
        raise DoesNotFit(f"no number of nodes fits for {', '.join(keys)}: {tried[-1].refusal if tried else 'none was tried'}")
    best = min(done, key=lambda point: _rank(point, ask.within))
    if not best.meets(ask.within):
        raise DoesNotFit(too_late(done, ask.within))
    chips = tuple(dict.fromkeys(str(point.values["chip"]) for point in tried))
    return Cheapest(ask, tuple(texts), best, tuple(tried), chips, tuple(kind.chip.key for kind in kinds if not kind.rent))


def rentable_chips(ask: TrainAsk) -> list[str]:
    """Return the GPUs that can be rented in large numbers: with a rental price, a link, a network and a rate in the precision."""
    rented = [chip for chip in hardware.chips() if chip.kind == "gpu" and chip.rent and chip.link and chip.network]
    return [chip.key for chip in rented if ask.precision in chip.flops]


def _counts(given: dict[str, tuple[Value, ...]], kind: "Kind") -> Iterator[int]:
    """Yield the node counts that --vary lists."""
    yield from (int(nodes) for nodes in given.get("nodes", ()))
    for devices in given.get("devices", ()):
        if int(devices) % kind.size:
            raise DoesNotFit(f"{devices:,} devices are not a whole number of nodes of {kind.size} {kind.chip.name}")
        yield int(devices) // kind.size


@dataclass(frozen=True)
class Kind:
    """One kind of node: the question on it, and a lower bound on the cost of training."""

    ask: TrainAsk
    chip: Chip
    size: int
    rent: float | None  # dollars per second and device
    device_seconds: float  # device-seconds of training at the peak rate: a lower bound
    question: Question  # the question on the named cluster, or on one device

    @property
    def least_dollars(self) -> float:
        return (self.rent or math.inf) * self.device_seconds

    def points(self, counts: list[int] | None, at_most: str) -> list[Point]:
        """Evaluate the listed node counts. Without a list, double the count until two more doublings cost no less, then try all
        counts near the best one and near the first that meets the deadline."""
        if counts is not None:
            return [self.at(nodes) for nodes in counts]
        least = max(1, math.ceil(self.device_seconds / (self.ask.within or math.inf) / self.size))
        cap = self.most_nodes(at_most)
        every = [n for n in smooth_counts(cap) if n >= least] or [cap]
        found: dict[int, Point] = {}
        worse = 0
        for nodes in [n for n in every if n & (n - 1) == 0 or n == every[-1]]:
            before = _least(found.values(), self.ask.within)
            found[nodes] = self.at(nodes)
            worse = worse + 1 if _least(found.values(), self.ask.within) == before < math.inf else 0
            if worse == 2:
                break
        ladder = sorted(found)
        first = next((n for n in ladder if found[n].meets(self.ask.within)), ladder[-1])
        around = {*_between(ladder, min(ladder, key=lambda n: self._rank(found[n])), every), *_between(ladder, first, every)}
        needed = self.device_seconds / (self.ask.within or math.inf) / self.size
        reached = MFU_MARGIN * max((point.choice.mfu for point in found.values() if point.choice), default=1.0)
        found |= {nodes: self.at(nodes) for nodes in sorted(around) if nodes * reached >= needed}
        return [found[nodes] for nodes in sorted(found)]

    def _rank(self, point: Point) -> tuple[bool, float]:
        return _rank(point, self.ask.within) if point.choice else (True, math.inf)

    def most_nodes(self, at_most: str) -> int:
        """Return the upper bound on nodes: --at-most, else the size of a named cluster, else MAX_DEVICES."""
        if at_most:
            return _at_most(at_most, self.size)
        named = self.question.cluster.node_count
        return named if named > 1 else max(1, MAX_DEVICES // self.size)

    def at(self, nodes: int) -> Point:
        """Return the best layout on this many nodes; for a torus, on a slice with as many chips."""
        values: dict[str, Value] = {"chip": self.chip.key, "nodes": nodes}
        labels = (self.chip.key, f"{nodes:,}")
        resize, count = (rescale.with_devices, nodes * self.size) if self.chip.kind == "tpu" else (rescale.with_nodes, nodes)
        try:
            cluster = resize(self.ask.on, count)
        except DoesNotFit as error:
            return answer_point(Variant(values, labels, None, str(error)))
        return answer_point(Variant(values, labels, replace(self.ask, on=cluster)), self.question.model)


def _kind(ask: TrainAsk, key: str) -> Kind:
    """Return the kind of node that has this chip, with the question on it."""
    text = rescale.with_chip(ask.on, key) if ask.on else key
    on_kind = with_one_framework(replace(ask, on=text, at_most=""), [text, *_two_nodes(text)])
    q: Question = lookup.question(on_kind)
    peak = Device.of(q.chip, q.calibration, q.work.precision).peak
    rent = q.cluster.rent / q.cluster.devices if q.cluster.rent else None
    return Kind(on_kind, q.chip, rescale.node_size(text), rent, q.model.flops(ask.tokens, q.work.seq) / peak, q)


def _two_nodes(on: str) -> list[str]:
    """Return the cluster with two nodes; nothing where its nodes have no network between them."""
    try:
        cluster = rescale.with_nodes(on, 2)
        find_cluster(cluster)
    except (DoesNotFit, UserError):
        return []
    return [cluster]


def smooth_counts(most: int) -> list[int]:
    """Return the counts up to `most` whose only prime factors are 2, 3 and 5, and `most` itself."""
    counts = {1}
    for prime in NODE_COUNT_PRIMES:
        counts |= {n * prime**k for n in counts for k in range(most.bit_length()) if n * prime**k <= most}
    return sorted({*counts, most})


def _between(ladder: Sequence[int], middle: int, every: Sequence[int]) -> list[int]:
    """Return the counts between the neighbours of `middle` on the ladder that are not on it."""
    at = ladder.index(middle)
    low, high = ladder[at - 1] if at else every[0], ladder[min(len(ladder) - 1, at + 1)]
    return [n for n in every if low <= n <= high and n not in ladder]


def _at_most(text: str, size: int) -> int:
    """Parse --at-most ('128 nodes', '1024 devices') as a number of nodes of `size` devices."""
    number, _, unit = text.lower().strip().partition(" ")
    devices = unit.strip() in ("device", "devices", "gpu", "gpus")
    known = devices or unit.strip() in ("", "node", "nodes")
    if not known or not number.isdecimal() or len(number) > 8 or not int(number):
        raise UserError(f"--at-most {quoted(text)}: expected a number of nodes or devices, such as '128 nodes' or '1024 devices'")
    return max(1, int(number) // (size if devices else 1))
