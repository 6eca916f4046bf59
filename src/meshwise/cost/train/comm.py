"""Communication time: the bandwidth and latency of each group of devices, and the cost of collectives in it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Cluster
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.layout import Floats, Ints, Layouts
from meshwise.cost.train.torus import Mesh, Torus


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
    network: float
    """Bytes per second out of a whole node."""
    link_latency: float
    network_latency: float
    above: tuple[Tier, ...] = ()
    """Leaves, spines and sites, innermost first."""
    torus: Torus | None = None
    """Set where a node is a pod wired as a torus."""

    @staticmethod
    def of(cluster: Cluster, calibration: Calibration) -> "Fabric":
        _, node = cluster.nodes[0]
        link = (node.link.bandwidth * node.link.axes if node.link else 0.0) * calibration.link
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
        return Fabric(node.devices, link or network, network, calibration.link_latency, calibration.network_latency, above, torus)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """All tiers, the node's own network first."""
        return (Tier(self.node, self.network, self.network_latency), *self.above)


@dataclass(frozen=True)
class Group:
    """One communicator: bandwidth per rank, and the latency of one collective without bytes."""

    size: Floats
    bandwidth: Floats
    latency: Floats

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "Group":
        """Group `size` ranks that are `stride` devices apart. Ranks of a group inside a node form a ring; rings share the node's network.

        Worked: tp 4 in nodes of 8 leaves 2 ranks of a data-parallel group in each node, so 4 rings cross its network and each gets
        a quarter, which serves 2 ranks.
        """
        inside = _inside(fabric.node, size, stride)
        crosses = inside < size
        share = fabric.network * inside / fabric.node
        bandwidth = np.where(crosses, np.minimum(fabric.link, share), fabric.link)
        # A ring has size - 1 steps; between nodes NCCL's trees need only their depth.
        latency = np.where(crosses, fabric.network_latency * _depth(size), fabric.link_latency * (size - 1))
        ranks = (_inside(tier.devices, size, stride) for tier in fabric.above)
        return Group(size, bandwidth, latency).across(fabric.above, ranks, fabric.network_latency)

    def across(self, tiers: tuple[Tier, ...], inside: Iterable[Floats], below: float) -> "Group":
        """Limit a group that spans several units of each tier to the uplinks of its `inside` ranks per unit. Tree steps between units take
        the tier's latency instead of `below`, the latency of the tier below."""
        bandwidth, latency = self.bandwidth, self.latency
        for tier, ranks in zip(tiers, inside, strict=True):
            uplink = np.minimum(bandwidth, tier.bandwidth * ranks / tier.devices)
            bandwidth = np.where(ranks < self.size, uplink, bandwidth)
            latency = latency + (tier.latency - below) * _depth(np.ceil(self.size / ranks))
            below = tier.latency
        return Group(self.size, bandwidth, latency)

    def take(self, rows: Ints) -> "Group":
        return Group(*(column if len(column) == 1 else column[rows] for column in (self.size, self.bandwidth, self.latency)))

    @property
    def seconds_per_byte(self) -> Floats:
        """Seconds per byte of a ring all-gather or reduce-scatter: every rank passes on all but its own part."""
        return (self.size - 1) / self.size / self.bandwidth

    def gather(self, size: Floats) -> Floats:
        """Return seconds of an all-gather or reduce-scatter of `size` bytes in total."""
        return self.seconds_per_byte * size + self.latency

    def reduce(self, size: Floats) -> Floats:
        """Return seconds of an all-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather(size)


@dataclass(frozen=True)
class AllToAll:
    """An all-to-all: every rank sends an equal share of its bytes to each other rank, over its share of the node's network."""

    near: Floats
    """Seconds per byte of a rank inside its node."""
    far: Floats
    """Seconds per byte of a rank between nodes."""
    latency: Floats
    nodes: Floats
    """Nodes that the group spans."""

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "AllToAll":
        """Group `size` ranks that are `stride` devices apart. Worked: of 16 ranks in nodes of 8, half of the bytes leave the node, and
        8 ranks share its network."""
        inside = [_inside(tier.devices, size, stride) for tier in fabric.tiers]
        near, latency = (inside[0] - 1) / size / fabric.link, Group.of(fabric, size, stride).latency
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
    """The communication groups of each layout. Ranks of a tensor-parallel group are neighbours; context, data and expert groups stride over
    it; pipeline stages are furthest apart."""

    tp: Group
    cp: Group
    ep: AllToAll
    shard: Group
    """Data and context ranks that shard one copy of the optimizer state."""
    experts: Group
    """Ranks of `shard` that hold the same experts."""
    replicate: Group
    """Ranks that hold the same shard."""
    stage: Group
    """Two ranks of neighbouring pipeline stages."""

    @staticmethod
    def of(fabric: Fabric, a: Layouts) -> "Communicators":
        if fabric.torus:
            return _on_torus(fabric, fabric.torus, a)
        alone, ranks = Group(np.ones(1), np.full(1, fabric.link), np.zeros(1)), a.dp_shard * a.cp
        shard, mixed = Group.of(fabric, ranks, a.tp), np.any(a.ep > 1)
        return Communicators(
            tp=Group.of(fabric, a.tp, np.ones(1)),
            cp=Group.of(fabric, a.cp, a.tp) if np.any(a.cp > 1) else alone,
            ep=AllToAll.of(fabric, a.ep if mixed else np.ones(1), a.tp if mixed else np.ones(1)),
            shard=shard,
            experts=Group.of(fabric, np.maximum(1.0, ranks / a.ep), a.tp * a.ep) if mixed else shard,
            replicate=Group.of(fabric, a.dp_replicate, a.tp * ranks) if np.any(a.dp_replicate > 1) else alone,
            stage=Group.of(fabric, np.full(1, 2.0), a.devices / a.pp),
        )

    def microbatch_ids(self) -> tuple[Ints, ...]:
        """Number the distinct values that a micro-batch's time depends on: layouts with equal numbers have equal micro-batch times."""
        read = (self.tp.bandwidth, self.tp.latency, self.cp.bandwidth, self.cp.latency, *vars(self.ep).values())
        read = (*read, self.stage.bandwidth, self.stage.latency)
        return tuple(np.unique(column, return_inverse=True)[1] for column in read)

    def take(self, rows: Ints) -> "Communicators":
        return Communicators(**{name: group.take(rows) for name, group in vars(self).items()})


