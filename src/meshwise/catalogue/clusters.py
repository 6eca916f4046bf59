"""The cluster that a line of text names: '48x8xa100-80gb', 'jean-zay:48', 'tpu-v5p:16x20x28', '4 pods of tpu-v5p', a TOML path.

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
)
from meshwise.errors import UserError, nearest, quoted

MOST_DEVICES = 10**7
DEEPEST = 4
"""Parentheses in parentheses: sites of sites."""


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
    """The cluster that `text` names."""
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
        found = replace(found, name=text.strip(), network=link, notes=())
    elif found.node_count > 1 and found.network is None:
        found = _with_vendor_network(found, text)
    return _not_too_large(found, text)


def _not_too_large(found: Cluster, text: str) -> Cluster:
    if found.devices > MOST_DEVICES:
        raise UserError(f"cluster {quoted(text)} has {found.devices:,} devices; at most {MOST_DEVICES:,} can be planned")
    return found


def _sites(text: str) -> Cluster | None:
    """Several clusters of one kind with a line between them: '2x(256x8xh100-sxm)@800Gbps,20ms'. One node in parentheses is a host."""
    match = re.fullmatch(r"\s*(\d+)\s*x\s*\((.+)\)\s*(?:@([^@()]*))?", text.replace("×", "x"), re.IGNORECASE)
    inside = match[2].lower() if match else ""
    if match is None or not (re.search(r"^\s*\d+\s*x\s*\d+\s*x|[:@]|pods", inside) or _named(inside, text)):
        return None
    if match[2].count("(") > DEEPEST:
        raise UserError(f"cluster {quoted(text)}: sites of sites go {DEEPEST + 1} deep at most")
    one = find_cluster(match[2])
    if one.node_count < 2:
        return None
    nodes = tuple((count * _counted(match[1], text), node) for count, node in one.nodes)
    inner = tuple(tier for tier in one.tiers if tier.nodes < one.node_count)  # a leaf does not reach over to another site
    whole = replace(one, name=text.strip(), nodes=nodes, tiers=(*inner, _line(match[3] or "", one.node_count, text)))
    return _not_too_large(whole, text)


def adjusted(cluster: Cluster, *, link: float = 0.0, price: float = 0.0) -> Cluster:
    """The cluster with the user's own bandwidth between the devices of a node and price of a device, where they are given."""
    cluster = with_link(cluster, link) if link else cluster
    return replace(cluster, price=price) if price else cluster


def with_link(found: Cluster, bandwidth: str | float) -> Cluster:
    """The same cluster with another bandwidth between the devices of its nodes."""
    rate = units.parse(bandwidth, "bytes/s")
    if not rate:
        raise UserError(f"--link {quoted(bandwidth)} is no bandwidth between devices; expected something like 450GB/s")
    nodes = tuple(
        (count, replace(node, link=replace(node.link or Link(name="link", bandwidth=rate), bandwidth=rate)))
        for count, node in found.nodes
    )
    return replace(found, nodes=nodes)


def _line(words: str, nodes: int, text: str) -> Tier:
    """What joins a site of so many nodes to the others: '800Gbps,20ms'."""
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
    """A cluster of the catalogue, with another number of nodes, or several of it: 'jean-zay', 'jean-zay:48', '4xdgx-h100'."""
    name, _, size = body.partition(":")
    known = find_file(name)
    if known is not None:
        return _from_file(known, _nodes(size, text) if size else None)
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", body)
    known = find_file(match[2]) if match and known_chip(match[2]) is None else None
    return _from_file(known, _counted(match[1], text) * max(known.nodes, known.pods)) if match and known else None


def _nodes(size: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?:nodes?|pods?|hosts?)?\s*", size)
    if match is None or not int(match[1]):
        raise UserError(f"cluster {quoted(text)}: {quoted(size)} is not a number of nodes; write it as in 'jean-zay:48'")
    return int(match[1])


@files.cached
def cluster_files() -> dict[str, ClusterFile]:
    return {name: read_file(path) for name, path in files.files("clusters", ".toml").items()}


def find_file(name: str) -> ClusterFile | None:
    wanted = files.squeeze(name)
    for stem, path in files.files("clusters", ".toml").items():
        if files.squeeze(stem) == wanted:
            return read_file(path)
    for known in cluster_files().values():
        if wanted in map(files.squeeze, (known.name, *known.aliases)):
            return known
    return None


def read_file(path: Path) -> ClusterFile:
    found = replace(records.read(ClusterFile, files.table_of(path), path.name), file=path.name)
    if bool(found.chips) == bool(found.torus):
        raise UserError(f"{path.name}: give either 'chips' (what one node holds) or 'torus' (such as tpu-v5p:16x20x28)")
    if found.pods > 1 if found.chips else found.nodes > 1:
        raise UserError(f"{path.name}: 'nodes' goes with 'chips', 'pods' with 'torus'")
    return found


def _from_file(found: ClusterFile, size: int | None) -> Cluster:
    """The cluster of a file, with another number of nodes (or pods) where `size` asks for one."""
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


