"""Communication time: the bandwidth and latency of each group of devices, and the cost of collectives in it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Cluster
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.torus import Mesh, Torus
from meshwise.cost.work import Train

CONGESTION_PER_DOUBLING = 0.33
"""Loss of bandwidth between pods over the data-center network per doubling of the pods: MaxText's v5e runs of 2 to 32 slices lose as much
more time as half of the bandwidth would cost."""
GLOO_SEGMENT, GLOO_SEGMENTS = 2.0**20, 2
"""Bytes of a segment of an all-reduce with gloo, the backend of CPUs, and segments that are on their way at a time: each takes a step's
latency before it moves (measured over cables of 10 ms, benchmarks/trainer/hosts_with_limits.py)."""
BROADCAST_SECONDS = 2.6e-3
"""Seconds that a broadcast of one rank's part takes besides its bytes, for each tensor-parallel rank, whose broadcasts share the network:
InternEvo's steps with the optimizer over all of 16 to 256 ranks (internevo_a100) and over 8."""
NO_PEER_SHARE = 0.25
"""Share of a card's PCIe bandwidth between cards without peer access: every byte goes to host memory and back, and desktop boards give
each of two cards half of their lanes. Two RTX 3090 gathered 2.5 GB/s, a tenth (answerai_fsdp_qlora)."""
HOP_SECONDS = 1.5e-6  # seconds of a step of a ring over NVLink, without waiting for stragglers (NCCL's own model: 0.6 to 3.4 us)


@dataclass(frozen=True)
class Tier:
    """A level of the network: units of `devices` devices each, and the bytes per second that one unit sends to the others."""

    devices: int
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Fabric:
    """A cluster as collectives see it: fast links inside a node, a network per node that all its devices share, and the tiers above."""

    node: int
    link: float
    network: float  # bytes per second out of a whole node
    link_latency: float
    network_latency: float
    above: tuple[Tier, ...] = ()  # leaves, spines and sites, innermost first
    torus: Torus | None = None  # set where a node is a pod wired as a torus
    peers: int = 0
    """Devices that each device has a link of its own to, where there is no switch: a group uses the links between its members only."""
    gloo: bool = False
    """Whether collectives are gloo's, the backend of CPUs: rings alone, and in place of a reduce-scatter an all-reduce, of which torch
    keeps a part (bytes counted on the cables of two and four hosts, benchmarks/trainer/hosts_with_limits.py, torch 2.13)."""

    @staticmethod
    def of(cluster: Cluster, calibration: Calibration) -> "Fabric":
        _, node = cluster.nodes[0]
        link = (node.link.bandwidth * node.link.axes if node.link else 0.0) * calibration.link
        if node.devices > 1 and not cluster.chip.peer_access and node.link and node.link.name.startswith("PCIe"):
            link *= NO_PEER_SHARE
        network = (cluster.network.bandwidth if cluster.network else 0.0) * calibration.network or link or 1e9
        above = tuple(
            Tier(
                tier.nodes * node.devices,
                tier.bandwidth * calibration.network or tier.nodes * network / tier.oversubscription,
                calibration.network_latency if tier.latency is None else tier.latency,
            )
            for tier in cluster.tiers
        )
        torus = None
        if cluster.torus and node.link:
            closed = node.chips[0][1].closes(cluster.torus)
            torus = Torus.of(cluster.torus, closed, node.link.bandwidth * calibration.link)
        peers = node.link.peers if node.link else 0
        latencies = calibration.link_latency, calibration.network_latency
        return Fabric(node.devices, link or network, network, *latencies, above, torus, peers, cluster.chip.kind == "cpu")

    def inside(self, ranks: Floats) -> Floats:
        """Return the bytes per second of a device to the other `ranks` - 1 members of its group in the node."""
        if not self.peers:
            return np.full_like(ranks, self.link)
        return self.link * np.clip((ranks - 1) / self.peers, 1 / self.peers, 1.0)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """All tiers, the node's own network first."""
        return (Tier(self.node, self.network, self.network_latency), *self.above)


