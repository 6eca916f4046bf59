"""Chip, Link, Node, Cluster: the hardware, as facts from data/chips and data/clusters, each with its source."""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from meshwise import units
from meshwise.catalogue import files, records
from meshwise.catalogue.prices import Price, rental
from meshwise.errors import UserError, did_you_mean, quoted
from meshwise.units import Bytes, BytesPerSecond, Count, FlopsPerSecond, Hertz, Seconds, Watts

PROBED_CHIP = "here"  # the name under which `meshwise probe` stores this machine's chip
Kind = Literal["gpu", "tpu", "npu", "apple", "cpu"]
Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4", "int4"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a fact comes from."""

    title: str
    url: str
    fields: tuple[str, ...] = ()
    """The fields of the record that it states: 'memory', 'flops', or 'flops.fp4' alone. Empty: every field that no other source lists."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A connection between devices, one direction."""

    name: str
    bandwidth: BytesPerSecond
    """Sum over the links of a device; of one torus axis if there are several `axes`; of a whole node for a cluster's network."""
    latency: Seconds | None = None
    axes: int = 1
    joins: int = 0
    """The most devices that it connects; 0: all devices of a node."""
    peers: int = 0
    """Devices that it connects one by one, all to all, each by an equal part of the bandwidth: a group of n has n - 1 of these parts.
    0: a switch, through which any two devices have the whole bandwidth."""

    def __post_init__(self) -> None:
        if not self.bandwidth:
            raise UserError(f"the link {quoted(self.name)} has no bandwidth")


FABRICS = (
    ("omni-path", r"omni.?path|opa"), ("efa", r"\befa\b"), ("slingshot", r"slingshot"),
    ("infiniband", r"infiniband|\b(ndr|hdr|xdr|edr|ib)\b|quantum"), ("roce", r"roce|spectrum"), ("dcn", r"\bdcn\b"),
)  # fmt: skip
"""Networks between nodes by the words in their names. Any other is '', of which nothing is known."""


def fabric_of(link: Link | None) -> str:
    """Return the kind of network that a link's name tells."""
    text = link.name.lower() if link else ""
    return next((name for name, pattern in FABRICS if re.search(pattern, text)), "")


@dataclass(frozen=True, kw_only=True)
class Torus:
    """The torus that the links of a chip form."""

    pod: tuple[int, ...] = ()
    """Shape of the largest pod; empty where no source states it."""
    closes: int = 0
    """An axis of a slice wraps around if its length is a multiple of this. 0: only if it spans the pod's whole axis."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine that holds the devices of a node."""

    memory: Bytes | None = None
    cpus: str = ""


