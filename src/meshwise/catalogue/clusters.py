"""Parse a line of text that names a cluster: '48x8xa100-80gb', 'jean-zay:48', 'tpu-v5p:16x20x28', '4 pods of tpu-v5p', a TOML path.

cluster  = catalogue name [":" nodes] | count "x" catalogue name | torus | hosts ["@" network] | sites | path to a .toml
sites    = count "x" "(" cluster of several nodes ")" "@" network ["," latency]
torus    = [pods "x" | pods " pods of "] chip [":" AxBxC] | chip ":" pods " pods"
hosts    = host {"+" host}          host  = [count "x"] "(" cards ")" | nodes "x" count "x" chip | cards
cards    = card {"+" card}          card  = [count "x"] chip
"""

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwise import units
from meshwise.catalogue import files, records
from meshwise.catalogue.chips import (
    UNKNOWN_HOST,
    Chip,
    Cluster,
    Host,
    Link,
    Node,
    Price,
    Source,
    Tier,
    chip_names,
    find_chip,
    known_chip,
    variants,
)
from meshwise.errors import UserError, did_you_mean, quoted

MOST_DEVICES = 10**7
DEEPEST = 4
"""How deep parentheses may be nested: sites of sites."""


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """A cluster as data/clusters/*.toml writes it: nodes of chips, or pods of a torus."""

    file: str = field(default="", metadata={"derived": True})
    name: str
    sources: tuple[Source, ...] = ()
    aliases: tuple[str, ...] = ()
    nodes: int = 1
    chips: str = ""
    torus: str = ""
    pods: int = 1
    link: Link | None = None
    network: Link | None = None
    tiers: tuple[Tier, ...] = ()
    host: Host = UNKNOWN_HOST
    prices: tuple[Price, ...] = ()


def find_cluster(text: str) -> Cluster:
    """Return the cluster that `text` names. Its notes say what was assumed."""
    sites = _sites(text)
    if sites is not None:
        return sites
    body, at, network = text.strip().partition("@")
    if text.strip().endswith(".toml"):  # a path may hold an '@' too
        body, at, network = text.strip(), "", ""
    body = body.strip()
    if body.endswith(".toml"):
        found = _from_file(read_file(Path(body)), None)
    else:
        plain = body.lower().replace("×", "x")
        found = _named(plain, text) or _torus(plain, text) or _hosts(plain, text)
    if at:
        link = Link(name=network.strip(), bandwidth=units.parse(network, "bytes/s"))
        found = replace(found, name=text.strip(), network=link)
    elif found.node_count > 1 and found.network is None:
        found = _with_vendor_network(found, text)
    return _not_too_large(found, text)


def _not_too_large(found: Cluster, text: str) -> Cluster:
    """Refuse a cluster with more devices than can be planned."""
    if found.devices > MOST_DEVICES:
        raise UserError(f"cluster {quoted(text)} has {found.devices:,} devices; at most {MOST_DEVICES:,} can be planned")
    return found


def _sites(text: str) -> Cluster | None:
    """Parse several equal clusters with a line between them: '2x(256x8xh100-sxm)@800Gbps,20ms'. One node in parentheses is a host."""
    match = re.fullmatch(r"\s*(\d+)\s*x\s*\((.+)\)\s*(?:@([^@()]*))?", text.replace("×", "x"), re.IGNORECASE)
    inside = match[2].lower() if match else ""
    if match is None or not (re.search(r"^\s*\d+\s*x\s*\d+\s*x|[:@]|pods", inside) or _named(inside, text)):
        return None
    if match[2].count("(") > DEEPEST:
        raise UserError(f"cluster {quoted(text)}: sites of sites go {DEEPEST + 1} deep at most")
    one = find_cluster(match[2])
    if one.node_count < 2:
        return None
    nodes = tuple((count * _number(match[1], text), node) for count, node in one.nodes)
    inner = tuple(tier for tier in one.tiers if tier.nodes < one.node_count)  # a leaf does not span two sites
    whole = replace(one, name=text.strip(), nodes=nodes, tiers=(*inner, _line(match[3] or "", one.node_count, text)))
    return _not_too_large(whole, text)


def adjusted(cluster: Cluster, *, link: float = 0.0, price: float = 0.0) -> Cluster:
    """Return the cluster with the user's own bandwidth between the devices of a node and price of a device, where they are given."""
    cluster = with_link(cluster, link) if link else cluster
    return replace(cluster, price=price) if price else cluster


