"""Kubernetes manifests: a container that runs a node's script, and what the containers of any manifest start."""

import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from meshwise.programs import forms
from meshwise.programs.bash.budget import spend
from meshwise.programs.launch import script
from meshwise.programs.program import Job, Launch
from meshwise.programs.read import tree
from meshwise.programs.read.images import entry_of
from meshwise.programs.source import Source
from meshwise.runs.run import Span, Stated

IMAGE = f"{forms.PLACEHOLDER}/IMAGE"
"""Kubernetes refuses capital letters in the name of an image, so a pod with this one does not start."""
FOLDER = "/etc/meshwise"
MAX_NESTING = 40


def text(header: Sequence[str], *documents: Mapping[str, Any]) -> str:
    """Return documents as YAML under a comment; scripts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks."""

    def block(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, block)  # pyright: ignore[reportUnknownMemberType]
    body = "---\n".join(yaml.dump(document, Dumper=Dumper, sort_keys=False, width=1000) for document in documents)  # pyright: ignore[reportUnknownMemberType]
    return forms.comment(header) + body


def document(version: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of Kubernetes."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def container(job: Job, variables: Mapping[str, str], *, torchrun_names: bool = True) -> dict[str, Any]:
    """Return the container of a node: its script, its accelerators, shared memory for data loaders and NCCL."""
    setup = [f"cp {FOLDER}/* ."] if job.files else []
    lines = ["set -euo pipefail", *setup, *script.lines(job, variables, torchrun_names=torchrun_names)]
    limits = script.resources(job)
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    mounts += [{"name": "files", "mountPath": FOLDER}] if job.files else []
    found: dict[str, Any] = {"name": "node", "image": IMAGE, "command": ["bash", "-c"], "args": ["\n".join(lines) + "\n"]}
    required = script.required(job)  # empty, the script stops and says what is missing
    found |= {"env": [{"name": name, "value": ""} for name in required]} if required else {}
    found |= {"resources": {"limits": limits}} if limits else {}
    return found | {"volumeMounts": mounts}


def pod(job: Job, held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod of a container."""
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    volumes += [{"name": "files", "configMap": {"name": f"{job.name}-files"}}] if job.files else []
    return {"restartPolicy": "Never", "containers": [dict(held)], "volumes": volumes}


def config_map(job: Job) -> list[dict[str, Any]]:
    """Return the files of a job as a ConfigMap, if it has any."""
    if not job.files:
        return []
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{job.name}-files"}, "data": dict(job.files)}]


# Reading.

_COPIES = {"Deployment": "replicas", "LeaderWorkerSet": "replicas", "InferenceService": "predictor.minReplicas"}
REPLICAS: dict[str, Sequence[str]] = {kind: ("spec", *path.split(".")) for kind, path in _COPIES.items()}
"""Where a kind counts copies of a server; of one that adds copies under load, those that there always are."""
FILLED = re.compile(r"\$\(([A-Z][A-Z0-9_]*)\)")
"""A variable of a container in its command, which Kubernetes fills in before a shell sees it."""


def read(source: Source, kinds: Iterable[str], nodes: Sequence[tuple[str, ...]]) -> Launch | None:
    """Return what the containers of a manifest start; `kinds`: of documents, empty for any; `nodes`: paths whose product is taken."""
    wanted = set(kinds)
    for document in composed(source):
        kind, version = value(at(document, ("kind",))), value(at(document, ("apiVersion",)))
        if not kind or not version or (wanted and kind not in wanted):
            continue
        facts = [fact for path in nodes for fact in count(source, document, path, "nodes")]
        facts += count(source, document, REPLICAS.get(kind, ()), "replicas")
        scripts: list[Source] = []
        for held in containers(document):
            facts += devices(source, held)
            facts += environment(source, held)
            scripts += script_of(source, held)
        return Launch(tuple(_multiplied(facts)), tuple(scripts), variables_of(facts), config_maps(source))
    return None


def variables_of(facts: Iterable[Stated]) -> dict[str, str]:
    """Return the environment of containers as variables of their scripts."""
    return {
        one.fact.removeprefix("env:"): str(one.value) for one in facts if one.fact.startswith("env:") and one.value is not None
    }


def config_maps(source: Source) -> tuple[Source, ...]:
    """Return the files that the ConfigMaps of a text hold, by name."""
    maps = [one for one in composed(source) if value(at(one, ("kind",))) == "ConfigMap"]
    found: list[Source] = []
    for document in maps:
        for key, item in pairs(at(document, ("data",))):
            if item.id == "scalar":
                body = block(source, item)
                found.append(Source(body.file, body.text, str(key.value), body.line, body.starts))
    return tuple(found)


def read_services(source: Source) -> Launch | None:
    """Return what the workers of a DynamoGraphDeployment (v1alpha1 or v1beta1) start, how often, and over how many pods each."""
    document = next((one for one in composed(source) if value(at(one, ("kind",))) == "DynamoGraphDeployment"), None)
    services, components = at(document, ("spec", "services")), at(document, ("spec", "components"))
    named = [(str(key.value), service) for key, service in pairs(services)]
    named = named or [(value(at(one, ("name",))), one) for one in items(components)]
    if not named:
        return None
    pools: list[Launch] = []
    for name, service in named:
        held_here = list(containers(service))
        started = [one for held in held_here for one in script_of(source, held)]
        if not started:
            continue  # a frontend, whose image starts it
        facts = [
            *count(source, service, ("replicas",), "replicas"),
            *count(source, service, ("multinode", "nodeCount"), "nodes"),
        ]
        facts += [one for held in (service, *held_here) for one in devices(source, held)][:1]
        facts += [one for held in (service, *held_here) for one in environment(source, held)]
        pools.append(Launch(tuple(facts), tuple(started), variables_of(facts), config_maps(source), name=name))
    return Launch((), pools=tuple(pools))


def _multiplied(facts: Sequence[Stated]) -> list[Stated]:
    """Return facts with counts of nodes multiplied, and devices of the first container that has some."""
    counts = [fact for fact in facts if fact.fact == "nodes"]
    others = {fact.fact: fact for fact in reversed(facts) if fact.fact != "nodes"}
    if len(counts) > 1:
        product = math.prod(int(cast(int, fact.value)) for fact in counts)
        keys = " x ".join(fact.key for fact in counts)
        return [Stated("nodes", product, "derived", counts[0].span, counts[0].key, keys), *others.values()]
    return [*counts, *others.values()]


def composed(source: Source) -> list[Any]:
    """Return the nodes of the documents of a YAML text; nothing where it is not YAML."""
    return [node for node in tree.composed(source.text)[0] if node is not None]


def at(node: Any, path: Sequence[str]) -> Any:
    """Return the node under keys or numbers; None where there is none."""
    for name in path:
        if node is None:
            return None
        if node.id == "mapping":
            node = next((item for key, item in reversed(tree.merged(node)) if key.value == name), None)
        elif node.id == "sequence" and name.isdigit() and int(name) < len(node.value):
            node = node.value[int(name)]
        else:
            return None
    return node


def value(node: Any) -> str:
    """Return the text of a scalar; '' for another node."""
    return str(node.value) if node is not None and node.id == "scalar" else ""


def counted(node: Any) -> int | None:
    """Return the whole number of a scalar; None for another node, and for more digits than a count has."""
    return int(node.value) if value(node).isdecimal() and len(node.value) < 9 else None


SERVED_BY_VLLM = ("huggingface", "vLLM")  # formats of KServe's `predictor.model` whose runtime hands its arguments to vLLM


def containers(node: Any, depth: int = 0) -> Iterator[Any]:
    """Yield every container of a manifest, whatever it stands in: an item of `containers`, or a `mainContainer` of Dynamo."""
    if node is None or depth > MAX_NESTING:
        return
    spend()
    if node.id == "mapping":
        for key, item in node.value:
            if key.value in ("containers", "workerContainers") and item.id == "sequence":
                yield from (held for held in item.value if held.id == "mapping")
            elif _is_container(str(key.value), item):
                yield item
            else:
                yield from containers(item, depth + 1)
    elif node.id == "sequence":
        for item in node.value:
            yield from containers(item, depth + 1)


def _is_container(name: str, item: Any) -> bool:
    if name == "model":
        return value(at(item, ("modelFormat", "name"))) in SERVED_BY_VLLM
    return name in ("mainContainer", "trainer") and bool(at(item, ("args",)) or at(item, ("command",)))


def span(source: Source, node: Any) -> Span:
    """Return the place of a scalar, without its quotes."""
    quoted = 1 if node.style in ("'", '"') else 0
    return source.span(node.start_mark.index + quoted, node.end_mark.index - quoted)


def count(source: Source, document: Any, path: Sequence[str], fact: str) -> list[Stated]:
    """Return a fact that a whole number under keys says; nothing where there is none."""
    node = at(document, path)
    return [Stated(fact, number, "said", span(source, node), ".".join(path))] if (number := counted(node)) is not None else []


def devices(source: Source, held: Any) -> list[Stated]:
    """Return the accelerators of a container."""
    for place in itertools.product(("resources", "resourcesPerNode"), ("limits", "requests")):
        for key, item in pairs(at(held, place)):
            known = key.value in script.RESOURCES.values() or str(key.value).endswith("/gpu") or key.value == "gpu"
            if known and (number := counted(item)) is not None:
                return [Stated("devices_per_node", number, "said", span(source, item), str(key.value))]
    return []


def environment(source: Source, held: Any) -> Iterator[Stated]:
    """Yield the variables of a container, with those of the ConfigMaps that it takes whole."""
    for item in items(at(held, ("env",)) or at(held, ("envs",))):
        name, text = value(at(item, ("name",))), at(item, ("value",))
        if name and text is not None and text.id == "scalar":
            yield Stated(f"env:{name}", value(text), "said", span(source, text), name)
    names = {value(at(item, ("configMapRef", "name"))) for item in items(at(held, ("envFrom",)))}
    for document in composed(source) if names else ():
        if value(at(document, ("kind",))) == "ConfigMap" and value(at(document, ("metadata", "name"))) in names:
            for key, item in pairs(at(document, ("data",))):
                yield Stated(f"env:{key.value}", value(item), "said", span(source, item), str(key.value))


def script_of(source: Source, held: Any) -> list[Source]:
    """Return what a container starts: the script of `bash -c`, or its words."""
    words = [item for name in ("command", "args") for item in words_of(at(held, (name,)))]
    entry = entry_of(value(at(held, ("image",)))) if at(held, ("command",)) is None else ()
    if at(held, ("modelFormat",)) is not None:
        place = value(at(held, ("storageUri",))).removeprefix("hf://")
        entry = ("vllm", "serve", *([place] if place else []))
    texts = [value(word) for word in words]
    for number in range(len(words) - 1):
        if texts[number].rpartition("/")[2] in ("bash", "sh") and number + 1 < len(words):
            option = next((i for i in range(number + 1, len(words)) if texts[i].startswith("-") and "c" in texts[i]), None)
            if option is not None and option + 1 < len(words):
                body = block(source, words[option + 1])
                return [replace(body, text=FILLED.sub(r"${\1}", body.text))]  # of the same length, so that places stay
    return [of_words(source, words, entry)] if words else []


def pairs(node: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a mapping, with those that it merges; nothing for another node."""
    return tree.merged(node) if node is not None and node.id == "mapping" else []


def items(node: Any) -> list[Any]:
    """Return the items of a list; nothing for another node."""
    return list(node.value) if node is not None and node.id == "sequence" else []


def words_of(node: Any) -> list[Any]:
    """Return the scalars of a command: the items of a list, or one text."""
    return [node] if node is not None and node.id == "scalar" else [item for item in items(node) if item.id == "scalar"]


def block(source: Source, node: Any) -> Source:
    """Return the text of a scalar as a source, whose lines are found in the file where they stand there as they are."""
    text = str(node.value)
    first = source.line + int(node.start_mark.line)
    if node.style not in ("|", ">"):
        place = span(source, node)
        own = source.text[node.start_mark.index + bool(node.style) : node.end_mark.index - bool(node.style)]
        starts = (place.start if own == text else -1, *(-1 for _ in range(text.count("\n"))))
        return Source(source.file, text, "", first, starts)
    raw, starts = source.text.split("\n"), list[int]()
    offsets, at_line = [0], int(node.start_mark.line) + 1
    for line in raw:
        offsets.append(offsets[-1] + len(line) + 1)
    for number, line in enumerate(text.split("\n")):
        written = raw[at_line + number] if at_line + number < len(raw) else ""
        indent = len(written) - len(line)
        same = indent >= 0 and written[indent:] == line and not written[:indent].strip() and node.style == "|"
        begin = offsets[at_line + number] + indent if same else -1
        starts.append(source.span(begin, begin).start if same else -1)
    return Source(source.file, text, "", first + 1, tuple(starts))


def of_words(source: Source, words: Sequence[Any], entry: Sequence[str] = ()) -> Source:
    """Return words of a list as a command, one a line, each at its own place; `entry`: what the image starts before them."""
    lines, starts = [f"{text} \\" for text in entry], [-1 for _ in entry]
    for number, node in enumerate(words):
        word = str(node.value)
        last = number == len(words) - 1
        shown = FILLED.sub(r"${\1}", word)
        quoted = f'"{shown}"' if shown != word and not set(word) & set('"`\\') else shlex.quote(word)
        lines.append(quoted + ("" if last else " \\"))
        place = span(source, node)
        plain = quoted == word and place.writable and place.end - place.start == len(word)
        starts.append(place.start if plain else -1)
    first = source.line + int(words[0].start_mark.line) - len(entry)
    return Source(source.file, "\n".join(lines), "", max(1, first), tuple(starts))


def object_name(job: Job) -> str:
    """Return the name of a job as Kubernetes takes it."""
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in job.name.lower())
    name = plain.strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")
