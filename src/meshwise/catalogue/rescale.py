"""Change one property of a cluster in its text: the number of nodes or devices, the chip, or the network."""

import math
from itertools import combinations_with_replacement

from meshwise import units
from meshwise.catalogue import chips, clusters, files
from meshwise.catalogue.chips import Chip, fabric_of
from meshwise.errors import DoesNotFit, UserError, quoted


def _split_network(text: str) -> tuple[str, str]:
    """Split the text of a cluster into its nodes and its network, the latter with the '@'."""
    body, at, network = text.strip().partition("@")
    return body.strip(), f"@{network.strip()}" if at else ""


def _single_chip(text: str) -> Chip | None:
    """Return the chip if the text is only a chip's name, without a count, else None."""
    body, _ = _split_network(text)
    return None if clusters.find_file(body) else chips.known_chip(body)


def chip_of(text: str) -> Chip:
    """Return the chip of a cluster with one kind of node and chip; refuse a mixed cluster, which cannot be varied unambiguously."""
    cluster = clusters.find_cluster(text)
    if len(cluster.chips) > 1 or len({node.devices for _, node in cluster.nodes}) > 1:
        raise UserError(f"cluster {quoted(text)} mixes chips or nodes of several sizes; training is planned on one kind of each")
    return cluster.chip


def node_size(text: str) -> int:
    """Return the devices per node; a chip's name alone stands for its vendor's node."""
    single = _single_chip(text)
    return single.per_node if single else clusters.find_cluster(text).node.devices


def with_nodes(text: str, nodes: int) -> str:
    """Return the cluster with another number of nodes (or pods), such as 'jean-zay:48', '48x8xa100-80gb-sxm' or '4xtpu-v5p:4x4x4'."""
    body, network = _split_network(text)
    if text.strip().endswith(".toml"):
        raise UserError(
            f"the nodes of {quoted(text)} cannot be varied: put the file into {quoted(str(files.user_folder()))}/clusters"
            " and give its name without .toml"
        )
    named = next((name for name in (body.partition(":")[0], body.partition("x")[2]) if name and clusters.find_file(name)), "")
    if named:
        return f"{named.strip()}:{nodes}{network}"
    cluster, chip = clusters.find_cluster(text), chip_of(text)
    if cluster.torus:
        return f"{nodes}x{chip.key}:{'x'.join(map(str, cluster.torus))}{network}"
    return f"{nodes}x{node_size(text)}x{chip.key}{network}"


def with_devices(text: str, devices: int) -> str:
    """Return the cluster with as many nodes as hold `devices`; fewer devices than a node has become one smaller node."""
    chip, size = chip_of(text), node_size(text)
    if chip.kind == "tpu":
        return _slice(chip, devices) + _split_network(text)[1]
    if devices < size:
        return f"1x{devices}x{chip.key}{_split_network(text)[1]}"
    if devices % size:
        raise DoesNotFit(f"{devices:,} devices do not fill whole nodes of {size}; expected a multiple of {size}")
    return with_nodes(text, devices // size)


def with_chip(text: str, key: str) -> str:
    """Return the cluster with as many devices of another chip, in nodes of its vendor's size, or with as many boxes of a named one as hold
    them, at least one: 'dgx-spark'. `key` may name a size of memory ('m3-ultra-256gb'). A network given in the text stays; otherwise it is
    that of the new chip's vendor."""
    devices = clusters.find_cluster(text).devices
    if chips.known_chip(key) is None and clusters.find_file(key):
        return f"{key}:{max(1, devices // clusters.find_cluster(f'{key}:1').devices)}"
    chip, old = chips.find_chip(key), chip_of(text)
    if (chip.key, chip.memory) == (old.key, old.memory):
        return text
    network = _split_network(text)[1]
    if _single_chip(text):
        return key + network
    size = node_size(text)
    if chip.kind == "tpu":
        return _slice(chip, devices) + network
    per_node = chip.per_node if size == old.per_node or old.kind == "tpu" else size
    if devices <= per_node:
        return f"1x{devices}x{key}{network}"
    if devices % per_node:
        raise DoesNotFit(f"{devices:,} devices do not fill whole nodes of {per_node} {chip.name}")
    return f"{devices // per_node}x{per_node}x{key}{network}"


def with_network(text: str, bandwidth: float) -> str:
    """Return the cluster with another network bandwidth per node, of the same kind where that is known: '@400GB/s:infiniband'."""
    if text.strip().endswith(".toml"):
        raise UserError(f"the network of {quoted(text)} is set in its file; write the cluster as in 48x8xa100-80gb-sxm@400Gbps")
    kind = fabric_of(clusters.find_cluster(text).network)
    return f"{_split_network(text)[0]}@{units.exactly(bandwidth, 'bytes/s')}{f':{kind}' if kind else ''}"


def _slice(chip: Chip, devices: int) -> str:
    """Return the most compact torus with this many chips that fits into a pod, or whole pods."""
    pod = sorted(chip.torus.pod) if chip.torus else []
    if not pod:
        raise DoesNotFit(f"the pod of {chip.name} is not in the catalogue")
    if devices % math.prod(pod) == 0 and devices > math.prod(pod):
        return f"{devices // math.prod(pod)}x{chip.key}:{'x'.join(map(str, pod))}"
    sides = [side for side in range(1, pod[-1] + 1) if devices % side == 0]
    shapes = [shape for shape in combinations_with_replacement(sides, len(pod)) if math.prod(shape) == devices]
    shapes = [shape for shape in shapes if all(side <= most for side, most in zip(shape, pod, strict=True))]
    if not shapes:
        raise DoesNotFit(f"no slice of a {'x'.join(map(str, pod))} pod has {devices:,} chips")
    return f"{chip.key}:{'x'.join(map(str, min(shapes, key=max)))}"