UNKNOWN_HOST = Host()
POWER_REFERENCE = {"Ampere": (400.0, 312e12), "Hopper": (700.0, 989.4e12), "Blackwell": (1200.0, 2500e12)}
"""Watts and 16-bit FLOP/s of the chip whose shares of the peak the calibrations of its architecture state: A100 and H100 SXM, GB200."""
POWER_EXPONENT = 0.9
CARD_JOULES = {"Turing": 3.9e-12, "Ampere": 4.2e-12, "Ada Lovelace": 2.7e-12}
"""Joules per 16-bit FLOP of large products on graphics dies, whose cards reach their power limit before the rate of their datasheet: T4
about 18 TFLOP/s at 70 W (fitcheck_t4), A5000 54 at 230 W, 6000 Ada 110 at 300 W (answerai_fsdp_qlora). An RTX 3090 or 4090, whose tensor
cores have half the rate, does not reach it."""
CARD_SHARE = 0.75  # share of the peak that large products reach without a power limit, as the prior of training has it
MIN_SUSTAINED = 0.25
MAX_GRAPHICS_FLOPS = 1500.0  # FLOP per SM and cycle between those of graphics dies (512 or 1,024) and of an A100 (2,048)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Datasheet facts of one accelerator: dense FLOP/s, capacities, bandwidths. Fitted numbers are in calibrations.py."""

    key: str = field(default="", metadata={"derived": True})
    name: str
    vendor: str
    kind: Kind
    architecture: str
    year: int
    memory: Bytes
    bandwidth: BytesPerSecond
    flops: dict[Dtype, FlopsPerSecond]
    sources: tuple[Source, ...]
    aliases: tuple[str, ...] = ()
    sms: int | None = None
    """Streaming multiprocessors, compute units or cores: the units that tiles are distributed over."""
    clock: Hertz | None = None
    cache: Bytes | None = None
    tdp: Watts | None = None
    tile: tuple[int, ...] = ()
    """m, n, k of the largest matrix tile that the vendor's library commonly uses."""
    link: Link | None = None
    """To the other devices of its node."""
    bridge: Link | None = None
    """An optional bridge between a few cards, absent unless a cluster's file lists it."""
    host: Link | None = None
    peer_access: bool = True
    """Whether devices can read each other's memory over PCIe; GeForce cards cannot, and go through host memory."""
    server: bool = False
    """Whether it is made for servers and sold without a network of its own: a passive card, or a superchip."""
    unified: bool = False
    """Whether it computes in the memory of its host, of which there is no other."""
    network: Link | None = None
    """Per device, in the vendor's own system."""
    per_node: int = 8
    """Devices per node in the vendor's own system."""
    torus: Torus | None = None
    prices: tuple[Price, ...] = ()

    def __post_init__(self) -> None:
        if not (self.memory and self.bandwidth and self.flops and all(self.flops.values())):
            raise UserError("memory, bandwidth and every rate of flops must be above zero, and at least one rate known")

    @property
    def sustained(self) -> float:
        """Rate of large products over that of its architecture's reference chip at the same share of the peak: data-center chips run at
        their power limit there, so watts per FLOP/s decide; cards with graphics dies have CARD_JOULES. 500 W instead of 700 leave an H100
        0.74; a GB300 with 1,400 W sustains 1.15 of what a GB200 with 1,200 does (Megatron-Bridge: 1.19 for Llama 8B)."""
        watts, peak = POWER_REFERENCE.get(self.architecture, (0.0, 0.0))
        rate = self.flops.get("bf16") or self.flops.get("fp16")
        if rate and self.tdp and self.architecture in CARD_JOULES and self._has_graphics_die(rate):
            return min(1.0, max(MIN_SUSTAINED, self.tdp / CARD_JOULES[self.architecture] / (CARD_SHARE * rate)))
        if not watts or not rate or not self.tdp or not self.network:
            return 1.0
        return min(1.2, max(0.5, (self.tdp / rate / (watts / peak)) ** POWER_EXPONENT))

    def _has_graphics_die(self, rate: float) -> bool:
        """Return whether its SMs multiply at most 512 pairs a cycle in 16 bits; those of an A100 or A30 multiply 1,024."""
        return rate < MAX_GRAPHICS_FLOPS * (self.sms or 0) * (self.clock or 0.0)

    @property
    def rent(self) -> float | None:
        """Dollars per second at the latest rental list price."""
        price = rental(self.prices)
        return price and price.rent

    @property
    def in_servers(self) -> bool:
        """Whether it stands in servers, not under desks."""
        return self.server or self.network is not None

    @property
    def shares_memory(self) -> bool:
        """Whether its memory is that of its host."""
        return self.unified or self.kind == "apple"

    def source_of(self, fact: str) -> Source:
        """Return where a field comes from: the source that lists it ('flops.fp4'), else its table ('flops'), else any field."""
        for name in (fact, fact.partition(".")[0]):
            for source in self.sources:
                if name in source.fields:
                    return source
        return next((source for source in self.sources if not source.fields), self.sources[0])

    def closes(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Return which axes of a slice wrap around from their last chip to their first."""
        torus = self.torus or Torus()
        return tuple(side % torus.closes == 0 if torus.closes else side in torus.pod for side in shape)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A level of the network above the nodes: a leaf or rail group, a spine, a site."""

    name: str
    nodes: int
    """Nodes in one unit of this level."""
    oversubscription: Count = 0.0
    """Bandwidth of a unit's nodes together over its uplink bandwidth: 2 means that half of it can leave the unit."""
    bandwidth: BytesPerSecond = 0.0
    """Uplink bandwidth of a unit, where that is known instead."""
    latency: Seconds | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1 or bool(self.oversubscription) == bool(self.bandwidth):
            raise UserError(f"the tier {quoted(self.name)} needs 'nodes', and either 'oversubscription' or 'bandwidth'")

    def leaving(self, network: Link | None) -> float:
        """Return the uplink bandwidth of one unit whose nodes have this network, in bytes per second."""
        return self.bandwidth or self.nodes * (network.bandwidth if network else 0.0) / self.oversubscription


@dataclass(frozen=True)
class Node:
    """Devices that share a host and a link; or all chips of a torus."""

    chips: tuple[tuple[int, Chip], ...]
    link: Link | None
    host: Host = UNKNOWN_HOST

    @property
    def devices(self) -> int:
        return sum(count for count, _ in self.chips)

    @property
    def memory(self) -> float:
        return sum(count * chip.memory for count, chip in self.chips)


@dataclass(frozen=True)
class Cluster:
    """Nodes and the network between them; or pods, each one torus, and the network between pods."""

    name: str
    nodes: tuple[tuple[int, Node], ...]
    network: Link | None = None  # bandwidth of a whole node (or pod), one direction
    tiers: tuple[Tier, ...] = ()
    """Levels above that network, from the inside out. Empty: every node reaches every other at full speed."""
    torus: tuple[int, ...] = ()
    prices: tuple[Price, ...] = ()
    seller: str = ""  # whose list prices hold ('AWS', 'AWS reserved'); '' the latest of any on demand
    price: float | None = None  # dollars per second and device that the user gave, instead of list prices
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def node(self) -> Node:
        """The first kind of node. Clusters that training is planned on have only one kind."""
        return self.nodes[0][1]

    @property
    def chip(self) -> Chip:
        """The first kind of chip of the first kind of node."""
        return self.node.chips[0][1]

    @cached_property
    def node_count(self) -> int:
        return sum(count for count, _ in self.nodes)

    @cached_property
    def devices(self) -> int:
        return sum(count * node.devices for count, node in self.nodes)

    @cached_property
    def memory(self) -> float:
        return sum(count * node.memory for count, node in self.nodes)

    @cached_property
    def chips(self) -> dict[str, int]:
        """Number of devices by chip, over all nodes."""
        counts: dict[str, int] = {}
        for count, node in self.nodes:
            for per_node, chip in node.chips:
                counts[chip.key] = counts.get(chip.key, 0) + count * per_node
        return counts

    @cached_property
    def rent(self) -> float | None:
        """Dollars per second for the whole cluster: its own price, or the sum of its chips' prices if all have one."""
        if self.price is not None:
            return self.price * self.devices
        own, each = rental(self.prices, self.seller), self._rentals
        if own and own.rent:
            return own.rent * self.node_count
        return (
            None if any(price is None for _, price in each) else sum(count * (price.rent or 0) for count, price in each if price)
        )

    @property
    def _rentals(self) -> list[tuple[int, Price | None]]:
        """The devices of each kind, and the price of one."""
        return [
            (count * per_node, rental(chip.prices, self.seller)) for count, node in self.nodes for per_node, chip in node.chips
        ]

    @property
    def _listed(self) -> list[Price]:
        """The prices that `rent` is made of; none for the user's own price, or where a chip has none."""
        own = rental(self.prices, self.seller)
        found = [own] if own else [price for _, price in self._rentals]
        return [] if self.price is not None or None in found else [price for price in found if price]

    @property
    def priced_by(self) -> str:
        """Whose price `rent` is, and of which day; '' for the user's own price, or without one."""
        return "; ".join(dict.fromkeys(map(str, self._listed)))

    @property
    def priced_on(self) -> str:
        """The day of the price; '' for the user's own price, or without one."""
        return "; ".join(dict.fromkeys(price.day for price in self._listed))


def part_of_here(processes: int) -> str:
    """Return the name of the chip for one of several processes on this machine's CPU: it has its share of the cores."""
    return PROBED_CHIP if processes == 1 else f"{PROBED_CHIP}-1of{processes}"


def catalogued(chip: Chip) -> Chip | None:
    """Return the catalogue's chip for one that was probed, or None. Any CPU is the catalogue's generic one."""
    return known_chip(chip.name.partition(": ")[2]) or (known_chip("cpu") if chip.kind == "cpu" else None)


@files.cached
def find_chip(name: str) -> Chip:
    """Return the chip with that name or alias; case and punctuation do not count."""
    chip = known_chip(name)
    if chip is None and files.squeeze(name) == PROBED_CHIP:
        raise UserError("'here' is this machine once it has been measured: run 'meshwise probe' first")
    if chip is None:
        keys = chip_names()
        count = re.fullmatch(r"(\d+)[ *]*(\D.*)|(.+?)[ *x:]+(\d+)", name.strip())  # 8h100, h100x8
        counted = [f"{count[1] or count[4]}x{count[2] or count[3]}"] if count and known_chip(count[2] or count[3]) else []
        close = counted or list(dict.fromkeys(keys[similar] for similar in files.similar(name, keys)))
        word = f" {name.strip()}" if len(close) > 1 else ""
        hint = "" if close else f", or add it as {files.user_folder() / 'chips' / 'NAME.toml'}"
        raise UserError(f"unknown chip {quoted(name)}{did_you_mean(close)} (meshwise show chips{word}{hint})")
    return chip


def chip_names() -> dict[str, str]:
    """Return the key of the chip that each name, alias and key stands for."""
    return {name: chip.key for chip in chips() for name in (chip.key, chip.name, *chip.aliases)}


def filter_chips(words: str) -> list[Chip]:
    """Return the chip whose key is `words`, else all with every word in their key, name, vendor, architecture or aliases."""
    by_key = {chip.key: chip for chip in chips()}
    names = {chip.key: (chip.name, chip.vendor, chip.architecture, *chip.aliases) for chip in chips()}
    return [by_key[key] for key in files.matching(words, by_key, names)]


@files.cached
def variants(name: str) -> list[str]:
    """Return the keys that are `name` and a dash: h100-nvl, h100-pcie and h100-sxm for 'h100'. A key itself has no variants."""
    plain, keys = files.squeeze(name), files.names("chips")
    if plain in map(files.squeeze, keys):
        return []
    return [key for key in keys if any(plain == files.squeeze(key[: dash.start()]) for dash in re.finditer("-", key))]


@files.cached
def known_chip(name: str) -> Chip | None:
    """Return the chip with that name or alias, or None."""
    plain = files.squeeze(name)
    paths = {files.squeeze(stem): path for stem, path in files.files("chips", ".toml").items()}
    if plain in paths:
        return read_chip(paths[plain])
    if re.sub(r"^(\d+x)+", "", plain) in paths:  # '8xh100-sxm' is a count and a chip: no other file has to be read to know that
        return None
    for candidate in chips():
        if plain in map(files.squeeze, (candidate.name, *candidate.aliases)):
            return candidate
    return _by_words(name) or _with_memory(name)


def _with_memory(name: str) -> Chip | None:
    """Return the chip of a name that ends with a memory: the variant that has it, or the chip with that memory instead of its own. 'h100
    94gb' is h100-nvl, and 'rtx4090 48gb' an RTX 4090 with 48 GiB, as some shops sell it."""
    match = re.fullmatch(r"(.*[^\s-])[\s-]*?(?<![\d.])(\d{1,6})\s*gi?b", re.sub(_VENDORS, "", name.lower()).strip())
    if match is None or not int(match[2]):
        return None
    base, memory = known_chip(match[1]), int(match[2]) * units.GIB
    family = re.sub(r"-\d+gb.*", "", base.key) if base else ""
    listed = [*((base,) if base else ()), *map(find_chip, variants(match[1])), *map(find_chip, variants(family))]
    near = min(listed, key=lambda chip: abs(chip.memory - memory), default=None)
    if near and abs(near.memory / memory - 1) < MEMORY_TOLERANCE:
        return near
    possible = base and (base.kind in ("apple", "cpu") or base.memory / 4 <= memory <= base.memory * 4)
    return replace(base, memory=memory) if base and possible else None


_VENDORS = re.compile(r"\b(?:nvidia|geforce|amd|radeon|intel)\b")


@files.cached
def chips() -> tuple[Chip, ...]:
    """Return all chips of the catalogue, sorted by key."""
    return tuple(read_chip(path) for path in files.files("chips", ".toml").values())


@files.cached
def read_chip(path: Path) -> Chip:
    """Read one chip from its TOML file."""
    return replace(records.read(Chip, files.table_of(path), path.name), key=path.name.removesuffix(".toml"))


# The CPU of a host, and chips by informal names.

GENERIC_CPU = "cpu"  # the CPU of hosts that name none: a desktop with two channels of DDR5 (data/chips/cpu.toml)
NOT_IN_NAMES = frozenset({"nvidia", "geforce", "rtx", "apple", "amd", "radeon", "instinct", "gpu", "tesla", "generation"})
"""Words that people leave out of a card's name."""


def host_cpu(cluster: Cluster) -> Chip:
    """Return the CPU of a cluster's hosts; the generic one where none is named or known."""
    named = cluster.node.host.cpus.rpartition(" x ")[2]
    return (known_chip(named) if named else None) or find_chip(GENERIC_CPU)


SERVER_BANDWIDTH = 300e9
"""Bytes per second of the memory of a server with two sockets, half of what eight channels of DDR4 or DDR5 each state: the host of chips
that vendors sell in their own systems, where a cluster names no CPU."""


def host_bandwidth(cluster: Cluster) -> float:
    """Return the bytes per second of a node's host memory, for updates of offloaded optimizer state."""
    count, _, name = cluster.node.host.cpus.rpartition(" x ")
    cpu = known_chip(name) if name else None
    if cpu:
        return cpu.bandwidth * (int(count) if count.isdigit() else 1)
    return SERVER_BANDWIDTH if cluster.chip.network else find_chip(GENERIC_CPU).bandwidth


MEMORY_TOLERANCE = 0.1  # a memory in a chip's name that differs by more is another variant of it; less is rounding, or GB for GiB


def words_in(text: str) -> frozenset[str]:
    """Return the words of a card's name, without those that people leave out."""
    return frozenset(re.findall(r"[a-z0-9.]+", text.lower())) - NOT_IN_NAMES


def _by_words(text: str) -> Chip | None:
    """Return the chip with a name that has the same words in any order, or None."""
    given = words_in(text)
    if not given:
        return None
    return next((chip for chip in chips() if any(given == words_in(n) for n in (chip.key, chip.name, *chip.aliases))), None)
