"""The same kind of cluster, written with another number of nodes or devices, another chip or another network: text to text."""

import math
from itertools import combinations_with_replacement

from meshwise import units
from meshwise.catalogue import chips, clusters, files
from meshwise.catalogue.chips import Chip, Cluster
from meshwise.errors import DoesNotFit, UserError, quoted


def _cluster(text: str) -> Cluster:
    return clusters.find_cluster(text)


def _parted(text: str) -> tuple[str, str]:
    """What the nodes are, and the network with its '@'."""
    body, at, network = text.strip().partition("@")
    return body.strip(), f"@{network.strip()}" if at else ""


def _bare(text: str) -> Chip | None:
    """The chip, where a text names a chip and neither how many nor a cluster."""
    body, _ = _parted(text)
    return None if clusters.find_file(body) else chips.known_chip(body)


def chip_of(text: str) -> Chip:
    """The chip of a cluster that has one kind of node and of chip: another can be varied in no clear way."""
    found = _cluster(text)
    if len(found.chips) > 1 or len({node.devices for _, node in found.nodes}) > 1:
        raise UserError(f"cluster {quoted(text)} mixes chips or nodes of several sizes; training is planned on one kind of each")
    return found.chip


def node_size(text: str) -> int:
    """Devices of one node; a chip alone stands for its vendor's node."""
    bare = _bare(text)
    return bare.per_node if bare else _cluster(text).node.devices


def with_nodes(text: str, nodes: int) -> str:
    """'jean-zay:48', '48x8xa100-80gb-sxm', '2x(4xrtx3090)@10Gbps' or 'tpu-v5p:4x4x4' with another number of nodes (or pods)."""
    body, network = _parted(text)
    if text.strip().endswith(".toml"):
        raise UserError(
            f"the nodes of {quoted(text)} cannot be varied: put the file into {quoted(str(files.user_folder()))}/clusters"
            ", and name it without .toml"
        )
    named = next((name for name in (body.partition(":")[0], body.partition("x")[2]) if name and clusters.find_file(name)), "")
    if named:
        return f"{named.strip()}:{nodes}{network}"
    found, chip = _cluster(text), chip_of(text)
    if found.torus:
        return f"{nodes}x{chip.key}:{'x'.join(map(str, found.torus))}{network}"
    return f"{nodes}x{node_size(text)}x{chip.key}{network}"


def with_devices(text: str, devices: int) -> str:
    """The same nodes, as many as hold so many devices; fewer than a node has are one smaller node."""
    chip, size = chip_of(text), node_size(text)
    if chip.kind == "tpu":
        return _slice(chip, devices) + _parted(text)[1]
    if devices < size:
        return f"1x{devices}x{chip.key}{_parted(text)[1]}"
    if devices % size:
        raise DoesNotFit(f"{devices:,} devices are no whole number of nodes of {size}")
    return with_nodes(text, devices // size)


def with_chip(text: str, key: str) -> str:
    """As many devices of another chip, in nodes of its vendor's size. A network that was said stays; one that was assumed is the new
    vendor's."""
    chip, old = chips.find_chip(key), chip_of(text)
    if chip.key == old.key:
        return text
    network = _parted(text)[1]
    if _bare(text):
        return chip.key + network
    devices, size = _cluster(text).devices, node_size(text)
    if chip.kind == "tpu":
        return _slice(chip, devices) + network
    own = chip.per_node if size == old.per_node or old.kind == "tpu" else size
    if devices <= own:
        return f"1x{devices}x{chip.key}{network}"
    if devices % own:
        raise DoesNotFit(f"{devices:,} devices are no whole number of nodes of {own} {chip.name}")
    return f"{devices // own}x{own}x{chip.key}{network}"


def with_network(text: str, bandwidth: float) -> str:
    """Another bandwidth of the network of a node."""
    if text.strip().endswith(".toml"):
        raise UserError(f"the network of {quoted(text)} stands in its file; write the cluster as in 48x8xa100-80gb-sxm@400Gbps")
    return f"{_parted(text)[0]}@{units.exactly(bandwidth, 'bytes/s')}"


def _slice(chip: Chip, devices: int) -> str:
    """The most compact torus of so many chips that a pod holds, or whole pods."""
    pod = sorted(chip.torus.pod) if chip.torus else []
    if not pod:
        raise DoesNotFit(f"the pod of {chip.name} is not in the catalogue")
    if devices % math.prod(pod) == 0 and devices > math.prod(pod):
        return f"{devices // math.prod(pod)}x{chip.key}:{'x'.join(map(str, pod))}"
    sides = [side for side in range(1, pod[-1] + 1) if devices % side == 0]
    shapes = [
        shape
        for shape in combinations_with_replacement(sides, len(pod))
        if math.prod(shape) == devices and all(side <= most for side, most in zip(shape, pod, strict=True))
    ]
    if not shapes:
        raise DoesNotFit(f"no slice of a {'x'.join(map(str, pod))} pod has {devices:,} chips")
    return f"{chip.key}:{'x'.join(map(str, min(shapes, key=max)))}"
