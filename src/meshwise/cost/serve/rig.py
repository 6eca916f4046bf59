"""Rig: the devices of a replica in the order of the layers on them, and the links between them."""

from dataclasses import dataclass

from meshwise.catalogue.chips import Chip, Cluster, Link


@dataclass(frozen=True, kw_only=True)
class Rig:
    """Devices in the order of the layers on them, and the links between them."""

    chips: tuple[Chip, ...]
    hosts: tuple[int, ...]  # the host of each device
    cpu: Chip  # computes the layers that stay in host memory
    link: Link | None = None  # inside a host
    network: Link | None = None  # between hosts

    @classmethod
    def of(cls, cluster: Cluster, cpu: Chip) -> "Rig":
        """List the devices of a cluster whose hosts have this CPU."""
        chips: list[Chip] = []
        hosts: list[int] = []
        for count, node in cluster.nodes:
            for _ in range(count):
                host = hosts[-1] + 1 if hosts else 0
                chips += [chip for number, chip in node.chips for _ in range(number)]
                hosts += [host] * node.devices
        return cls(chips=tuple(chips), hosts=tuple(hosts), cpu=cpu, link=cluster.node.link, network=cluster.network)