@dataclass(frozen=True)
class Group:
    """One communicator: bandwidth per rank, and the latency of collectives without bytes."""

    size: Floats
    bandwidth: Floats
    latency: Floats  # latency of a reduce-scatter or an all-gather: a ring of size - 1 steps, for which NCCL has no tree
    tree: Floats  # half of the latency of an all-reduce over a tree between nodes
    gloo: Floats = field(default_factory=lambda: np.zeros(1))
    """Seconds per byte that a rank sends in an all-reduce over gloo, whose segments wait for a step's latency; 0: another backend."""

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "Group":
        """Group `size` ranks that are `stride` devices apart. Ranks of a group inside a node form a ring; rings share the node's network.
        Worked: tp 4 in nodes of 8 leaves 2 ranks of a data-parallel group in each node, so 4 rings cross its network and each gets a
        quarter, which serves 2 ranks. Of 16 ranks, 2 in each node, a ring has 8 steps between nodes and 8 inside; the wait for stragglers
        in one node, which is part of the link's latency, counts once."""
        inside = _inside(fabric.node, size, stride)
        crosses = inside < size
        share = fabric.network * inside / fabric.node
        link = fabric.inside(inside)
        bandwidth = np.where(crosses, np.minimum(np.where(inside > 1, link, np.inf), share), link)
        nodes = np.where(crosses, size / inside, 0.0)
        between = np.minimum(nodes, size - 1)
        rest = np.maximum(0.0, size - between - inside)
        ring = fabric.network_latency * between + fabric.link_latency * (inside - 1) + HOP_SECONDS * rest
        tree = fabric.network_latency * _depth(np.maximum(nodes, 1.0)) + fabric.link_latency * (inside - 1)
        ranks = (_inside(tier.devices, size, stride) for tier in fabric.above)
        found = Group(size, bandwidth, ring, tree).across(fabric.above, ranks, fabric.network_latency)
        return found.over_gloo(np.where(crosses, fabric.network_latency, fabric.link_latency)) if fabric.gloo else found

    def across(self, tiers: tuple[Tier, ...], inside: Iterable[Floats], below: float, congestion: float = 0.0) -> "Group":
        """Limit a group that spans several units of each tier to the uplinks of its `inside` ranks per unit. Steps between units take
        the tier's latency instead of `below`, the latency of the tier below. `congestion`: share of the first tier's bandwidth that is lost
        with every doubling of its units."""
        bandwidth, ring, tree = self.bandwidth, self.latency, self.tree
        for tier, ranks in zip(tiers, inside, strict=True):
            units = np.ceil(self.size / ranks)
            uplink = tier.bandwidth * ranks / tier.devices / (1 + congestion * np.log2(np.maximum(units, 1.0)))
            congestion = 0.0  # the tiers above state what is left of their bandwidth
            bandwidth = np.where(ranks < self.size, np.minimum(bandwidth, uplink), bandwidth)
            ring = ring + (tier.latency - below) * np.where(units > 1, np.minimum(units, self.size - 1), 0.0)
            tree = tree + (tier.latency - below) * _depth(units)
            below = tier.latency
        return Group(self.size, bandwidth, ring, tree)

    def over_gloo(self, latency: Floats) -> "Group":
        """Return the group with gloo's collectives. Worked: 1 MiB at 1 Gbps takes 9 ms; where a step's latency is 20 ms, two segments are
        through after 29 ms, so that each takes 14.5."""
        segment = (latency + GLOO_SEGMENT / self.bandwidth) / GLOO_SEGMENTS
        return replace(self, tree=self.latency, gloo=segment / GLOO_SEGMENT)

    def take(self, rows: Ints) -> "Group":
        return Group(*(column if len(column) == 1 else column[rows] for column in vars(self).values()))

    @property
    def seconds_per_byte(self) -> Floats:
        """Seconds per byte of a ring all-gather or reduce-scatter: every rank passes on all but its own part."""
        return (self.size - 1) / self.size / self.bandwidth

    def gather(self, size: Floats) -> Floats:
        """Return seconds of an all-gather of `size` bytes in total."""
        return self.seconds_per_byte * size + self.latency

    def reduce_scatter(self, size: Floats) -> Floats:
        """Return seconds of a reduce-scatter of `size` bytes in total."""
        return np.where(self.gloo > 0, self.reduce(size), self.gather(size)) if np.any(self.gloo) else self.gather(size)

    def reduce(self, size: Floats) -> Floats:
        """Return seconds of an all-reduce: a reduce-scatter and an all-gather, over rings or trees, whichever have less latency."""
        rings = self.seconds_per_byte * size + np.minimum(self.latency, self.tree)
        return 2 * np.maximum(rings, self.gloo * (self.size - 1) / self.size * size) if np.any(self.gloo) else 2 * rings

    def split_reduce(self, size: Floats, split: Floats) -> Floats:
        """Return seconds of an all-reduce, which where `split` is a reduce-scatter and an all-gather with work between them."""
        if not np.any(self.gloo):
            return self.reduce(size)
        return np.where(split > 0, self.gather(size) + self.reduce_scatter(size), self.reduce(size))


