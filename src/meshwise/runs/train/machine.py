"""The machine and the program of a run: its cluster, its framework, and the precision of its products."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import cast

from meshwise.catalogue import files, frameworks
from meshwise.catalogue.cards import chip_in_text
from meshwise.catalogue.chips import Chip, Cluster
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.frameworks import Framework, find_framework
from meshwise.catalogue.pods import slices_in_text
from meshwise.cost.precision import Precision, parse_precision
from meshwise.errors import UserError, quoted
from meshwise.runs.run import Run, Stated, amount, whole
from meshwise.runs.words import words_of

MAX_BF16_MFU = 0.72  # share of the 16-bit peak that no training run sustains over a whole step: a faster one used fewer bits


MACHINE: tuple[str, ...] = ("devices", "cluster", "chip", "devices_per_node", "network_gbps", "network", "note")
"""Fields that `cluster_of` reads."""
MAX_KEPT = 1 << 12  # machines, and frameworks, of rows that are kept: rows of a table share a few, and equal ones are one object


def cluster_of(run: Run) -> Cluster:
    """Return the cluster that a run names, or its chips and devices with the network that it states or that of the vendor's system."""
    return _cluster_of(tuple(stated._replace(span=None, rough=False) for name in MACHINE if (stated := run.get(name))))


@lru_cache(MAX_KEPT)
def _cluster_of(stated: tuple[Stated, ...]) -> Cluster:
    run = Run.of(stated)
    named = run.text("cluster")
    if not named and not run.text("chip"):
        raise UserError("the chip is not stated")
    devices = whole(run, "devices")
    if named:
        return _of_size(slices_in_text(named) or find_cluster(named), run, named)
    return _with_network(_by_chip(run, devices), run.text("network"))


def _with_network(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with the name of its network, by which its coefficients are found, where a row states it."""
    if not name or cluster.network is None:
        return cluster
    notes = tuple(note for note in cluster.notes if not note.startswith("network not given"))
    return replace(cluster, network=replace(cluster.network, name=name), notes=notes)


def _by_chip(run: Run, devices: int) -> Cluster:
    """Return the cluster of a run that names its chip."""
    chip = chip_in_text(run.text("chip"))
    if not devices:
        raise UserError(f"{run.word('devices')} is 0")
    if chip.kind == "tpu":
        return _of_size(slices_in_text(run.text("note"), chip) or slices_in_text(f"{chip.key}-{devices}", chip), run, chip.key)
    per_node = whole(run, "devices_per_node", default=0) or _usual_node(chip, devices)
    if devices % min(devices, per_node):
        raise UserError(f"{devices} devices are not a whole number of nodes of {per_node}")
    inside = min(devices, per_node)
    gbps = amount(run, "network_gbps")
    cluster = _named_cluster(
        f"{devices // inside}x{inside}x{chip.key}" + ("" if math.isnan(gbps) else f"@{gbps * per_node:g}Gbps")
    )
    nodes = tuple((count, replace(node, chips=((inside, chip),))) for count, node in cluster.nodes)
    return cluster if cluster.chip == chip else replace(cluster, nodes=nodes)


_named_cluster = cache(find_cluster)


def _usual_node(chip: Chip, devices: int) -> int:
    """Return the devices of a node where a row states none: the vendor's, or the most below that which divide them (64 of a rack's 72)."""
    return next(size for size in range(min(devices, chip.per_node), 0, -1) if devices % size == 0)


def _of_size(cluster: Cluster | None, run: Run, text: str) -> Cluster:
    if cluster is None:
        raise UserError(f"cluster {quoted(text)} is unknown")
    if cluster.devices != whole(run, "devices"):
        have = f"{run.word('devices')} is {whole(run, 'devices')}"
        raise UserError(f"cluster {quoted(text)} has {cluster.devices} devices, but {have}")
    return cluster


def part_of(on: str, devices: int) -> str:
    """Return the words for as many nodes of a cluster as hold the devices ('jean-zay:12'); all of it if they are no whole nodes."""
    cluster = _named_cluster(on)
    nodes, rest = divmod(devices, cluster.node.devices)
    counted = re.fullmatch(r"(\d+)x(\d+)x(.+)", on)
    if rest and not nodes:
        return f"1x{devices}x{cluster.chip.key}"
    if rest:
        return on
    return f"{nodes}x{counted[2]}x{counted[3]}" if counted else f"{on.partition(':')[0]}:{nodes}"


def framework_of(run: Run, zero: int | None, kind: str, assumed: list[str]) -> Framework:
    """Find the framework that a run names; an unknown one is replaced by FSDP, DeepSpeed or Megatron, depending on how it shards."""
    framework, notes = _framework_of(run.text("framework"), run.text("source"), run.text("flash").lower(), zero, kind)
    assumed += notes
    return _as_told(framework, _release_of(run, framework), *(_word(run, name) for name in TOLD))


TOLD = ("attention", "overlap", "graphs", "gradients", "modules")  # facts of a program that a run may state


def _word(run: Run, name: str) -> str:
    """Return a fact of the program in the catalogue's words."""
    text = run.text(name).lower().strip()
    return words_of(name).get(re.sub(r"[^a-z0-9]", "", text), text)


