"""Facts of nodes as a cluster's file for `--on cluster.toml`: every fact with its source, and what could not be seen."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwise import units
from meshwise.catalogue import chips, clusters, files, records
from meshwise.catalogue.chips import Chip, Cluster, Host, Link
from meshwise.catalogue.clusters import ClusterFile
from meshwise.programs.forms import comment
from meshwise.run.preflight import tools
from meshwise.run.preflight.tools import NodeFacts

FILE = "cluster.toml"
MAX_NAMED_NODES = 16


@dataclass(frozen=True)
class Found:
    """A cluster as it was seen."""

    nodes: tuple[NodeFacts, ...]
    unseen: tuple[str, ...]
    chip: str  # the chip's name in the catalogue; '' where that does not have it
    measured: float = 0.0
    """Bytes per second between two nodes that were measured, of all devices of a node together; 0: not measured."""

    @property
    def usual(self) -> NodeFacts:
        """The most frequent kind of node."""
        kinds = Counter((node.devices, node.chip) for node in self.nodes)
        return next(node for node in self.nodes if (node.devices, node.chip) == kinds.most_common(1)[0][0])

    def facts(self) -> list[tuple[str, str, str]]:
        """Return what was seen in words: what, value, source."""
        names = ", ".join(node.host for node in self.nodes[:MAX_NAMED_NODES])
        more = f" and {len(self.nodes) - MAX_NAMED_NODES} more" if len(self.nodes) > MAX_NAMED_NODES else ""
        rows = [("nodes", f"{len(self.nodes)} ({names}{more})", self.usual.sources.get("host", "this machine")),
            *tools.shown(self.usual)]  # fmt: skip
        others = [node.host for node in self.nodes if (node.devices, node.chip) != (self.usual.devices, self.usual.chip)]
        rows += [("other kinds of nodes", ", ".join(others[:MAX_NAMED_NODES]), "left out of cluster.toml")] if others else []
        return rows + [("down", f"{node.host}: {node.state}", "the controller") for node in self.nodes if node.state != "ready"]

    def cluster_file(self) -> ClusterFile | None:
        """Return the file; None where the catalogue does not have the chip."""
        node, known = self.usual, chips.known_chip(self.chip) if self.chip else None
        if known is None:
            return None
        same = [one for one in self.nodes if (one.devices, one.chip) == (node.devices, node.chip) and one.state == "ready"]
        return ClusterFile(
            name=f"{len(same) or 1} x {node.host}" if len(same) < 2 else f"{same[0].host} to {same[-1].host}", nodes=len(same) or 1,
            chips=f"{max(1, node.devices)}x{known.key}", link=_link(node, known), network=self._network(known, len(same)),
            host=Host(memory=node.memory or None, cpus=f"{node.cpus} CPUs" if node.cpus else ""))  # fmt: skip

    def _network(self, known: Chip, nodes: int) -> Link | None:
        stated = "virtual" not in self.usual.sources.get("network", "") or not self.measured
        if self.usual.network and stated:
            return Link(name=self.usual.network_name or "network", bandwidth=self.usual.network)
        if self.measured:
            return Link(name="measured", bandwidth=self.measured)
        return None if nodes < 2 or known.network else Link(name="assumed", bandwidth=units.parse("10Gbps", "bytes/s"))

    def write(self, folder: Path) -> Path | None:
        """Write cluster.toml; None where the catalogue does not have the chip."""
        file = self.cluster_file()
        if file is None:
            return None
        lines = ["Written by 'meshwise preflight'. Where each fact came from:"]
        lines += [f"  {what}: {value}" + (f" [{source}]" if source else "") for what, value, source in self.facts()]
        network = "measured between nodes" if file.network and file.network.name == "measured" else ""
        lines += [f"  network: {network}"] if network else []
        lines += [f"not seen: {words}" for words in self.unseen]
        path = folder / FILE
        files.write(path, records.toml(replace(file), comment(lines).rstrip("\n")))
        return path

    def cluster(self) -> Cluster | None:
        """Return the cluster to predict with."""
        file = self.cluster_file()
        if file is None:
            return None
        network = f"@{units.exactly(file.network.bandwidth, 'bytes/s')}" if file.network else ""
        return clusters.find_cluster(f"{file.nodes}x{file.chips}{network}")


def _link(node: NodeFacts, known: Chip) -> Link | None:
    """Return the link between the devices of a node where it is not the chip's own: a bridge, or PCIe where that has NVLink."""
    if node.link.startswith("NV"):
        return known.bridge if known.link == known.host else None
    return known.host if node.link and node.devices > 1 and known.link != known.host else None


def found(nodes: Sequence[NodeFacts], unseen: Sequence[str], measured: float = 0.0) -> Found:
    """Return the cluster of these nodes, with the catalogue's name of their chip; the generic CPU's where they have no GPU."""
    one = Found(tuple(nodes), tuple(dict.fromkeys(unseen)), "")
    name = one.usual.chip
    known = chips.known_chip(name) if name else chips.known_chip("cpu")
    strange = [f"the chip {name!r} is not in the catalogue: cluster.toml is not written"] if name and known is None else []
    chip = known.key if known and (name or not one.usual.devices) else ""
    return Found(one.nodes, (*one.unseen, *strange), chip, measured)