@dataclass(frozen=True)
class AllToAll:
    """An all-to-all: every rank sends an equal share of its bytes to each other rank, over its share of the node's network."""

    near: Floats  # seconds per byte of a rank inside its node
    far: Floats  # seconds per byte of a rank between nodes
    latency: Floats
    nodes: Floats  # nodes that the group spans

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "AllToAll":
        """Group `size` ranks that are `stride` devices apart. Worked: of 16 ranks in nodes of 8, half of the bytes leave the node, and
        8 ranks share its network."""
        inside = [_inside(tier.devices, size, stride) for tier in fabric.tiers]
        near, latency = (inside[0] - 1) / size / fabric.inside(inside[0]), Group.of(fabric, size, stride).tree
        return AllToAll(near, _leaving(fabric.tiers, inside, size), latency, size / inside[0])

    def take(self, rows: Ints) -> "AllToAll":
        return AllToAll(
            *(column if len(column) == 1 else column[rows] for column in (self.near, self.far, self.latency, self.nodes))
        )

    def seconds(self, size: Floats, leaving: Floats | float = 1.0) -> Floats:
        """Return seconds for `size` bytes per rank, its own share included; only `leaving` of the bytes for other nodes leave the node."""
        return np.maximum(self.near, self.far * leaving) * size + self.latency


def _leaving(tiers: tuple[Tier, ...], inside: list[Floats], size: Floats) -> Floats:
    """Return seconds per byte of an all-to-all over the narrowest uplink, which all devices of a unit share."""
    per_tier = [(1 - ranks / size) * (tier.devices / tier.bandwidth) for tier, ranks in zip(tiers, inside, strict=True)]
    return np.max(np.stack(per_tier), axis=0)


def _inside(unit: int, size: Floats, stride: Floats) -> Floats:
    """Return how many ranks of a group are in one unit of `unit` devices."""
    return np.clip(np.floor(unit / stride), 1, size)


def _depth(size: Floats) -> Floats:
    """Return ceil(log2(size)), faster."""
    return np.frexp(size - 0.5)[1]


