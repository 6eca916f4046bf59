"""The catalogues of chips, clusters, models, frameworks and calibrations as plain rows: all, those that match some words, or one entry."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from meshwise import units
from meshwise.catalogue.chips import Chip, Cluster, Link, Source, chips, filter_chips, find_chip
from meshwise.catalogue.clusters import cluster_files, filter_clusters, find_cluster
from meshwise.catalogue.frameworks import Framework, filter_frameworks, find_framework
from meshwise.catalogue.frameworks import names as framework_names
from meshwise.catalogue.origins import Origin, filter_origins, find_origin, origins
from meshwise.catalogue.prices import Price
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.count import hyperparameters
from meshwise.models.model import Model

Row = dict[str, Any]
Entry = Chip | Cluster | Framework | Model | Origin


def rows(catalogue: str, name: str = "") -> list[Row]:
    """Return every entry of a catalogue; with `name`, the entry called that, else those whose names contain its words."""
    entry = look_up(catalogue, name) if name else None
    if isinstance(entry, Chip):
        return [chip_row(entry)]
    if isinstance(entry, Cluster):
        return [cluster_row(name, entry)]
    if isinstance(entry, Model):
        return [model_row(entry)]
    if isinstance(entry, Framework):
        return [framework_row(entry)]
    if isinstance(entry, Origin):
        return [origin_row(entry)]
    listed = {
        "chips": chip_rows, "clusters": cluster_rows, "models": model_rows, "frameworks": framework_rows, "calibrations": origin_rows,
    }[catalogue]  # fmt: skip
    return listed(_matching(catalogue, name) if name else None)


def look_up(catalogue: str, name: str) -> Entry | None:
    """Return the one entry that `name` means, or None where several names contain its words. UserError where none does."""
    if catalogue == "clusters":
        try:
            return find_cluster(name)  # any text that describes a cluster
        except UserError:
            if not filter_clusters(name):
                raise
    matching = _matching(catalogue, name)
    find_one = {
        "chips": find_chip, "clusters": find_cluster, "models": find.find_model, "frameworks": find_framework, "calibrations": find_origin,
    }[catalogue]  # fmt: skip
    return None if len(matching) > 1 else find_one(matching[0] if matching else name)


def _matching(catalogue: str, name: str) -> list[str]:
    """Return the names of the entries that contain every word of `name`."""
    if catalogue == "chips":
        return [chip.key for chip in filter_chips(name)]
    if catalogue == "frameworks":
        return filter_frameworks(name)
    if catalogue == "calibrations":
        return filter_origins(name)
    return filter_clusters(name) if catalogue == "clusters" else find.filter_presets(name)


def chip_rows(names: Sequence[str] | None = None) -> list[Row]:
    return [chip_row(chip) for chip in chips() if names is None or chip.key in names]


def chip_row(chip: Chip) -> Row:
    """Return all facts of a chip in SI, under the names of its TOML file."""
    return {
        "chip": chip.key, "name": chip.name, "aliases": list(chip.aliases), "vendor": chip.vendor,
        "architecture": chip.architecture, "kind": chip.kind, "year": chip.year, "memory": chip.memory,
        "bandwidth": chip.bandwidth, "flops": dict(chip.flops), "sms": chip.sms, "clock": chip.clock, "cache": chip.cache,
        "tdp": chip.tdp, "tile": list(chip.tile), "link": _link(chip.link), "bridge": _link(chip.bridge),
        "host": _link(chip.host), "network": _link(chip.network), "per_node": chip.per_node,
        "pod": list(chip.torus.pod) if chip.torus and chip.torus.pod else None, "prices": _prices(chip.prices),
        "sources": _sources(chip.sources),
    }  # fmt: skip


def _link(link: Link | None) -> Row | None:
    return link and {
        "name": link.name, "bandwidth": link.bandwidth, "latency": link.latency, "axes": link.axes, "joins": link.joins,
    }  # fmt: skip


def _prices(prices: Iterable[Price]) -> list[Row]:
    return [{"price": price.price, "date": price.date, "source": price.source} for price in prices]


def _sources(sources: Iterable[Source]) -> list[Row]:
    return [{"title": source.title, "url": source.url} for source in sources]


def cluster_rows(names: Sequence[str] | None = None) -> list[Row]:
    return [cluster_row(name, find_cluster(name)) for name in (cluster_files() if names is None else names)]


def cluster_row(key: str, cluster: Cluster) -> Row:
    return {
        "cluster": key, "name": cluster.name, "devices": cluster.devices, "nodes": cluster.node_count,
        "chips": cluster.chips, "torus": list(cluster.torus), "memory": cluster.memory, "link": _link(cluster.node.link),
        "network": _link(cluster.network), "tiers": [asdict(tier) for tier in cluster.tiers],
        "dollars_per_hour": None if cluster.rent is None else units.show(cluster.rent, "dollars/s"),
        "prices": _prices(cluster.prices), "sources": _sources(cluster.sources), "notes": list(cluster.notes),
    }  # fmt: skip


def model_rows(names: Sequence[str] | None = None) -> list[Row]:
    """Return presets with their sizes. One that cannot be read, a user's own file, is listed with the reason."""
    rows: list[Row] = []
    for name in find.presets() if names is None else names:
        try:
            rows.append(model_row(find.find_model(name)))
        except UserError as error:
            rows.append({"model": name, "source": str(error)})
    return rows