def with_link(found: Cluster, bandwidth: str | float) -> Cluster:
    """Return the cluster with another bandwidth between the devices of its nodes."""
    rate = units.parse(bandwidth, "bytes/s")
    if not rate:
        raise UserError(f"--link {quoted(bandwidth)} is not a bandwidth between devices; expected something like 450GB/s")
    nodes = tuple(
        (count, replace(node, link=replace(node.link or Link(name="link", bandwidth=rate), bandwidth=rate)))
        for count, node in found.nodes
    )
    return replace(found, nodes=nodes)


def _line(words: str, nodes: int, text: str) -> Tier:
    """Parse the line between sites of this many nodes: '800Gbps,20ms'."""
    bandwidth, _, latency = words.partition(",")
    if not bandwidth.strip():
        raise UserError(f"cluster {quoted(text)} has several sites and no line between them; add one, such as @800Gbps,20ms")
    rate = units.parse(bandwidth, "bytes/s")
    if not rate:
        raise UserError(f"cluster {quoted(text)}: the line {quoted(bandwidth.strip())} has no bandwidth")
    return Tier(
        name=words.strip(), nodes=nodes, bandwidth=rate, latency=units.parse(latency, "seconds") if latency.strip() else None
    )


def _named(body: str, text: str) -> Cluster | None:
    """Parse a cluster of the catalogue, with its own or another number of nodes: 'jean-zay', 'jean-zay:48', '4xdgx-h100'."""
    name, _, size = body.partition(":")
    known = find_file(name)
    if known is not None:
        return _from_file(known, _nodes(size, text) if size else None)
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", body)
    known = find_file(match[2]) if match and known_chip(match[2]) is None else None
    return _from_file(known, _number(match[1], text) * max(known.nodes, known.pods)) if match and known else None


def _nodes(size: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?:nodes?|pods?|hosts?)?\s*", size)
    if match is None or not int(match[1]):
        raise UserError(f"cluster {quoted(text)}: {quoted(size)} is not a number of nodes; write it as in 'jean-zay:48'")
    return int(match[1])


@files.cached
def cluster_files() -> dict[str, ClusterFile]:
    """Return all clusters of the catalogue by name."""
    return {name: read_file(path) for name, path in files.files("clusters", ".toml").items()}


def filter_clusters(words: str) -> list[str]:
    """Return the name of the cluster that is exactly `words`, else the names of all with every word in their names, aliases or chips."""
    known = cluster_files()
    return files.matching(words, known, {key: (one.name, one.chips, one.torus, *one.aliases) for key, one in known.items()})


def find_file(name: str) -> ClusterFile | None:
    """Return the catalogue's cluster with that name or alias, or None."""
    plain = files.squeeze(name)
    for stem, path in files.files("clusters", ".toml").items():
        if files.squeeze(stem) == plain:
            return read_file(path)
    for known in cluster_files().values():
        if plain in map(files.squeeze, (known.name, *known.aliases)):
            return known
    return None


def read_file(path: Path) -> ClusterFile:
    """Read one cluster from its TOML file."""
    found = replace(records.read(ClusterFile, files.table_of(path), path.name), file=path.name)
    if bool(found.chips) == bool(found.torus):
        raise UserError(f"{path.name}: give either 'chips' (what one node holds) or 'torus' (such as tpu-v5p:16x20x28)")
    if found.pods > 1 if found.chips else found.nodes > 1:
        raise UserError(f"{path.name}: 'nodes' goes with 'chips', 'pods' with 'torus'")
    return found


def _from_file(found: ClusterFile, size: int | None) -> Cluster:
    """Return the cluster of a file, with `size` nodes (or pods) where that is given."""
    try:
        whole = _one_pod(found.torus) if found.torus else Cluster(found.name, ((1, _node(found.chips, found.chips)),))
    except UserError as error:
        raise UserError(f"{found.file}: {error}") from None
    _, node = whole.nodes[0]
    node = replace(node, host=found.host, link=found.link or node.link)
    return replace(
        whole,
        name=found.name,
        nodes=((size or max(found.nodes, found.pods), node),),
        network=found.network or whole.network,
        tiers=tuple(sorted(found.tiers, key=lambda tier: tier.nodes)),
        prices=found.prices,
        sources=found.sources,
    )


def _one_pod(torus: str) -> Cluster:
    found = _torus(torus.lower(), torus)
    if found is None or found.node_count > 1:
        raise UserError(f"torus: {quoted(torus)} is not one torus such as tpu-v5p:16x20x28")
    return found