@dataclass(frozen=True)
class Communicators:
    """The communication groups of each layout. Ranks of a tensor-parallel group are neighbours; context and data groups stride over it, and
    expert groups over the tensor-parallel group of experts (etp); pipeline stages are furthest apart."""

    tp: Group
    cp: Group
    ep: AllToAll
    shard: Group  # data and context ranks that shard one copy of the optimizer state
    experts: Group  # ranks that hold the same part of the same experts, and shard its state
    replicate: Group  # ranks that hold the same shard
    stage: Group  # two ranks of neighbouring pipeline stages

    @staticmethod
    def of(fabric: Fabric, a: Layouts) -> "Communicators":
        if fabric.torus:
            return _on_torus(fabric, fabric.torus, a)
        alone, ranks = Group(np.ones(1), np.full(1, fabric.link), np.zeros(1), np.zeros(1)), a.dp_shard * a.cp
        shard, mixed = Group.of(fabric, ranks, a.tp), np.any(a.ep > 1)
        apart = mixed or np.any(a.etp < a.tp)  # whole experts are held by tensor-parallel ranks too
        return Communicators(
            tp=Group.of(fabric, a.tp, np.ones(1)),
            cp=Group.of(fabric, a.cp, a.tp) if np.any(a.cp > 1) else alone,
            ep=AllToAll.of(fabric, a.ep if mixed else np.ones(1), a.etp if mixed else np.ones(1)),
            shard=shard,
            experts=Group.of(fabric, np.maximum(1.0, ranks * a.tp / (a.ep * a.etp)), a.etp * a.ep) if apart else shard,
            replicate=Group.of(fabric, a.dp_replicate, a.tp * ranks) if np.any(a.dp_replicate > 1) else alone,
            stage=Group.of(fabric, np.full(1, 2.0), _stage_stride(fabric, a)),
        )

    def microbatch_ids(self) -> tuple[Ints, ...]:
        """Number the distinct values that a micro-batch's time depends on: layouts with equal numbers have equal micro-batch times."""
        read = (self.tp.bandwidth, self.tp.latency, self.cp.bandwidth, self.cp.latency, *vars(self.ep).values())
        read = (*read, self.stage.bandwidth, self.stage.latency)
        return tuple(np.unique(column, return_inverse=True)[1] for column in read)

    def take(self, rows: Ints) -> "Communicators":
        return Communicators(**{name: group.take(rows) for name, group in vars(self).items()})


def _stage_stride(fabric: Fabric, a: Layouts) -> Floats:
    """Return how far apart the ranks of neighbouring stages are. Where stages are smaller than a node but fill several, some boundary
    between them is one between nodes, and the slowest boundary sets the pace."""
    apart = a.devices / a.pp
    return np.where(a.devices > fabric.node, np.maximum(apart, fabric.node), apart)


