"""Time between devices: what bandwidth a group of them has, and what collectives cost in it."""

from dataclasses import dataclass, replace

import numpy as np

from meshwise.calibration import Calibration
from meshwise.cost.torus import Mesh, Torus
from meshwise.hardware import Cluster
from meshwise.layout import Floats, Layouts


@dataclass(frozen=True)
class Tier:
    """Units of `devices` devices each, and the bytes per second that one of them sends to the others."""

    devices: int
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Fabric:
    """A cluster as collectives see it: fast links inside a node, one network per node that all its devices share, and what is above."""

    node: int
    link: float
    network: float
    """Bytes per second of a whole node."""
    link_latency: float
    network_latency: float
    above: tuple[Tier, ...] = ()
    """Leaves, spines and sites, from the inside out."""
    torus: Torus | None = None
    """Where a node is a pod of a torus."""

    @staticmethod
    def of(cluster: Cluster, calibration: Calibration) -> "Fabric":
        _, node = cluster.nodes[0]
        link = (node.link.bandwidth * node.link.axes if node.link else 0.0) * calibration.link
        network = (cluster.network.bandwidth if cluster.network else 0.0) * calibration.network
        above = tuple(
            Tier(
                tier.nodes * node.devices,
                tier.leaving(cluster.network) * calibration.network,
                tier.latency or calibration.network_latency,
            )
            for tier in cluster.tiers
        )
        torus = None
        if cluster.torus and node.link:
            torus = Torus(cluster.torus, node.chips[0][1].closes(cluster.torus), node.link.bandwidth * calibration.link)
        return Fabric(
            node.devices,
            link or network or 1e9,
            network or link or 1e9,
            calibration.link_latency,
            calibration.network_latency,
            above,
            torus,
        )

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """All ways out, a node's own first."""
        return (Tier(self.node, self.network, self.network_latency), *self.above)


@dataclass(frozen=True)
class Group:
    """A communicator: bandwidth per rank, and seconds of all its steps without bytes."""

    size: Floats
    bandwidth: Floats
    latency: Floats
    near: Floats
    """Seconds per byte of an all-to-all, in which every rank sends a share to each other one: inside nodes,"""
    far: Floats
    """and between them."""
    nodes: Floats
    """How many it reaches over."""

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "Group":
        """`size` ranks that are `stride` devices apart. Ranks of one group in a node share a ring; the rings of a node share its network.

        Worked: tp 4 in nodes of 8 leaves 2 ranks of a data-parallel group in each node, so 4 rings cross its network and each gets
        a quarter, which serves 2 ranks. In an all-to-all each of the 2 has an eighth.
        """
        bandwidth, latency = np.full_like(size, fabric.link), fabric.link_latency * (size - 1)
        inside = _inside(fabric.node, size, stride)
        near = (inside - 1) / size / fabric.link
        return Group(size, bandwidth, latency, near, np.zeros_like(size), size / inside).over(fabric.tiers, stride)

    def over(self, tiers: tuple[Tier, ...], stride: Floats) -> "Group":
        """The same group where it reaches over units of the network: their uplinks bound it."""
        size, bandwidth, latency, far = self.size, self.bandwidth, self.latency, self.far
        for tier in tiers:
            inside = _inside(tier.devices, size, stride)
            crosses = inside < size
            bandwidth = np.where(crosses, np.minimum(bandwidth, tier.bandwidth * inside / tier.devices), bandwidth)
            # A ring has size - 1 steps; between nodes NCCL's trees need only their depth, ceil(log2(size)).
            latency = np.where(crosses, tier.latency * np.frexp(size - 0.5)[1], latency)
            far = np.maximum(far, (1 - inside / size) * (tier.devices / tier.bandwidth))
        return replace(self, bandwidth=bandwidth, latency=latency, far=far)

    def gather(self, size: Floats) -> Floats:
        """All-gather or reduce-scatter of `size` bytes in all, by a ring: every rank passes on all but its own part."""
        return (self.size - 1) / self.size * size / self.bandwidth + self.latency

    def reduce(self, size: Floats) -> Floats:
        """All-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather(size)

    def exchange(self, size: Floats, once: Floats | float = 1.0) -> Floats:
        """All-to-all: each rank sends all but its own share of `size` bytes, of which a share `once` has to leave its node."""
        return np.maximum(self.near, self.far * once) * size + self.latency


def _inside(unit: int, size: Floats, stride: Floats) -> Floats:
    """Ranks of a group in one unit of so many devices."""
    return np.clip(np.floor(unit / stride), 1, size)


@dataclass(frozen=True)
class Wires:
    """The groups of a layout. Ranks of a tensor-parallel group are neighbours; context, data and expert groups step over it; stages
    are furthest apart."""

    tp: Group
    cp: Group
    ep: Group
    shard: Group
    """Data and context ranks that share out one copy of the weights' optimizer state."""
    experts: Group
    """Those of them that hold the same experts."""
    replicate: Group
    """Ranks with the same share."""
    stage: Group

    @staticmethod
    def of(fabric: Fabric, a: Layouts) -> "Wires":
        if fabric.torus:
            return _on_torus(fabric, fabric.torus, a)
        alone = _alone()
        shard = a.dp_shard * a.cp
        mixed = np.any(a.ep > 1)
        return Wires(
            tp=Group.of(fabric, a.tp, np.ones(1)),
            cp=Group.of(fabric, a.cp, a.tp) if np.any(a.cp > 1) else alone,
            ep=Group.of(fabric, a.ep, a.tp) if mixed else alone,
            shard=Group.of(fabric, shard, a.tp),
            experts=Group.of(fabric, np.maximum(1.0, shard / a.ep), a.tp * a.ep) if mixed else Group.of(fabric, shard, a.tp),
            replicate=Group.of(fabric, a.dp_replicate, a.tp * shard) if np.any(a.dp_replicate > 1) else alone,
            stage=Group.of(fabric, np.full(1, 2.0), a.devices / a.pp),
        )


