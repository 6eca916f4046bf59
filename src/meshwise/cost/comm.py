"""Time between devices: what bandwidth a group of them has, and what collectives cost in it."""

from dataclasses import dataclass

import numpy as np

from meshwise.calibration import Calibration
from meshwise.hardware import Cluster
from meshwise.layout import Floats, Layouts


@dataclass(frozen=True)
class Fabric:
    """A cluster as collectives see it: fast links inside a node, and one network per node that all its devices share."""

    node: int
    link: float
    network: float
    """Bytes per second of a whole node."""
    link_latency: float
    network_latency: float

    @staticmethod
    def of(cluster: Cluster, calibration: Calibration) -> "Fabric":
        _, node = cluster.nodes[0]
        link = (node.link.bandwidth * node.link.axes if node.link else 0.0) * calibration.link
        network = (cluster.network.bandwidth if cluster.network else 0.0) * calibration.network
        return Fabric(
            node.devices, link or network or 1e9, network or link or 1e9, calibration.link_latency, calibration.network_latency
        )


@dataclass(frozen=True)
class Group:
    """A communicator of `size` ranks that are `stride` devices apart: bandwidth per rank, and seconds of all its steps without bytes."""

    size: Floats
    bandwidth: Floats
    latency: Floats

    @staticmethod
    def of(fabric: Fabric, size: Floats, stride: Floats) -> "Group":
        """Ranks of one group in a node share a ring; the rings of a node share its network.

        Worked: tp 4 in nodes of 8 leaves 2 ranks of a data-parallel group in each node, so 4 rings cross its network and each gets
        a quarter, which serves 2 ranks.
        """
        inside = np.clip(np.floor(fabric.node / stride), 1, size)
        crosses = inside < size
        share = fabric.network * inside / fabric.node
        bandwidth = np.where(crosses, np.minimum(fabric.link, share), fabric.link)
        # A ring has size - 1 steps; between nodes NCCL's trees need only their depth.
        depth = np.frexp(size - 0.5)[1]  # ceil(log2(size)), and cheaper
        steps = np.where(crosses, fabric.network_latency * depth, fabric.link_latency * (size - 1))
        return Group(size, bandwidth, steps)

    def gather(self, size: Floats) -> Floats:
        """All-gather or reduce-scatter of `size` bytes in all, by a ring: every rank passes on all but its own part."""
        return (self.size - 1) / self.size * size / self.bandwidth + self.latency

    def reduce(self, size: Floats) -> Floats:
        """All-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.gather(size)

    def exchange(self, size: Floats) -> Floats:
        """All-to-all: each rank sends all but its own share of `size` bytes."""
        return self.gather(size)


@dataclass(frozen=True)
class Wires:
    """The groups of a layout. Ranks of a tensor-parallel group are neighbours; context, data and expert groups step over it; stages
    are furthest apart."""

    tp: Group
    cp: Group
    ep: Group
    dp: Group
    """Data and context ranks together: both hold the same weights."""
    stage: Group

    @staticmethod
    def of(fabric: Fabric, a: Layouts) -> "Wires":
        alone = Group(np.ones(1), np.ones(1), np.zeros(1))
        return Wires(
            tp=Group.of(fabric, a.tp, np.ones(1)),
            cp=Group.of(fabric, a.cp, a.tp) if np.any(a.cp > 1) else alone,
            ep=Group.of(fabric, a.ep, a.tp) if np.any(a.ep > 1) else alone,
            dp=Group.of(fabric, a.dp * a.cp, a.tp),
            stage=Group.of(fabric, np.full(1, 2.0), a.devices / a.pp),
        )