def _on_torus(fabric: Fabric, torus: Torus, a: Layouts) -> Communicators:
    """Lay the groups of every layout over the torus of its pod."""
    tp, cp, ep, shard, replicate, pp = np.stack([a.tp, a.cp, a.ep, a.dp_shard, a.dp_replicate, a.pp]).astype(np.int64)
    mesh = Mesh.of(torus, (tp, cp, shard, replicate, pp))
    inner = mesh.within(np.gcd(ep, cp * shard))  # expert ranks are the innermost of the context and data ranks
    pods = [tier.devices // fabric.node for tier in fabric.tiers]

    def group(first: int, last: int, laid: Mesh = mesh) -> Group:
        links = laid.links(first, last)
        bandwidth = np.where(links > 0, torus.link * links, np.inf)  # a rank that is alone in its pod uses no link
        in_pod = Group(laid.size(first, last), bandwidth, *(2 * [fabric.link_latency * laid.hops(first, last)]))
        return in_pod.across(fabric.tiers, (laid.inside(first, last, n) for n in pods), 0.0, CONGESTION_PER_DOUBLING)

    size, inside = inner.size(1, 1), [inner.inside(1, 1, n) for n in pods]
    near, far = inner.crossing(1, 1) / torus.link, _leaving(fabric.tiers, inside, size)
    experts = group(1, 1, inner)
    return Communicators(
        tp=group(0, 0), cp=group(1, 1), ep=AllToAll(near, far, experts.latency, size / inside[0]), shard=group(1, 2),
        experts=group(2, 2, inner), replicate=group(3, 3), stage=_next_stage(fabric, torus, mesh, pods),
    )  # fmt: skip


def _next_stage(fabric: Fabric, torus: Torus, mesh: Mesh, pods: list[int]) -> Group:
    """Group two ranks of neighbouring stages: neighbours on the torus, or in different pods where stages are spread over pods."""
    links, stages = mesh.neighbour(4), mesh.size(4, 4)
    two = np.full_like(links, 2.0)
    pair = Group(two, np.where(links > 0, torus.link * links, np.inf), *(2 * [fabric.link_latency * (links > 0)]))
    return pair.across(fabric.tiers, (np.where(mesh.inside(4, 4, n) < stages, 1.0, 2.0) for n in pods), 0.0)


@dataclass(frozen=True)
class DataParallel:
    """Seconds of the collectives of data parallelism in a step (ZeRO, arXiv:1910.02054, 7): inside each group that shards the state, and
    for each shard between the replicas of that group."""

    reduction: Floats  # reducing gradients after backward passes
    gather: Floats
    """Gathering weights: after the optimizer, or with ZeRO 3 before the forward and the backward pass of every layer."""
    replicas: Floats  # summing gradients between replicas
    pieces: Floats  # collectives that one reduction of all gradients is cut into

    @staticmethod
    def of(
        work: Train, groups: tuple[Group, Group], a: Layouts, m: Floats, parameters: Floats, layers: Floats, tensors: float,
        frozen: Floats | float = 0.0,
    ) -> "DataParallel":  # fmt: skip
        """Add up the collectives of `parameters` trained parameters per device in `layers` layers of `tensors` weights each, over groups
        that shard and that replicate. ZeRO 3 also gathers `frozen` bytes of other weights."""
        f, (shard, replicate) = work.framework, groups
        weight_bytes = min(f.weight_bytes, work.recipe.bytes) if f.gathers_narrow else f.weight_bytes
        bucket = np.maximum(f.bucket, f.bucket_per_rank * shard.size)
        pieces = np.maximum(1.0, np.ceil(parameters / bucket)) if f.bucket else np.maximum(1.0, layers)
        reduced = f.wire_bytes(work.precision)
        every = np.where((a.pp > 1) & f.reduces_every_microbatch, m, 1.0)
        kept = a.pp > 1  # between micro-batches: gathered weights, and gradients that are reduced once
        stages = [a.zero == 0, a.zero == 1, a.zero == 2]
        sums = np.select(stages, [every, np.ones(1), np.where(kept, 1.0, m)], np.where(kept, 1.0, m))
        gathers = np.select(stages, [np.zeros(1), np.ones(1), np.ones(1)], np.where(kept, 1.0, 2 * m))
        once = np.where(
            stages[0],
            _pieces(shard.reduce, reduced * parameters, pieces),
            _pieces(shard.reduce_scatter, reduced * parameters, pieces),
        )
        copies = _pieces(replicate.reduce, reduced * parameters / shard.size, pieces)
        across = np.where(replicate.size > 1, np.where(stages[0], every, 1.0) * copies, 0.0)
        parts = np.maximum(1.0, layers * tensors) if f.gathers_tensors else pieces
        size = weight_bytes * parameters + np.where(a.zero >= 3, frozen, 0.0)
        gathered = _pieces(shard.gather, size, np.where(a.zero >= 3, np.maximum(1.0, layers), parts))
        if f.gathers_by_rank:
            gathered = np.where(a.zero < 3, gathered + BROADCAST_SECONDS * shard.size * a.tp, gathered)
        shared = shard.size > 1
        return DataParallel(np.where(shared, sums * once, 0.0), np.where(shared, gathers * gathered, 0.0), across, pieces)


def _pieces(collective: Callable[[Floats], Floats], size: Floats, pieces: Floats) -> Floats:
    """Return seconds of a collective of `size` bytes that is cut into pieces, each with its own latency."""
    return pieces * collective(size / pieces)