def _alone() -> Group:
    return Group(np.ones(1), np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1), np.ones(1))


def _on_torus(fabric: Fabric, torus: Torus, a: Layouts) -> Wires:
    """The groups of every layout on the torus of its pod, worked out once per distinct way to cut."""
    axes = np.stack([a.tp, a.cp, a.ep, a.dp_shard, a.dp_replicate, a.pp]).astype(np.int64)
    few, which = np.unique(axes, axis=1, return_inverse=True)
    tp, cp, ep, shard, replicate, pp = few
    mesh = Mesh.of(torus, (tp, cp, shard, replicate, pp))
    inner = mesh.within(ep)  # expert ranks are the first of the context and data ranks

    def spread(found: Group) -> Group:
        return Group(*(value[which.ravel()] for value in vars(found).values()))

    def group(first: int, last: int, stride: Floats, laid: Mesh = mesh) -> Group:
        size, links = laid.size(first, last), laid.links(first, last)
        bandwidth = np.where(links > 0, torus.link * links, fabric.network)
        latency, near = fabric.link_latency * laid.hops(first, last), laid.crossing(first, last) / torus.link
        pods = size / _inside(fabric.node, size, stride)
        return spread(Group(size, bandwidth, latency, near, np.zeros_like(size), pods).over(fabric.tiers, stride))

    stride, beside, none = tp * cp * shard, mesh.neighbour(4), np.zeros(len(tp))
    bandwidth = np.where(beside > 0, torus.link * beside, fabric.network)
    pair = Group(none + 2, bandwidth, none + fabric.link_latency, none, none, none + 1)
    return Wires(
        tp=group(0, 0, np.ones(1)),
        cp=group(1, 1, tp),
        ep=group(1, 1, tp, inner),
        shard=group(1, 2, tp),
        experts=group(2, 2, tp * ep, inner),
        replicate=group(3, 3, stride),
        stage=spread(pair.over(fabric.tiers, np.where(beside > 0, stride * replicate, fabric.node))),
    )