def _torus(body: str, text: str) -> Cluster | None:
    """Parse one or several pods of a chip whose links form a torus; None when the chip has no torus."""
    counted = re.search(r"(?<!\d)(\d+)\s*pods?\b(?:\s+of\b)?", body)
    rest = body.replace(counted[0], "", 1) if counted else body
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?([a-z][\w .-]*)(?::\s*([\dx]+))?", rest.strip(" ,:"))
    found = known_chip(match[2]) if match else None
    if match is None or found is None or found.kind != "tpu":
        return None
    if match[1] and not match[3]:
        raise UserError(_shape_missing(found, text))
    if match[1] and counted:
        raise UserError(
            f"cluster {quoted(text)}: the number of pods is given twice, '{match[1]}x' and {quoted(counted[0].strip())}"
        )
    pods = _number(counted[1] if counted else match[1] or "1", text)
    shape = tuple(_number(side, text) if side else 0 for side in match[3].split("x")) if match[3] else _whole_pod(found, text)
    _check_torus(shape, found, text)
    return _pods(shape, found, pods, text)


def _shape_missing(found: Chip, text: str) -> str:
    return f"cluster {quoted(text)}: a slice of {found.name} needs its shape, such as {_example(found)}"


def _example(found: Chip) -> str:
    """Return a slice of this chip as text: its whole pod, or 8 chips along each axis."""
    axes = found.link.axes if found.link else 3
    return f"{found.key}:{'x'.join(map(str, found.torus.pod if found.torus and found.torus.pod else (8,) * axes))}"


def _whole_pod(found: Chip, text: str) -> tuple[int, ...]:
    """Return the shape of the chip's largest pod."""
    if found.torus is None or not found.torus.pod:
        raise UserError(
            f"cluster {quoted(text)}: the pod shape of {found.name} is not in the catalogue; give one, such as {_example(found)}"
        )
    return found.torus.pod


def _check_torus(shape: tuple[int, ...], found: Chip, text: str) -> None:
    axes = found.link.axes if found.link else 3
    if not shape or len(shape) > axes or not all(shape):
        raise UserError(f"cluster {quoted(text)}: {found.name} is a torus of {axes} axes, such as {_example(found)}")
    largest = found.torus.pod if found.torus else ()
    if largest and any(
        side > most for side, most in zip(sorted(shape, reverse=True), sorted(largest, reverse=True), strict=False)
    ):
        raise UserError(f"cluster {quoted(text)}: does not fit in the largest pod of {found.name}, {'x'.join(map(str, largest))}")


def _pods(shape: tuple[int, ...], found: Chip, pods: int, name: str) -> Cluster:
    """Build pods of this shape. The network of a pod is the sum of its chips' shares of the data-center network."""
    chips = math.prod(shape)
    network = found.network and replace(found.network, bandwidth=found.network.bandwidth * chips)
    return Cluster(name.strip(), ((pods, Node(((chips, found),), found.link)),), network=network, torus=shape)


def _hosts(body: str, text: str) -> Cluster:
    """Parse hosts with their cards. Parentheses enclose a host; a sum without any is one host with different cards."""
    pieces = _split(body, text)
    mixed = len(pieces) > 1 and not any("(" in piece for piece in pieces)
    nodes = ((1, _node(body, text)),) if mixed else tuple(_host(piece.strip(), text) for piece in pieces)
    return Cluster(text.strip(), nodes, notes=(*_chosen_variants(body, text), *_unusual_nodes(nodes)))


def _chosen_variants(body: str, text: str) -> list[str]:
    """Return a note for each name that stands for one of several variants of a chip, such as 'h100' for h100-sxm."""
    notes: dict[str, str] = {}
    for piece in re.split(r"[+()]", body):
        name = piece.strip()
        while known_chip(name) is None and (shorter := _split_count(name, text)[1]) != name:
            name = shorter
        found = known_chip(name)
        others = [key for key in variants(name) if key != found.key] if found else []
        if found and others:
            notes[name] = f"{name} is taken as {found.key}; the catalogue also has {', '.join(others)}"
    return list(notes.values())


def _unusual_nodes(nodes: tuple[tuple[int, Node], ...]) -> list[str]:
    """Return a note for each kind of node whose number of devices does not divide the vendor's, such as 7 H100 SXM instead of 8."""
    notes: list[str] = []
    for count, node in nodes:
        each, found = node.chips[0]
        if len(node.chips) == 1 and found.network and found.per_node % each:
            own = f"{count}x{found.per_node}x{found.key}"
            notes.append(f"nodes with {each} {found.name}: the vendor's own have {found.per_node}, as in {own}")
    return notes