def _on_torus(fabric: Fabric, torus: Torus, a: Layouts) -> Communicators:
    """Lay the groups of every layout over the torus of its pod."""
    tp, cp, ep, shard, replicate, pp = np.stack([a.tp, a.cp, a.ep, a.dp_shard, a.dp_replicate, a.pp]).astype(np.int64)
    mesh = Mesh.of(torus, (tp, cp, shard, replicate, pp))
    inner = mesh.within(ep)  # expert ranks are the innermost of the context and data ranks
    pods = [tier.devices // fabric.node for tier in fabric.tiers]

    def group(first: int, last: int, laid: Mesh = mesh) -> Group:
        links = laid.links(first, last)
        bandwidth = np.where(links > 0, torus.link * links, np.inf)  # a rank that is alone in its pod uses no link
        in_pod = Group(laid.size(first, last), bandwidth, fabric.link_latency * laid.hops(first, last))
        return in_pod.across(fabric.tiers, (laid.inside(first, last, n) for n in pods), 0.0)

    size, inside = inner.size(1, 1), [inner.inside(1, 1, n) for n in pods]
    near, far = inner.crossing(1, 1) / torus.link, _leaving(fabric.tiers, inside, size)
    experts = group(1, 1, inner)
    return Communicators(
        tp=group(0, 0),
        cp=group(1, 1),
        ep=AllToAll(near, far, experts.latency, size / inside[0]),
        shard=group(1, 2),
        experts=group(2, 2, inner),
        replicate=group(3, 3),
        stage=_next_stage(fabric, torus, mesh, pods),
    )


def _next_stage(fabric: Fabric, torus: Torus, mesh: Mesh, pods: list[int]) -> Group:
    """Group two ranks of neighbouring stages: neighbours on the torus, or in different pods where stages are spread over pods."""
    links, stages = mesh.neighbour(4), mesh.size(4, 4)
    two = np.full_like(links, 2.0)
    pair = Group(two, np.where(links > 0, torus.link * links, np.inf), fabric.link_latency * (links > 0))
    return pair.across(fabric.tiers, (np.where(mesh.inside(4, 4, n) < stages, 1.0, 2.0) for n in pods), 0.0)


@dataclass(frozen=True)
class GradientReduction:
    """Reduction of gradients and gathering of weights in a step (ZeRO, arXiv:1910.02054, 7): inside each group that shards the state, and
    for each shard between the replicas of that group."""

    per_parameter: Floats
    """Seconds per parameter of a device."""
    latency: Floats

    @staticmethod
    def of(f: Framework, shard: Group, replicate: Group, a: Layouts, m: Floats) -> "GradientReduction":
        every = np.where((a.pp > 1) & f.reduces_every_microbatch, m, 1.0)
        stages = [a.zero == 0, a.zero == 1, a.zero == 2]
        sums = np.select(stages, [2 * every, np.ones(1), np.where(a.pp > 1, 1.0, m)], m)
        gathers = np.select(stages, [np.zeros(1), np.ones(1), np.ones(1)], 2 * m)
        across = 2 * np.where(stages[0], every, 1.0)
        inside = shard.seconds_per_byte * (f.reduced_bytes * sums + f.weight_bytes * gathers)
        return GradientReduction(
            inside + across * f.reduced_bytes * replicate.seconds_per_byte / shard.size,
            shard.latency * (sums + gathers) + across * replicate.latency,
        )

    def seconds(self, parameters: Floats) -> Floats:
        return self.per_parameter * parameters + self.latency
