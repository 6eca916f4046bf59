"""Parse a line of text that names a cluster: '48x8xa100-80gb', 'jean-zay:48', 'tpu-v5p:16x20x28', '4 pods of tpu-v5p', a TOML path.

cluster  = catalogue name [":" nodes] | count "x" catalogue name | torus | hosts ["@" network [":" kind]] | sites | path to a .toml
sites    = count "x" "(" cluster of several nodes ")" "@" network ["," latency]
torus    = [pods "x" | pods " pods of "] chip [":" AxBxC] | chip ":" pods " pods" | [slices "x"] version "-" size, as in 2 x v5e-256
hosts    = host {"+" host}          host  = [count "x"] "(" cards ")" | nodes "x" count "x" chip | cards
cards    = card {"+" card}          card  = [count "x"] chip
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwise import units
from meshwise.catalogue import files, records
from meshwise.catalogue.chips import (
    FABRICS,
    UNKNOWN_HOST,
    Chip,
    Cluster,
    Host,
    Link,
    Node,
    Source,
    Tier,
    chip_names,
    chips,
    fabric_of,
    find_chip,
    known_chip,
    variants,
)
from meshwise.catalogue.pods import MAX_DEVICES, SLICES, number, one_pod, shape_missing, slices_in_text, torus_of
from meshwise.catalogue.prices import Price, check_seller
from meshwise.errors import UserError, did_you_mean, quoted

MAX_NESTING = 4  # deepest nesting of parentheses: sites of sites


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
    notes: tuple[str, ...] = ()


def find_cluster(text: str) -> Cluster:
    """Return the cluster that `text` names, with notes on assumptions."""
    sites = _sites(text)
    if sites is not None:
        return sites
    body, at, network = text.strip().partition("@")
    if text.strip().endswith(".toml"):  # a path may hold an '@' too
        body, at, network = text.strip(), "", ""
    body = body.strip()
    if body.endswith(".toml"):
        cluster = _from_file(read_file(Path(body)), None)
    else:
        plain = body.lower().replace("×", "x")
        slices = slices_in_text(plain) if SLICES.fullmatch(plain) else None
        cluster = _named(plain, text) or slices or torus_of(plain, text) or _hosts(plain, text)
    if at:
        rate, colon, fabric = network.partition(":")
        link = Link(name=network.strip(), bandwidth=units.parse(rate, "bytes/s"))
        if colon and not fabric_of(link):
            kinds = ", ".join(name for name, _ in FABRICS)
            raise UserError(f"cluster {quoted(text)}: unknown kind of network {quoted(fabric)}; expected one of {kinds}")
        cluster = replace(cluster, name=text.strip(), network=link)
    elif cluster.node_count > 1 and cluster.network is None:
        cluster = _with_vendor_network(cluster, text)
    return _check_size(cluster, text)


def _check_size(cluster: Cluster, text: str) -> Cluster:
    """Refuse a cluster with more devices than can be planned."""
    if cluster.devices > MAX_DEVICES:
        raise UserError(f"cluster {quoted(text)} has {cluster.devices:,} devices; at most {MAX_DEVICES:,} can be planned")
    return cluster


def _sites(text: str) -> Cluster | None:
    """Parse several equal clusters with a line between them: '2x(256x8xh100-sxm)@800Gbps,20ms'. One node in parentheses is a host."""
    match = re.fullmatch(r"\s*(\d+)\s*x\s*\((.+)\)\s*(?:@([^@()]*))?", text.replace("×", "x"), re.IGNORECASE)
    inside = match[2].lower() if match else ""
    if match is None or not (re.search(r"^\s*\d+\s*x\s*\d+\s*x|[:@]|pods", inside) or _named(inside, text)):
        return None
    if match[2].count("(") > MAX_NESTING:
        raise UserError(f"cluster {quoted(text)}: sites of sites go {MAX_NESTING + 1} deep at most")
    site = find_cluster(match[2])
    if site.node_count < 2:
        return None
    nodes = tuple((count * number(match[1], text), node) for count, node in site.nodes)
    inner = tuple(tier for tier in site.tiers if tier.nodes < site.node_count)  # a leaf does not span two sites
    whole = replace(site, name=text.strip(), nodes=nodes, tiers=(*inner, _line(match[3] or "", site.node_count, text)))
    return _check_size(whole, text)


def adjusted(cluster: Cluster, *, link: float = 0.0, price: float = 0.0, memory: float = 0.0, seller: str = "") -> Cluster:
    """Return the cluster with the user's own bandwidth between the devices of a node, price of a device and memory of a host, where they
    are given, or with the list prices of one seller."""
    if memory:
        hosts = tuple((count, replace(node, host=replace(node.host, memory=memory))) for count, node in cluster.nodes)
        cluster = replace(cluster, nodes=hosts)
    cluster = with_link(cluster, link) if link else cluster
    cluster = replace(cluster, seller=check_seller(seller, every_price())) if seller else cluster
    return replace(cluster, price=price) if price else cluster


def every_price() -> Iterator[Price]:
    """Yield the prices of all chips and clusters of the catalogue."""
    for known in (*chips(), *cluster_files().values()):
        yield from known.prices


def with_link(cluster: Cluster, bandwidth: str | float) -> Cluster:
    """Return the cluster with another bandwidth between the devices of its nodes."""
    rate = units.parse(bandwidth, "bytes/s")
    if not rate:
        raise UserError(f"link {quoted(bandwidth)} is not a bandwidth between devices; expected something like 450GB/s")
    nodes = tuple(
        (count, replace(node, link=replace(node.link or Link(name="link", bandwidth=rate), bandwidth=rate)))
        for count, node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def _line(words: str, nodes: int, text: str) -> Tier:
    """Parse the line between sites of this many nodes: '800Gbps,20ms'."""
    bandwidth, _, latency = words.partition(",")
    if not bandwidth.strip():
        raise UserError(f"cluster {quoted(text)} has several sites and no line between them; add one, such as @800Gbps,20ms")
    rate = units.parse(bandwidth, "bytes/s")
    if not rate:
        raise UserError(f"cluster {quoted(text)}: the line {quoted(bandwidth.strip())} has no bandwidth")
    seconds = units.parse(latency, "seconds") if latency.strip() else None
    return Tier(name=words.strip(), nodes=nodes, bandwidth=rate, latency=seconds)


def _named(body: str, text: str) -> Cluster | None:
    """Parse a cluster of the catalogue, with its own or another number of nodes: 'jean-zay', 'jean-zay:48', '4xdgx-h100'."""
    name, _, size = body.partition(":")
    known = find_file(name)
    if known is not None:
        return _from_file(known, _nodes(size, text) if size else None)
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", body)
    known = find_file(match[2]) if match and known_chip(match[2]) is None else None
    return _from_file(known, number(match[1], text) * max(known.nodes, known.pods)) if match and known else None


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
    return files.matching(words, known, {key: (file.name, file.chips, file.torus, *file.aliases) for key, file in known.items()})


def find_file(name: str) -> ClusterFile | None:
    """Return the catalogue's cluster with that name or alias, or None. SageMaker writes AWS's machine types with 'ml.' before them."""
    plain = files.squeeze(name.strip().lower().removeprefix("ml."))
    for stem, path in files.files("clusters", ".toml").items():
        if files.squeeze(stem) == plain:
            return read_file(path)
    for known in cluster_files().values():
        if plain in map(files.squeeze, (known.name, *known.aliases)):
            return known
    return None


def read_file(path: Path) -> ClusterFile:
    """Read one cluster from its TOML file."""
    file = replace(records.read(ClusterFile, files.table_of(path), path.name), file=path.name)
    if bool(file.chips) == bool(file.torus):
        raise UserError(f"{path.name}: give either 'chips' (what one node holds) or 'torus' (such as tpu-v5p:16x20x28)")
    if file.pods > 1 if file.chips else file.nodes > 1:
        raise UserError(f"{path.name}: 'nodes' goes with 'chips', 'pods' with 'torus'")
    return file


def _from_file(file: ClusterFile, size: int | None) -> Cluster:
    """Return the cluster of a file, with `size` nodes (or pods) where that is given."""
    try:
        cluster = one_pod(file.torus) if file.torus else Cluster(file.name, ((1, _node(file.chips, file.chips)),))
    except UserError as error:
        raise UserError(f"{file.file}: {error}") from None
    _, node = cluster.nodes[0]
    node = replace(node, host=file.host, link=file.link or node.link)
    return replace(
        cluster, name=file.name, nodes=((size or max(file.nodes, file.pods), node),),
        network=file.network or cluster.network, tiers=tuple(sorted(file.tiers, key=lambda tier: tier.nodes)),
        prices=file.prices, sources=file.sources, notes=file.notes,
    )  # fmt: skip


def _hosts(body: str, text: str) -> Cluster:
    """Parse hosts with their cards. Parentheses enclose a host; a sum without any is one host with different cards."""
    pieces = _split(body, text)
    mixed = len(pieces) > 1 and not any("(" in piece for piece in pieces)
    nodes = ((1, _node(body, text)),) if mixed else tuple(_host(piece.strip(), text) for piece in pieces)
    return Cluster(text.strip(), nodes, notes=(*_chosen_variants(body, text), *_other_memories(nodes), *_unusual_nodes(nodes)))


def _chosen_variants(body: str, text: str) -> list[str]:
    """Return a note for each name that stands for one of several variants of a chip, such as 'h100' for h100-sxm."""
    notes: dict[str, str] = {}
    for piece in re.split(r"[+()]", body):
        name = piece.strip()
        while known_chip(name) is None and (shorter := _split_count(name, text)[1]) != name:
            name = shorter
        chip = known_chip(name)
        others = [key for key in variants(name) if key != chip.key] if chip else []
        if chip and others:
            notes[name] = f"{name} is taken as {chip.key}; the catalogue also has {', '.join(others)}"
    return list(notes.values())


def _other_memories(nodes: tuple[tuple[int, Node], ...]) -> list[str]:
    """Return a note for each chip that has the memory that the text states, and not that of the catalogue."""
    chips = {chip.key: chip for _, node in nodes for _, chip in node.chips}
    listed = {key: find_chip(key).memory for key in chips}
    both = {chip.name: (chip.memory, listed[key]) for key, chip in chips.items() if chip.memory != listed[key]}
    shown = {name: [units.show(memory, "bytes", binary=True) for memory in pair] for name, pair in both.items()}
    return [f"{name} with {own}, as written; the catalogue's has {usual}" for name, (own, usual) in shown.items()]


def _unusual_nodes(nodes: tuple[tuple[int, Node], ...]) -> list[str]:
    """Return a note for each kind of node whose number of devices does not divide the vendor's, such as 7 H100 SXM instead of 8."""
    notes: list[str] = []
    for count, node in nodes:
        each, chip = node.chips[0]
        if len(node.chips) == 1 and chip.network and chip.per_node % each:
            vendors = f"{count}x{chip.per_node}x{chip.key}"
            notes.append(f"nodes with {each} {chip.name}: the vendor's own have {chip.per_node}, as in {vendors}")
    return notes


