"""The catalogues on a terminal: a line per entry, or the facts of one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as Grid

from meshwise import units
from meshwise.catalogue.chips import Chip, Cluster, Link, Tier
from meshwise.catalogue.frameworks import Framework
from meshwise.catalogue.origins import Origin
from meshwise.models.count import Tally, hyperparameters
from meshwise.models.listing import Entry, layer_runs
from meshwise.models.model import Model
from meshwise.ui.views.tables import Column, Table, at_path, whole_at, wrapped


def entry_view(entry: Entry, width: int, *, name: str) -> Grid:
    """Return the facts of one chip, cluster, framework, model or calibration."""
    if isinstance(entry, Chip):
        return chip_facts(entry)
    if isinstance(entry, Framework):
        return framework_facts(entry)
    if isinstance(entry, Origin):
        return origin_facts(entry)
    return cluster_facts(name, entry) if isinstance(entry, Cluster) else model_facts(entry)


def catalogue_view(catalogue: str, rows: Sequence[dict[str, Any]], width: int) -> RenderableType:
    """Return a whole catalogue, one line per entry; below it, the presets of the user that could not be read, with the reason."""
    columns = {
        "chips": _CHIP_COLUMNS, "clusters": _CLUSTER_COLUMNS, "models": _MODEL_COLUMNS, "frameworks": _FRAMEWORK_COLUMNS,
        "calibrations": _ORIGIN_COLUMNS,
    }[catalogue]  # fmt: skip
    unread = [row for row in rows if catalogue == "models" and "params" not in row]
    return Group(
        Table(columns, [row for row in rows if row not in unread]).fitted(width),
        *(wrapped(f"{row['model']}: {row['source']}", width, indent="  ") for row in unread),
    )


def _quantity(path: str, quantity: str, *, binary: bool = False) -> Callable[[Tally], str]:
    return lambda row: units.show(value, quantity, binary=binary, digits=3) if (value := at_path(row, path)) else ""


def _text(path: str) -> Callable[[Tally], str]:
    return lambda row: str(at_path(row, path) or "")


def _rate_16_bit(row: Tally) -> str:
    rate = row["flops"].get("bf16") or row["flops"].get("fp16")
    return units.show(rate, "FLOP/s", digits=4) if rate else ""


def _rate_8_bit(row: Tally) -> str:
    rate = row["flops"].get("fp8") or row["flops"].get("int8")
    return units.show(rate, "FLOP/s") if rate else ""


def _latest(path: str, key: str) -> Callable[[Tally], str]:
    """Return a function that formats one value of the last entry in a list, such as the latest price."""
    return lambda row: str(entries[-1][key]) if (entries := at_path(row, path)) else ""


def _page(row: Tally) -> str:
    """Return the source page, 'huggingface.co/Qwen/Qwen3-0.6B' for the address of its config.json; --json has the whole address."""
    return str(row.get("source") or "").removeprefix("https://").partition("/blob/")[0].partition("/resolve/")[0]


_CHIP_COLUMNS: list[Column[Tally]] = [
    Column("chip", _text("chip"), text=True), Column("name", _text("name"), text=True, rank=3),
    Column("year", _text("year"), rank=5), Column("memory", _quantity("memory", "bytes", binary=True)),
    Column("bandwidth", _quantity("bandwidth", "bytes/s")), Column("16-bit", _rate_16_bit), Column("8-bit", _rate_8_bit, rank=1),
    Column("SMs", _text("sms"), rank=6), Column("TDP", _quantity("tdp", "watts"), rank=4),
    Column("link", _text("link/name"), text=True, rank=2), Column("price", _latest("prices", "price"), text=True, rank=7),
    Column("source", lambda row: str(row["sources"][0]["title"]), text=True, rank=8),
]  # fmt: skip
_CLUSTER_COLUMNS: list[Column[Tally]] = [
    Column("cluster", _text("cluster"), text=True),
    Column("name", _text("name"), text=True, rank=4),
    Column("nodes", whole_at("nodes")),
    Column("devices", whole_at("devices")),
    Column("chips", lambda row: " + ".join(f"{count:,} {chip}" for chip, count in row["chips"].items()), text=True),
    Column("memory", _quantity("memory", "bytes", binary=True), rank=1),
    Column("link", _text("link/name"), text=True, rank=2),
    Column("network", _text("network/name"), text=True, rank=3),
    Column("source", lambda row: str(row["sources"][0]["title"]) if row["sources"] else "", text=True, rank=5),
]
_MODEL_COLUMNS: list[Column[Tally]] = [
    Column("model", _text("model"), text=True),
    Column("family", _text("family"), text=True, rank=2),
    Column("parameters", whole_at("params")),
    Column("active", lambda row: whole_at("active_params")(row) if row.get("active_params") != row.get("params") else "", rank=1),
    Column("layers", whole_at("hyperparameters/layers"), rank=3),
    Column("d_model", whole_at("hyperparameters/d_model"), rank=4),
    Column("vocabulary", whole_at("hyperparameters/vocabulary"), rank=5),
    Column("source", _page, text=True, rank=6),
]


def _listed(path: str) -> Callable[[Tally], str]:
    return lambda row: ", ".join(map(str, at_path(row, path) or ()))


_FRAMEWORK_COLUMNS: list[Column[Tally]] = [
    Column("framework", _text("framework"), text=True),
    Column("variant of", _text("variant_of"), text=True, rank=3),
    Column("newest release", _text("release"), text=True),
    Column("attention", lambda row: "; ".join([row["attention"], *row["attention_on"]]), text=True),
    Column("loss", _text("loss"), text=True),
    Column("hides", _listed("overlap"), text=True, rank=1),
    Column("graphs", _text("graphs"), text=True, rank=2),
    Column("source", lambda row: str(row["sources"][0]["title"]), text=True, rank=4),
]


_ORIGIN_COLUMNS: list[Column[Tally]] = [
    Column("calibration", _text("calibration"), text=True), Column("for", _text("use"), text=True),
    Column("chips", _listed("chips"), text=True, rank=3), Column("programs", _listed("programs"), text=True, rank=4),
    Column("rows", whole_at("rows")), Column("fitted on", _text("fitted_on"), text=True, rank=2),
    Column("date", _text("date"), text=True), Column("file", _text("file"), text=True, rank=5),
    Column("sha256", _text("sha256"), text=True, rank=1),
]  # fmt: skip


def origin_facts(origin: Origin) -> Grid:
    """Return what a calibration was fitted to, the file that holds it, and its digest."""
    rows = [
        ("for", origin.use), ("chips", ", ".join(origin.chips)), ("programs", ", ".join(origin.programs)),
        ("fitted on", origin.fitted_on), ("rows", f"{origin.rows:,.0f}" if origin.rows else ""), ("date", origin.date),
        ("file", origin.file), ("sha256", f"{origin.digest}..."),
        *(("source", f"{source.title}, {source.url}") for source in origin.sources),
    ]  # fmt: skip
    return facts(origin.key, rows)


def framework_facts(f: Framework) -> Grid:
    """Return the recipe of a framework's newest release, what its layouts may have, and what each release changed."""
    bits = f"summed in {8 * f.gradient_bytes} bits, reduced in {8 * f.reduced_bytes}"
    rows = [
        ("name", f.name), ("also called", ", ".join(f.aliases)), ("variant of", f.key if f.program != f.key else ""),
        ("newest release", f.release), ("attention", "; ".join((f.attention, *f.attention_on))),
        ("loss", f"{f.loss}, {f.logit_bytes:g} bytes a logit"), ("hides", ", ".join(f.overlap)),
        ("CUDA graphs", f.graphs + (" (on one device)" if f.graphs_alone else "")), ("gradients", bits),
        ("ZeRO", ", ".join(map(str, f.zero))), ("recompute", ", ".join(f.recompute)), ("schedules", ", ".join(f.schedules)),
        ("offload", ", ".join(f.offload)),
        *((f"from {one.release} ({one.date})", f"{'; '.join(one.changes)}: {one.source}") for one in f.releases),
        *(("source", f"{source.title}, {source.url}") for source in f.sources),
    ]  # fmt: skip
    return facts(f.program, rows)


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Grid:
    """Return one entry of a catalogue: a name and a value per line."""
    table = Grid(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def chip_facts(chip: Chip) -> Grid:
    """Return the facts of a chip, each with the number of its source where there are several."""

    def sourced(label: str, fact: str, text: str) -> tuple[str, str]:
        number = chip.sources.index(chip.source_of(fact)) + 1
        return label, f"{text} [{number}]" if text and len(chip.sources) > 1 else text

    several = len(chip.sources) > 1
    rows = [
        ("name", chip.name),
        ("also called", ", ".join(chip.aliases)),
        ("kind", f"{chip.vendor} {chip.architecture}, {chip.kind}, {chip.year}"),
        sourced("memory", "memory", units.show(chip.memory, "bytes", binary=True)),
        sourced("memory bandwidth", "bandwidth", units.show(chip.bandwidth, "bytes/s")),
        *(sourced(f"{dtype}, dense", f"flops.{dtype}", units.show(rate, "FLOP/s")) for dtype, rate in chip.flops.items()),
        sourced("SMs, CUs or cores", "sms", str(chip.sms or "")),
        ("GEMM tile", " x ".join(map(str, chip.tile))),
        sourced("clock", "clock", units.show(chip.clock, "hertz") if chip.clock else ""),
        sourced("last-level cache", "cache", units.show(chip.cache, "bytes", binary=True) if chip.cache else ""),
        sourced("power", "tdp", units.show(chip.tdp, "watts") if chip.tdp else ""),
        sourced("link", "link", link_text(chip.link)),
        sourced("optional bridge", "bridge", link_text(chip.bridge)),
        sourced("host", "host", link_text(chip.host)),
        sourced("network per device", "network", link_text(chip.network)),
        sourced("largest pod", "torus", " x ".join(map(str, chip.torus.pod)) if chip.torus else ""),
        *(("price", f"{price.price} ({price.date}, {price.source})") for price in chip.prices),
        *(
            (f"source [{number}]" if several else "source", f"{source.title}, {source.url}")
            for number, source in enumerate(chip.sources, 1)
        ),
    ]
    return facts(chip.key, rows)


def link_text(link: Link | None) -> str:
    """Return 'NVLink 4, 450 GB/s', with its axes on a torus."""
    if link is None:
        return ""
    axes = f" on each of {link.axes} axes" if link.axes > 1 else ""
    joins = f", joins {link.joins}" if link.joins else ""
    latency = f", {units.show(link.latency, 'seconds')}" if link.latency else ""
    return f"{link.name}, {units.show(link.bandwidth, 'bytes/s')}{axes}{latency}{joins}"


def model_facts(model: Model) -> Grid:
    """Return the facts of a preset or any other model, with their source."""
    rows = [
        ("family", f"{model.family} ({model.model_type})"),
        *((name, f"{value:,}") for name, value in hyperparameters(model).items()),
        ("layer pattern", layer_runs(model)),
        ("parameters", f"{model.params:,}"),
        ("active per token", f"{model.active_without_embedding:,}" if model.active_params != model.params else ""),
        *(("note", note) for note in model.notes),
        ("source", model.source),
    ]
    return facts(model.name, rows)


def cluster_facts(key: str, cluster: Cluster) -> Grid:
    node_name = "pods" if cluster.torus else "nodes"
    rows = [
        ("name", cluster.name),
        ("devices", f"{cluster.devices:,} in {cluster.node_count:,} {node_name}"),
        *((f"{count:,} {node_name} of", node_text(cluster, i)) for i, (count, _) in enumerate(cluster.nodes)),
        ("memory in all", units.show(cluster.memory, "bytes", binary=True)),
        ("network per " + node_name[:-1], link_text(cluster.network)),
        *((f"out of {tier.nodes:,} {node_name}", tier_text(cluster, tier)) for tier in cluster.tiers),
        ("to rent", units.show(cluster.rent, "dollars/s") + " in all, at list prices" if cluster.rent else ""),
        *(("price", f"{price.price} ({price.date}, {price.source})") for price in cluster.prices),
        *(("note", note) for note in cluster.notes),
        *(("source", f"{source.title}, {source.url}") for source in cluster.sources),
    ]
    return facts(key, rows)


def tier_text(cluster: Cluster, tier: Tier) -> str:
    """Return 'leaf, 400 GB/s, 2 times oversubscribed'."""
    leaving = units.show(tier.leaving(cluster.network), "bytes/s")
    ratio = f", {tier.oversubscription:g} times oversubscribed" if tier.oversubscription else ""
    return f"{tier.name}, {leaving}{ratio}" + (f", {units.show(tier.latency, 'seconds')}" if tier.latency else "")


def node_text(cluster: Cluster, index: int) -> str:
    """Return '8 x a100-80gb-sxm (NVLink 3, 300 GB/s)'."""
    _, node = cluster.nodes[index]
    devices = " + ".join(f"{count:,} x {chip.key}" for count, chip in node.chips)
    shape = f", torus {'x'.join(map(str, cluster.torus))}" if cluster.torus else ""
    host = f", {node.host.cpus}" if node.host.cpus else ""
    memory = f", {units.show(node.host.memory, 'bytes')} host memory" if node.host.memory else ""
    return f"{devices}{shape} ({link_text(node.link) or 'no link'}){host}{memory}"