def model_row(model: Model) -> Row:
    return {
        "model": model.name, "family": model.family, "model_type": model.model_type, "params": model.params,
        "active_params": model.active_without_embedding, "active_params_with_embedding": model.active_params,
        "hyperparameters": hyperparameters(model), "layers": layer_runs(model), "source": model.source,
        "notes": list(model.notes),
    }  # fmt: skip


def framework_rows(names: Sequence[str] | None = None) -> list[Row]:
    """Return frameworks and their variants, with the facts of their newest releases."""
    known = dict.fromkeys(framework_names().values()) if names is None else names
    return [framework_row(find_framework(name)) for name in known]


def framework_row(f: Framework) -> Row:
    """Return the recipe of a framework's newest release, what its layouts may have, and what each release changed."""
    return {
        "framework": f.program, "name": f.name, "aliases": list(f.aliases), "variant_of": f.key if f.program != f.key else "",
        "release": f.release, "attention": f.attention, "attention_on": list(f.attention_on), "loss": f.loss,
        "logit_bytes": f.logit_bytes, "overlap": list(f.overlap), "graphs": f.graphs, "gradient_bytes": f.gradient_bytes,
        "reduced_bytes": f.reduced_bytes, "zero": list(f.zero), "recompute": list(f.recompute), "schedules": list(f.schedules),
        "offload": list(f.offload), "releases": [asdict(one) | {"changes": list(one.changes)} for one in f.releases],
        "sources": _sources(f.sources),
    }  # fmt: skip


def origin_rows(names: Sequence[str] | None = None) -> list[Row]:
    return [origin_row(origin) for origin in origins() if names is None or origin.key in names]


def origin_row(origin: Origin) -> Row:
    return {
        "calibration": origin.key, "use": origin.use, "chips": list(origin.chips), "programs": list(origin.programs),
        "rows": int(origin.rows), "fitted_on": origin.fitted_on, "date": origin.date, "file": origin.file, "sha256": origin.digest,
        "sources": _sources(origin.sources),
    }  # fmt: skip


def layer_runs(model: Model) -> str:
    """Return the layer pattern in words: '3 x attention ffw, 58 x attention moe', equal neighbours together."""
    runs: list[tuple[tuple[str, ...], int]] = []
    for layer in model.layers:
        if runs and runs[-1][0] == layer:
            runs[-1] = (layer, runs[-1][1] + 1)
        else:
            runs.append((layer, 1))
    return ", ".join(f"{count} x {' + '.join(blocks)}" for blocks, count in _repeated(runs))


def _repeated(runs: list[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], int]]:
    """Return short patterns unchanged; of a pattern with more than six runs, the number of layers of each kind."""
    if len(runs) <= 6:
        return runs
    totals: dict[tuple[str, ...], int] = {}
    for blocks, count in runs:
        totals[blocks] = totals.get(blocks, 0) + count
    return list(totals.items())
