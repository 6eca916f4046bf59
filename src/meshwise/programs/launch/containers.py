"""Containers: docker compose, the Helm values of vLLM's production stack, and Ray Serve's LLM configuration."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
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
    for document in documents:
        inner = manifests.at(document, ("spec", "serveConfigV2"))
        if manifests.value(inner):  # a RayService
            return read(manifests.block(source, inner))
        if manifests.value(manifests.at(document, ("kind",))) == "LLMInferenceService":
            spec = manifests.at(document, ("spec",))
            return _pools(_disaggregated(source, spec, ("model", "uri"), {"decode": (), "prefill": ("prefill",)}))
    root = documents[0] if len(documents) == 1 else None
    if root is None or root.id != "mapping":
        return None
    if manifests.at(root, ("modelArtifacts",)) is not None:
        return _pools(_disaggregated(source, root, ("modelArtifacts", "uri"), {"decode": ("decode",), "prefill": ("prefill",)}))
    words = manifests.words_of(manifests.at(root, ("image", "command")))
    if words and manifests.at(root, ("apiVersion",)) is None:  # the values of vLLM's own chart
        return Launch(tuple(manifests.devices(source, root)), (manifests.of_words(source, words),))
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
    for key, service in manifests.pairs(services):
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
        start = _script(source, first, entry, command)
        if "${" in start.text:  # filled in from a file beside it
            file = manifests.at(service, ("env_file",))
            named = manifests.value(file) or manifests.value(manifests.at(file, ("0",))) or ".env"
            start = Source(
                source.file, f". {shlex.quote(named)}\n{start.text}", "", max(1, start.line - 1), (-1, *(start.starts or ()))
            )
        pools.append(Launch(tuple(facts), (start,), variables, name=str(key.value)))
    return Launch((), pools=tuple(pools)) if pools else None


def _script(source: Source, first: Sequence[str], entry: Any, command: Any) -> Source:
    """Return what a service starts as a script: lists are words, a text is split as a shell does."""
    parts = [(node, manifests.words_of(node)) for node in (entry, command) if node is not None]
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
    listed = [manifests.value(item).partition("=") for item in manifests.items(node)]
    found = {str(key.value): manifests.value(item) for key, item in manifests.pairs(node) if manifests.value(item)}
    return found | {name: value for name, equals, value in listed if equals}


def _devices(source: Source, service: Any) -> list[Stated]:
    """Return the devices that a service reserves: a count, or their numbers."""
    for device in manifests.items(manifests.at(service, ("deploy", "resources", "reservations", "devices"))):
        ids = len(manifests.items(manifests.at(device, ("device_ids",))))
        named = [Stated("devices_per_node", ids, "derived", None, "device_ids", "devices that it names")] if ids else []
        if counted := manifests.count(source, device, ("count",), "devices_per_node") or named:
            return counted
    return []


SKIPPED = ("enabled", "extraArgs", "v1", "env", "hfToken")


def _flags(node: Any) -> list[str]:
    """Return the settings of an engine as flags: tensorParallelSize and tensor_parallel_size are --tensor-parallel-size."""
    words: list[str] = []
    for key, item in manifests.pairs(node):
        text = manifests.value(item)
        flag = "--" + _SIZE.sub("-", str(key.value)).lower().replace("_", "-")
        if key.value in SKIPPED or not text or text.lower() == "false":
            continue
        words += [flag] if text.lower() == "true" else [flag, text]
    return words + [manifests.value(item) for item in manifests.items(manifests.at(node, ("extraArgs",)))]


def _engine(source: Source, node: Any, model: str, settings: Any, facts: list[Stated], name: str) -> Launch:
    line = source.line + int(node.start_mark.line)
    words = ["vllm", "serve", model, *_flags(settings)]
    return Launch(tuple(facts), (Source(source.file, shlex.join(words), "", line, (-1,)),), name=name)


PARALLELISM = {
    "tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local", "expert": "--enable-expert-parallel",
}  # fmt: skip
"""Flags of vLLM for `parallelism` of KServe's LLMInferenceService and llm-d's values."""


def _disaggregated(source: Source, root: Any, model: Sequence[str], roles: Mapping[str, Sequence[str]]) -> Iterator[Launch]:
    """Yield the pools of an LLMInferenceService of KServe, or of the values of llm-d's chart; each is a spec under its own keys."""
    name = manifests.value(manifests.at(root, model)).removeprefix("hf://")
    for role, path in roles.items():
        spec = manifests.at(root, path)
        if spec is None or manifests.value(manifests.at(spec, ("create",))) == "false":
            continue
        held = next(iter(manifests.containers(spec)), None)
        facts = [*manifests.count(source, spec, ("replicas",), "replicas"), *manifests.devices(source, held)]
        words = ["vllm", "serve", name]
        for key, item in manifests.pairs(manifests.at(spec, ("parallelism",))):
            on = PARALLELISM.get(str(key.value)) if manifests.value(item) != "false" else None
            words += [] if on is None else [on] if manifests.value(item) == "true" else [on, manifests.value(item)]
        words += [manifests.value(item) for item in manifests.items(manifests.at(held, ("args",)))]
        variables = manifests.variables_of(manifests.environment(source, held))
        words += shlex.split(variables.get("VLLM_ADDITIONAL_ARGS", ""))
        own = manifests.script_of(source, held) if manifests.at(held, ("command",)) is not None else []
        line = source.line + int(spec.start_mark.line)
        yield Launch(tuple(facts), (*own,) or (Source(source.file, shlex.join(words), "", line, (-1,)),), variables, name=role)


def _helm(source: Source, root: Any) -> Iterator[Launch]:
    """Yield the models of the Helm values of vLLM's production stack."""
    for spec in manifests.items(manifests.at(root, ("servingEngineSpec", "modelSpec"))):
        model, name = (manifests.value(manifests.at(spec, (key,))) for key in ("modelURL", "name"))
        counted = (("requestGPU", "devices_per_node"), ("replicaCount", "replicas"))
        facts = [one for key, fact in counted for one in manifests.count(source, spec, (key,), fact)]
        if model:
            yield _engine(source, spec, model, manifests.at(spec, ("vllmConfig",)), facts, name)


def _ray_serve(source: Source, root: Any) -> Iterator[Launch]:
    """Yield the models of Ray Serve's LLM applications."""
    applications = manifests.at(root, ("applications",))
    for args in [manifests.at(one, ("args",)) for one in manifests.items(applications)] if applications is not None else [root]:
        for config in manifests.items(manifests.at(args, ("llm_configs",))):
            places = [("model_loading_config", key) for key in ("model_source", "model_id")]
            model = next((text for place in places if (text := manifests.value(manifests.at(config, place)))), "")
            chips = manifests.words_of(manifests.at(config, ("accelerator_type",)))[:1]
            facts = [Stated("chip", str(one.value), "said", manifests.span(source, one), "accelerator_type") for one in chips]
            if model:
                yield _engine(source, config, model, manifests.at(config, ("engine_kwargs",)), facts, model)
