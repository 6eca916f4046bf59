"""Containers: docker compose, the Helm values of vLLM's production stack, and Ray Serve's LLM configuration."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from meshwise.programs.launch import manifests
from meshwise.programs.program import Launch
from meshwise.programs.read.images import entry_of
from meshwise.programs.source import Source
from meshwise.runs.run import Stated

_SIZE = re.compile(r"(?<!^)(?=[A-Z])")


def read(source: Source) -> Launch | None:
    """Return what a compose file, Helm values or a Ray Serve configuration start; None for another file."""
    documents = manifests.composed(source)
    root = documents[0] if len(documents) == 1 else None
    if root is None or root.id != "mapping":
        return None
    if manifests.at(root, ("services",)) is not None and manifests.at(root, ("apiVersion",)) is None:
        return _compose(source, manifests.at(root, ("services",)))
    if manifests.at(root, ("servingEngineSpec", "modelSpec")) is not None:
        return _pools(_helm(source, root))
    if manifests.at(root, ("applications",)) is not None or manifests.at(root, ("llm_configs",)) is not None:
        return _pools(_ray_serve(source, root))
    return None


def _pools(found: Iterator[Launch]) -> Launch | None:
    pools = tuple(found)
    return Launch((), pools=pools) if pools else None


def _compose(source: Source, services: Any) -> Launch | None:
    """Return the servers of a compose file, each with its environment and its devices."""
    pools: list[Launch] = []
    for key, service in services.value if services.id == "mapping" else ():
        image, command = manifests.value(manifests.at(service, ("image",))), manifests.at(service, ("command",))
        entry = manifests.at(service, ("entrypoint",))
        first = () if entry is not None else entry_of(image)
        if entry is None and command is None and not first:
            continue
        variables = _variables(service)
        facts = [
            *_devices(source, service),
            *(Stated(f"env:{name}", value, "said", None, name) for name, value in variables.items()),
        ]
        pools.append(Launch(tuple(facts), (_script(source, first, entry, command),), variables, name=str(key.value)))
    return Launch((), pools=tuple(pools)) if pools else None


def _words(node: Any) -> list[Any]:
    """Return the scalars of a command: the items of a list, or one text."""
    if node is None:
        return []
    return [node] if node.id == "scalar" else [item for item in node.value if item.id == "scalar"]


def _script(source: Source, first: Sequence[str], entry: Any, command: Any) -> Source:
    """Return what a service starts as a script: lists are words, a text is split as a shell does."""
    parts = [(node, _words(node)) for node in (entry, command) if node is not None]
    if len(parts) == 1 and parts[0][0].id == "sequence" and parts[0][1]:
        return manifests.of_words(source, parts[0][1], first)
    texts = [*first]
    for node, words in parts:
        plain = [re.sub(r"\s*\n\s*", " ", str(word.value).strip()) for word in words]
        texts += plain if node.id == "scalar" else [shlex.quote(text) for text in plain]
    line = source.line + int(parts[-1][0].start_mark.line) if parts else 1
    return Source(source.file, " ".join(texts), "", line, (-1,))


def _variables(service: Any) -> dict[str, str]:
    """Return the environment of a service: a mapping, or a list of NAME=VALUE."""
    node = manifests.at(service, ("environment",))
    if node is None:
        return {}
    if node.id == "mapping":
        return {str(key.value): manifests.value(item) for key, item in node.value if manifests.value(item)}
    pairs = [manifests.value(item).partition("=") for item in node.value if node.id == "sequence"]
    return {name: value for name, equals, value in pairs if equals}


def _devices(source: Source, service: Any) -> list[Stated]:
    """Return the devices that a service reserves: a count, or their numbers."""
    listed = manifests.at(service, ("deploy", "resources", "reservations", "devices"))
    for device in listed.value if listed is not None and listed.id == "sequence" else ():
        count, ids = manifests.at(device, ("count",)), manifests.at(device, ("device_ids",))
        if (number := manifests.counted(count)) is not None:
            return [Stated("devices_per_node", number, "said", manifests.span(source, count), "count")]
        if ids is not None and ids.id == "sequence" and ids.value:
            return [Stated("devices_per_node", len(ids.value), "derived", None, "device_ids", "devices that it names")]
    return []


ENGINE_KEYS = {"modelURL": "--model", "model_id": "--model", "model_source": "--model"}
SKIPPED = ("enabled", "extraArgs", "v1", "env", "hfToken")


def _flags(node: Any) -> list[str]:
    """Return the settings of an engine as flags: tensorParallelSize and tensor_parallel_size are --tensor-parallel-size."""
    words: list[str] = []
    for key, item in node.value if node is not None and node.id == "mapping" else ():
        text = manifests.value(item)
        flag = "--" + _SIZE.sub("-", str(key.value)).lower().replace("_", "-")
        if key.value in SKIPPED or not text or text.lower() == "false":
            continue
        words += [flag] if text.lower() == "true" else [flag, text]
    extra = manifests.at(node, ("extraArgs",))
    words += [manifests.value(item) for item in extra.value] if extra is not None and extra.id == "sequence" else []
    return words


def _engine(source: Source, node: Any, model: str, settings: Any, facts: list[Stated], name: str) -> Launch:
    line = source.line + int(node.start_mark.line)
    words = ["vllm", "serve", model, *_flags(settings)]
    return Launch(tuple(facts), (Source(source.file, shlex.join(words), "", line, (-1,)),), name=name)


def _helm(source: Source, root: Any) -> Iterator[Launch]:
    """Yield the models of the Helm values of vLLM's production stack."""
    listed = manifests.at(root, ("servingEngineSpec", "modelSpec"))
    for spec in listed.value if listed.id == "sequence" else ():
        model = manifests.value(manifests.at(spec, ("modelURL",)))
        facts: list[Stated] = []
        for key, fact in (("requestGPU", "devices_per_node"), ("replicaCount", "replicas")):
            node = manifests.at(spec, (key,))
            if (number := manifests.counted(node)) is not None:
                facts.append(Stated(fact, number, "said", manifests.span(source, node), key))
        if model:
            yield _engine(
                source, spec, model, manifests.at(spec, ("vllmConfig",)), facts, manifests.value(manifests.at(spec, ("name",)))
            )


def _ray_serve(source: Source, root: Any) -> Iterator[Launch]:
    """Yield the models of Ray Serve's LLM applications."""
    applications = manifests.at(root, ("applications",))
    roots = (
        [manifests.at(one, ("args",)) for one in applications.value]
        if applications is not None and applications.id == "sequence"
        else [root]
    )
    for args in roots:
        listed = manifests.at(args, ("llm_configs",))
        for config in listed.value if listed is not None and listed.id == "sequence" else ():
            loading = manifests.at(config, ("model_loading_config",))
            model = manifests.value(manifests.at(loading, ("model_source",))) or manifests.value(
                manifests.at(loading, ("model_id",))
            )
            chip = manifests.at(config, ("accelerator_type",))
            facts = (
                [Stated("chip", chip.value, "said", manifests.span(source, chip), "accelerator_type")]
                if manifests.value(chip)
                else []
            )
            if model:
                yield _engine(source, config, model, manifests.at(config, ("engine_kwargs",)), facts, model)
