"""SkyPilot: a task on rented machines."""

import re
from typing import Any

from meshwise.programs import forms
from meshwise.programs.launch import manifests, script
from meshwise.programs.program import Job, Launch, Launcher
from meshwise.programs.source import Source
from meshwise.programs.table import names
from meshwise.runs.run import Stated

FILE = "task.yaml"
NAMES = names("skypilot")
"""SkyPilot's names of accelerators, by chip (`sky gpus list --all`)."""


def write(job: Job) -> dict[str, str]:
    """Return the task. Files beside it are synchronised with the machines."""
    address = '"$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"'
    variables = script.variables('"$SKYPILOT_NUM_NODES"', '"$SKYPILOT_NODE_RANK"', address)
    found: dict[str, object] = {"name": manifests.object_name(job), "workdir": ".", "num_nodes": job.nodes}
    if not script.is_cpu(job):
        accelerator = NAMES.get(job.chip, f"{forms.PLACEHOLDER}-{job.chip}")
        found["resources"] = {"accelerators": f"{accelerator}:{job.devices_per_node}"}
    required = script.required(job)
    found |= {"envs": dict.fromkeys(required)} if required else {}
    found["run"] = "\n".join(["set -euo pipefail", *script.lines(job, variables)]) + "\n"
    return {FILE: manifests.text(job.header, found)}


def read(source: Source) -> Launch | None:
    """Return what a task says: machines, accelerators, variables, and its script."""
    documents = manifests.composed(source)
    task = documents[0] if len(documents) == 1 else None
    run = manifests.at(task, ("run",))
    known = any(manifests.at(task, (key,)) is not None for key in ("resources", "num_nodes", "envs", "setup"))
    if not manifests.value(run) or not known or manifests.at(task, ("apiVersion",)) is not None:
        return None
    facts: list[Stated] = []
    facts += manifests.count(source, task, ("num_nodes",), "nodes")
    facts += [] if facts else [Stated("nodes", 1, "default", None, "num_nodes", "default of SkyPilot")]
    for path in (("service", "replicas"), ("service", "replica_policy", "min_replicas")):
        facts += manifests.count(source, task, path, "replicas")
    facts += _accelerators(source, manifests.at(task, ("resources", "accelerators")))
    for key, item in manifests.pairs(manifests.at(task, ("envs",))):
        if manifests.value(item):
            facts.append(Stated(f"env:{key.value}", manifests.value(item), "said", manifests.span(source, item), str(key.value)))
    return Launch(tuple(facts), (manifests.block(source, run),), _variables(task, facts))


def _variables(task: object, facts: list[Stated]) -> dict[str, str]:
    """Return the variables that SkyPilot sets for the script: the task's own, and those of its machines."""
    found = {one.fact: one.value for one in facts}
    names = {"SKYPILOT_NUM_NODES": "nodes", "SKYPILOT_NUM_GPUS_PER_NODE": "devices_per_node"}
    known = {name: str(found[fact]) for name, fact in names.items() if found.get(fact) is not None}
    return known | {
        fact.removeprefix("env:"): str(value) for fact, value in found.items() if fact.startswith("env:") and value is not None
    }


def _accelerators(source: Source, node: Any) -> list[Stated]:
    """Return `accelerators: H100:8`, also written as `{H100: 8}`."""
    text = manifests.value(node)
    match = re.fullmatch(r"([\w.-]+)(?::(\d+))?", text)
    if match:
        span = manifests.span(source, node)
        return [
            Stated("chip", match[1], "said", span, "accelerators"),
            Stated("devices_per_node", int(match[2] or 1), "said", span, "accelerators"),
        ]
    kind = getattr(node, "id", "")
    items = [key for key, _ in node.value] if kind == "mapping" else list(node.value) if kind == "sequence" else []
    several = [match for item in items if (match := re.fullmatch(r"([\w.-]+):(\d{1,4})", manifests.value(item)))]
    if several and len(several) == len(items):
        counts, names = {int(match[2]) for match in several}, " or ".join(match[1] for match in several)
        chip = Stated(
            "chip", names if len(several) == 1 else None, "said" if len(several) == 1 else "unknown", None, "accelerators", names
        )
        each = counts.pop() if len(counts) == 1 else None
        how = "said" if each is not None else "unknown"
        return [chip, Stated("devices_per_node", each, how, None, "accelerators", "" if each else f"by the accelerator: {names}")]
    pairs = node.value if kind == "mapping" else ()
    for key, item in pairs:
        if (count := manifests.counted(item)) is not None:
            counted = Stated("devices_per_node", count, "said", manifests.span(source, item), "accelerators")
            return [Stated("chip", str(key.value), "said", manifests.span(source, key), "accelerators"), counted]
    return []


LAUNCHER = Launcher(
    name="skypilot", title="SkyPilot", version="0.14", write=write, start=f"sky launch {FILE}", read=read,
    check=f"sky launch --dryrun {FILE}",
)  # fmt: skip