def _torus(wanted: str, text: str) -> Cluster | None:
    """One or several pods of a chip whose links make a torus; None when the chip has no torus."""
    said = re.search(r"(?<!\d)(\d+)\s*pods?\b(?:\s+of\b)?", wanted)
    rest = wanted.replace(said[0], "", 1) if said else wanted
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?([a-z][\w .-]*)(?::\s*([\dx]+))?", rest.strip(" ,:"))
    found = known_chip(match[2]) if match else None
    if match is None or found is None or found.kind != "tpu":
        return None
    if match[1] and not match[3]:
        raise UserError(_shapeless(found, text))
    if match[1] and said:
        raise UserError(f"cluster {quoted(text)}: says twice how many pods, '{match[1]}x' and {quoted(said[0].strip())}")
    pods = _counted(said[1] if said else match[1] or "1", text)
    shape = tuple(_counted(side, text) if side else 0 for side in match[3].split("x")) if match[3] else _whole_pod(found, text)
    _check_torus(shape, found, text)
    return _pods(shape, found, pods, text)


def _shapeless(found: Chip, text: str) -> str:
    return f"cluster {quoted(text)}: a slice of {found.name} needs its shape, such as {_example(found)}"


def _example(found: Chip) -> str:
    axes = found.link.axes if found.link else 3
    return f"{found.key}:{'x'.join(map(str, found.torus.pod if found.torus and found.torus.pod else (8,) * axes))}"


def _whole_pod(found: Chip, text: str) -> tuple[int, ...]:
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
    """Every chip of a pod has its own share of the data-center network."""
    chips = math.prod(shape)
    network = found.network and replace(found.network, bandwidth=found.network.bandwidth * chips)
    return Cluster(name.strip(), ((pods, Node(((chips, found),), found.link)),), network=network, torus=shape)


def _hosts(body: str, text: str) -> Cluster:
    """Hosts with their cards. Parentheses make a host; a sum without any is one host of unequal cards."""
    pieces = _split(body, text)
    if len(pieces) > 1 and not any("(" in piece for piece in pieces):
        return Cluster(text.strip(), ((1, _node(body, text)),))
    return Cluster(text.strip(), tuple(_host(piece.strip(), text) for piece in pieces))


def _with_vendor_network(found: Cluster, text: str) -> Cluster:
    """The network of the vendor's own system, said aloud; cards that come with none must be told theirs."""
    own = found.chip.network
    smallest = min(node.devices for _, node in found.nodes)
    if own is None or len(found.chips) > 1:
        raise UserError(
            f"cluster {quoted(text)} has several hosts and no network between them; add one, such as {text.strip()}@10Gbps"
        )
    each = units.show(own.bandwidth, "bytes/s")
    note = f"network not given: {own.name}, {each} per device, assumed as in the vendor's own system"
    return replace(found, network=replace(own, bandwidth=own.bandwidth * smallest), notes=(note,))


def _split(body: str, text: str) -> list[str]:
    """The parts between '+' outside parentheses."""
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
    """One term of a sum of hosts: how many, and what each holds."""
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?\((.+)\)", piece)
    if match:
        return _counted(match[1] or "1", text), _node(match[2], text)
    count, rest = _count(piece, text)
    if known_chip(rest) is None:
        per_node, name = _count(rest, text)
        if name != rest:
            return count, _node(f"{per_node}x{name}", text)
    found = _chip(rest, text)
    if count <= found.per_node:
        return 1, _node(piece, text)
    if count % found.per_node:
        raise UserError(
            f"cluster {quoted(text)}: {count} is no multiple of the {found.per_node} {found.name} of a node; "
            f"write nodes x devices, such as 2x{max(1, count // 2)}x{found.key}"
        )
    return count // found.per_node, _node(f"{found.per_node}x{rest}", text)


def _node(cards: str, text: str) -> Node:
    """One host from its cards, such as '2xrtx3090+1xrtx3060-12gb'."""
    found: list[tuple[int, Chip]] = []
    for piece in cards.split("+"):
        count, name = _count(piece.strip(), text)
        found.append((count, _chip(name, text)))
    first = found[0][1]
    link = first.link if all(c.link == first.link for _, c in found) else None
    slowest = min((c.host for _, c in found if c.host), key=lambda host: host.bandwidth, default=None)
    return Node(tuple(found), link or slowest)


def _count(piece: str, text: str) -> tuple[int, str]:
    """'4xrtx3090' -> 4, 'rtx3090'; a name that itself starts with a number ('7900xtx') is left whole."""
    match = re.fullmatch(r"(\d+)\s*x\s*(.+)", piece)
    if match is None or known_chip(piece) is not None:
        return 1, piece
    return _counted(match[1], text), match[2].strip()


def _counted(digits: str, text: str) -> int:
    if len(digits) > 8 or not int(digits):
        raise UserError(f"cluster {quoted(text)}: {quoted(digits)} is not a number of devices from 1 to {MOST_DEVICES:,}")
    return int(digits)


def _chip(name: str, text: str) -> Chip:
    """A card of a host. What is close to the name of a cluster is told as one."""
    found = known_chip(name)
    if found is not None and found.kind == "tpu":
        raise UserError(_shapeless(found, text))
    if found is not None:
        return found
    if find_file(name) is not None:
        raise UserError(f"cluster {quoted(text)}: {quoted(name)} is a whole cluster; write it alone, as in '{name}:4'")
    clusters = files.files("clusters", ".toml")
    close = nearest(name, clusters)
    if close and close == nearest(name, [*clusters, *chip_names()]):
        raise UserError(f"unknown cluster {quoted(name)}{close} (meshwise show clusters, or a chip: meshwise show chips)")
    return find_chip(name)
