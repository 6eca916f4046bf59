"""Containers: docker compose, the Helm values of vLLM's production stack, and Ray Serve's LLM configuration."""

import re
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
        words = [*_words(entry), *_words(command)]
        first = () if entry is not None else entry_of(image)
        if not words and not first:
            continue
        variables = _variables(service)
        facts = [*_devices(source, service), *(Stated(f"env:{name}", value, "said", None, name) for name, value in variables.items())]
        pools.append(Launch(tuple(facts), (_script(source, first, words, command),), variables, name=str(key.value)))
    return Launch((), pools=tuple(pools)) if pools else None


def _words(node: Any) -> list[Any]:
    """Return the words of a command: a list of scalars, or one text, which a shell splits."""
    if node is None:
        return []
    return [node] if node.id == "scalar" else [item for item in node.value if item.id == "scalar"]


def _script(source: Source, first: Sequence[str], words: Sequence[Any], command: Any) -> Source:
    """Return a command as a script; a command that is one text is a script itself."""
    front = " ".join(first)
    if command is not None and command.id == "scalar" and len(words) == 1:
        body = manifests.block(source, command)
        text = re.sub(r"\s*\n\s*", " ", body.text.strip()) if command.style in (">", "|") else body.text
        return Source(source.file, f"{front} {text}".strip(), "", body.line, (-1,))
    if not words:
        return Source(source.file, front, "", 1, (-1,))
    body = manifests.of_words(source, words)
    if not front:
        return body
    return Source(source.file, f"{front} \\\n{body.text}", "", max(1, body.line - 1), (-1, *(body.starts or ())))


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
        if manifests.value(count).isdecimal():
            return [Stated("devices_per_node", int(count.value), "said", manifests.span(source, count), "count")]
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
    import shlex

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
            if manifests.value(node).isdecimal():
                facts.append(Stated(fact, int(node.value), "said", manifests.span(source, node), key))
        if model:
            yield _engine(source, spec, model, manifests.at(spec, ("vllmConfig",)), facts, manifests.value(manifests.at(spec, ("name",))))


def _ray_serve(source: Source, root: Any) -> Iterator[Launch]:
    """Yield the models of Ray Serve's LLM applications."""
    applications = manifests.at(root, ("applications",))
    roots = [manifests.at(one, ("args",)) for one in applications.value] if applications is not None and applications.id == "sequence" else [root]
    for args in roots:
        listed = manifests.at(args, ("llm_configs",))
        for config in listed.value if listed is not None and listed.id == "sequence" else ():
            loading = manifests.at(config, ("model_loading_config",))
            model = manifests.value(manifests.at(loading, ("model_source",))) or manifests.value(manifests.at(loading, ("model_id",)))
            chip = manifests.at(config, ("accelerator_type",))
            facts = [Stated("chip", chip.value, "said", manifests.span(source, chip), "accelerator_type")] if manifests.value(chip) else []
            if model:
                yield _engine(source, config, model, manifests.at(config, ("engine_kwargs",)), facts, model)