def _with_vendor_network(found: Cluster, text: str) -> Cluster:
    """Add the network of the vendor's own system, with a note. Cards whose vendor sells no system need one in the text."""
    own = found.chip.network
    smallest = min(node.devices for _, node in found.nodes)
    if own is None or len(found.chips) > 1:
        raise UserError(
            f"cluster {quoted(text)} has several hosts and no network between them; add one, such as {text.strip()}@10Gbps"
        )
    each = units.show(own.bandwidth, "bytes/s")
    note = f"network not given: {own.name}, {each} per device, assumed as in the vendor's own system"
    return replace(found, network=replace(own, bandwidth=own.bandwidth * smallest), notes=(*found.notes, note))


def _split(body: str, text: str) -> list[str]:
    """Split at each '+' outside parentheses."""
    parts, depth = [""], 0
    for letter in body:
        depth += (letter == "(") - (letter == ")")
        if depth < 0 or depth > 1:
            raise UserError(f"cluster {quoted(text)}: parentheses do not match; write hosts as in 2x(4xrtx3090)@10Gbps")
        if letter == "+" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise UserError(f"cluster {quoted(text)}: parentheses do not match; write hosts as in 2x(4xrtx3090)@10Gbps")
    return parts


def _host(piece: str, text: str) -> tuple[int, Node]:
    """Parse one term of a sum of hosts: how many there are, and the cards of each."""
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?\((.+)\)", piece)
    if match:
        return _number(match[1] or "1", text), _node(match[2], text)
    count, rest = _split_count(piece, text)
    if known_chip(rest) is None:
        per_node, name = _split_count(rest, text)
        if name != rest:
            return count, _node(f"{per_node}x{name}", text)
    found = _chip(rest, text)
    if count <= found.per_node:
        return 1, _node(piece, text)
    if count % found.per_node:
        raise UserError(
            f"cluster {quoted(text)}: {count} is not a multiple of the {found.per_node} {found.name} of a node; "
            f"write nodes x devices, such as {_equal_nodes(count, found.per_node)}x{found.key}"
        )
    return count // found.per_node, _node(f"{found.per_node}x{rest}", text)


def _equal_nodes(count: int, most: int) -> str:
    """Return `count` devices as 'nodes x devices', in as few equal nodes of at most `most` devices as possible."""
    size = next(size for size in range(min(count, most), 0, -1) if count % size == 0)
    return f"{count // size}x{size}"


def _node(cards: str, text: str) -> Node:
    """Build one host from its cards, such as '2xrtx3090+1xrtx3060-12gb'."""
    found: list[tuple[int, Chip]] = []
    for piece in cards.split("+"):
        count, name = _split_count(piece.strip(), text)
        found.append((count, _chip(name, text)))
    first = found[0][1]
    link = first.link if all(c.link == first.link for _, c in found) else None
    slowest = min((c.host for _, c in found if c.host), key=lambda host: host.bandwidth, default=None)
    return Node(tuple(found), link or slowest)


def _split_count(piece: str, text: str) -> tuple[int, str]:
    """Split '4xrtx3090' into 4 and 'rtx3090'. A name that itself starts with a number ('7900xtx') stays whole."""
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", piece)
    if match is None or known_chip(piece) is not None:
        return 1, piece
    return _number(match[1], text), match[2].strip()


def _number(digits: str, text: str) -> int:
    """Parse a number of devices, nodes or chips along an axis."""
    if len(digits) > 8 or not int(digits):
        raise UserError(f"cluster {quoted(text)}: {quoted(digits)} is not a number of devices from 1 to {MOST_DEVICES:,}")
    return int(digits)


def _chip(name: str, text: str) -> Chip:
    """Return a card of a host. An unknown name that resembles a cluster's is reported as an unknown cluster."""
    found = known_chip(name)
    if found is not None and found.kind == "tpu":
        raise UserError(_shape_missing(found, text))
    if found is not None:
        return found
    if find_file(name) is not None:
        raise UserError(f"cluster {quoted(text)}: {quoted(name)} is a whole cluster; write it alone, as in '{name}:4'")
    cards = chip_names()
    close = files.similar(name, [*cards, *files.names("clusters")])
    if close and close[0] not in cards:
        near = did_you_mean([one for one in close if one not in cards])
        raise UserError(f"unknown cluster {quoted(name)}{near} (meshwise show clusters, or a chip: meshwise show chips)")
    return find_chip(name)