def _with_vendor_network(cluster: Cluster, text: str) -> Cluster:
    """Add the network of the vendor's own system, with a note. Cards whose vendor sells no system need one in the text."""
    network = cluster.chip.network
    smallest = min(node.devices for _, node in cluster.nodes)
    if network is None or len(cluster.chips) > 1:
        why = f"cluster {quoted(text)} has several hosts and no network between them"
        raise UserError(f"{why}; add one, such as {text.strip()}@10Gbps")
    each = units.show(network.bandwidth, "bytes/s")
    note = f"network not given: the vendor's {network.name}, {each} a device, assumed"
    return replace(cluster, network=replace(network, bandwidth=network.bandwidth * smallest), notes=(*cluster.notes, note))


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
        return number(match[1] or "1", text), _node(match[2], text)
    count, rest = _split_count(piece, text)
    if known_chip(rest) is None:
        per_node, name = _split_count(rest, text)
        if name != rest:
            return count, _node(f"{per_node}x{name}", text)
    chip = _chip(rest, text)
    if count <= chip.per_node:
        return 1, _node(piece, text)
    if count % chip.per_node:
        raise UserError(
            f"cluster {quoted(text)}: {count} is not a multiple of the {chip.per_node} {chip.name} of a node; "
            f"write nodes x devices, such as {_equal_nodes(count, chip.per_node)}x{chip.key}"
        )
    return count // chip.per_node, _node(f"{chip.per_node}x{rest}", text)