def _release_of(run: Run, framework: Framework) -> str:
    """Return the release or the day of a run: as it states them, or as the words about its source do; '' where nothing does."""
    texts = (run.text(name) for name in ("release", "era", "date", "source"))
    return next(filter(None, (frameworks.release_in_text(framework, text) for text in texts)), "")


@lru_cache(MAX_KEPT)
def _as_told(
    framework: Framework, release: str, attention: str, overlap: str, graphs: str, gradients: str, modules: str
) -> Framework:
    """Return a framework with the facts of a release, and with those that a run states."""
    at = find_framework(framework.name, release) if release and framework.releases else framework
    at = replace(at, attention=framework.attention, dropout=framework.dropout) if framework.attention == "unfused" else at
    return at.told(attention=attention, overlap=overlap, graphs=graphs, gradients=gradients, modules=modules)


@lru_cache(MAX_KEPT)
def _framework_of(text: str, source: str, flash: str, zero: int | None, kind: str) -> tuple[Framework, tuple[str, ...]]:
    framework, notes = frameworks.published(source, _known_framework(text)), ()
    if framework is None:
        usual = "maxtext" if kind == "tpu" else "fsdp" if zero == 3 else "deepspeed" if zero == 2 else "megatron"
        framework = find_framework(usual)
        words = f"framework {quoted(text)} evaluated as {framework.name}" if text else f"framework not stated: {framework.name}"
        notes = (words,)
    if flash == "no":
        framework = replace(framework, attention="unfused", dropout=True)
    elif flash == "yes" and framework.attention == "unfused":
        framework = replace(framework, attention="fa2")
    return framework, notes


@cache
def _known_framework(text: str) -> Framework | None:
    """Find a framework by its name, or by the longest name of the catalogue inside the text: 'NeMo (Megatron-LM)'."""
    inside = [pair for pair in frameworks.names().items() if files.squeeze(pair[0]) in files.squeeze(text)]
    return find_framework(max(inside, key=lambda pair: len(pair[0]))[1]) if inside else None


def precision_of(run: Run, kind: str) -> Precision | None:
    """Return the precision that a run states, or None; an unknown word is refused, and a CPU, rated in float32, needs none."""
    text = run.text("precision")
    if kind == "cpu" and text.lower() in ("fp32", "float32"):
        return "bf16"
    return cast(Precision, parse_precision(text)) if text else None


def unstated_precision(fastest: Sequence[tuple[float, Chip]]) -> Precision:
    """Return the precision of a table whose rows state none: bf16, unless a row's model FLOP/s exceed what 16 bits allow."""
    faster = [
        chip for rate, chip in fastest if rate > MAX_BF16_MFU * (chip.flops.get("bf16") or math.inf) and "fp8" in chip.flops
    ]
    return "fp8" if faster else "bf16"


def is_yes(text: str) -> bool:
    return bool(re.fullmatch(r"(?i)\s*(yes|true|1|on)\s*", text))