def _equal_nodes(count: int, most: int) -> str:
    """Return `count` devices as 'nodes x devices', in as few equal nodes of at most `most` devices as possible."""
    size = next(size for size in range(min(count, most), 0, -1) if count % size == 0)
    return f"{count // size}x{size}"


def _node(cards: str, text: str) -> Node:
    """Build one host from its cards, such as '2xrtx3090+1xrtx3060-12gb'."""
    chips: list[tuple[int, Chip]] = []
    for piece in cards.split("+"):
        count, name = _split_count(piece.strip(), text)
        chips.append((count, _chip(name, text)))
    first = chips[0][1]
    link = first.link if all(c.link == first.link for _, c in chips) else None
    slowest = min((c.host for _, c in chips if c.host), key=lambda host: host.bandwidth, default=None)
    return Node(tuple(chips), link or slowest)


def _split_count(piece: str, text: str) -> tuple[int, str]:
    """Split '4xrtx3090' into 4 and 'rtx3090'. A name that itself starts with a number ('7900xtx') stays whole."""
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", piece)
    if match is None or known_chip(piece) is not None:
        return 1, piece
    return number(match[1], text), match[2].strip()


def _chip(name: str, text: str) -> Chip:
    """Return a card of a host. An unknown name that resembles a cluster's is reported as an unknown cluster."""
    chip = known_chip(name)
    if chip is not None and chip.kind == "tpu":
        raise UserError(shape_missing(chip, text))
    if chip is not None:
        return chip
    if find_file(name) is not None:
        raise UserError(f"cluster {quoted(text)}: {quoted(name)} is a whole cluster; write it alone, as in '{name}:4'")
    cards = chip_names()
    close = files.similar(name, [*cards, *files.names("clusters")])
    if close and close[0] not in cards:
        near = did_you_mean([cluster for cluster in close if cluster not in cards])
        raise UserError(f"unknown cluster {quoted(name)}{near} (meshwise show clusters, or a chip: meshwise show chips)")
    return find_chip(name)
