"""llama.cpp: llama-server, and ggml-rpc-server on the other hosts. Flags as in its tools/server and tools/rpc READMEs."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwise.cost.serve.layouts import Card, ServeLayout
from meshwise.cost.serve.memory.placement import layer_devices
from meshwise.cost.serve.question import ServeQuestion
from meshwise.models.formats import FORMATS
from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Refusal, Setup, Written
from meshwise.programs.serve import lengths, setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.table import table
from meshwise.runs.run import Run, Value

TITLE, VERSION = "llama.cpp", "b9000"
PORT, RPC_PORT = 8080, 50052
PRESET = "models.ini"
BACKENDS = {"NVIDIA": "CUDA", "AMD": "ROCm", "Intel": "SYCL"}  # the names of llama.cpp's backends, by vendor
COMMANDS = ("llama-server", "llama-cli", "llama-bench", "server")
OFF = ("off", "0", "false")
SWITCH = Kind(lambda value: str(value).lower() not in OFF, lambda value: "on" if value else "off", "on, off or auto")
SHARES = Kind(
    lambda value: tuple(str(value).replace("/", ",").split(",")),
    lambda value: ",".join(f"{float(share):.0f}" for share in value), "shares separated by commas",
)  # fmt: skip

KEYS = table("llamacpp", shares=SHARES, length=lengths.LENGTH, on_off=SWITCH)
LONG_OF_SHORT = {
    row.key: next((name for name in (row.key, *row.also) if name.startswith("--")), row.key).lstrip("-") for row in KEYS
}
"""Long names of the options, which are the keys of a preset."""


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return one llama-server command per replica on a host; over several hosts, the RPC servers first."""
    if layout.hosts > 1:
        return _over_hosts(q, layout)
    per_host = sum(card.host == 0 for card in q.cards)
    size = len(layout.cards)
    copies = [layout.cards] if layout.replicas == 1 else [tuple(range(i, i + size)) for i in range(0, per_host - size + 1, size)]
    copies = copies[: layout.replicas]
    servers = [_server(q, layout, devices(q.cards, cards), PORT + i) for i, cards in enumerate(copies)]
    hosts = -(-layout.replicas // len(copies))
    return [f"# run on each of {hosts} hosts, behind a load balancer", *servers] if hosts > 1 else servers


def with_layers(q: ServeQuestion, layout: ServeLayout) -> ServeLayout:
    """Return a layout whose shares are the layers of each card, so that -ts fixes the split and not the memory that is free."""
    if layout.split != "layer" or layout.shared or len(layout.cards) == 1:
        return layout
    owners = layer_devices(len(q.model.layers), layout.shares, layout.gpu_layers)
    return replace(layout, shares=tuple(float(owners.count(i)) for i in range(len(layout.cards))), shared="as planned")


def _server(q: ServeQuestion, layout: ServeLayout, names: Sequence[str], port: int, rpc: Sequence[str] = ()) -> str:
    return shlex.join(["llama-server", *forms.flag_words(_settings(q, layout, names, port, rpc))])


def _settings(
    q: ServeQuestion, layout: ServeLayout, names: Sequence[str], port: int, rpc: Sequence[str] = ()
) -> list[tuple[str, object]]:
    """Return the options of one server and their values."""
    shares = layout.shares[1:] if _on_cpus(q, layout) else layout.shares
    facts = setup.values(q, layout)
    users = int(str(facts["copy_users"]))
    words: dict[str, Value] = {
        "model": file_of(q), "gpu_layers": gpu_layers(q, layout), "all_slots": q.work.context * users, "copy_users": users,
        "key_type": q.work.kv, "value_type": q.work.kv, "flash": flash_of(q),
    }  # fmt: skip
    adapters = ",".join(f"path/to/adapter-{number + 1}.gguf" for number in range(q.work.adapters))
    words |= {"adapter_files": adapters} if adapters else {}
    words |= {"draft": q.load.draft, "draft_model": f"path/to/draft-of-{file_of(q)}"} if q.load.draft else {}
    words |= {"rpc": ",".join(rpc)} if rpc else {}
    words |= {"cards_used": ",".join(names)} if names else {}
    words |= {"split": layout.split} if len(shares) > 1 else {}
    words |= {"shares": tuple(str(share) for share in shares)} if layout.shared and len(shares) > 1 else {}
    words |= {"port": port} if layout.replicas > 1 else {}
    return PROGRAM.settings(words | _experts(q, layout))


def _on_cpus(q: ServeQuestion, layout: ServeLayout) -> bool:
    """Return whether the layout only uses CPUs."""
    return all(q.cards[i].chip.kind == "cpu" for i in layout.cards)


def gpu_layers(q: ServeQuestion, layout: ServeLayout) -> int:
    """Return -ngl: layers that are not on the server's CPU but on cards, or on the CPUs of other hosts."""
    layers = len(q.model.layers)
    if _on_cpus(q, layout):
        return layers + 1 - layer_devices(layers, layout.shares).count(0) if layout.hosts > 1 else 0
    return layers + 1 if layout.gpu_layers is None else layout.gpu_layers


def _experts(q: ServeQuestion, layout: ServeLayout) -> dict[str, Value]:
    """Return what keeps experts in host memory."""
    if not layout.expert_layers:
        return {}
    if layout.expert_layers == len(q.model.layers):
        return {"override": "exps=CPU"}
    return {"expert_layers": layout.expert_layers}


def _over_hosts(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the RPC servers of the other hosts, then the server. llama.cpp lists RPC devices before its own, so the last host runs the
    server. The server's own CPU is not in that list: it keeps the first layers, which -ngl does not move. So where all hosts are CPUs, the
    first one runs the server. An RPC server is bound to the private address of its host, never to all addresses: llama.cpp's README calls
    RPC insecure. Every RPC server has its own port, so that a layout over hosts can be tried on one machine."""
    layout = with_layers(q, layout) if _on_cpus(q, layout) else layout
    hosts = sorted({q.cards[i].host for i in layout.cards})
    own = q.cards[layout.cards[0 if _on_cpus(q, layout) else -1]].host
    rpc_servers: list[str] = []
    rpc: list[str] = []
    for port, card in enumerate((card for card in layout.cards if q.cards[card].host != own), start=RPC_PORT):
        host = q.cards[card].host
        number = hosts.index(host) + 1
        inside = [i for i in layout.cards if q.cards[i].host == host].index(card)
        rpc_servers.append(f"{_visible(q.cards[card], inside)}ggml-rpc-server -H host{number} -p {port}  # on host {number}")
        rpc.append(f"host{number}:{port}")
    return [*rpc_servers, f"{_server(q, layout, (), PORT, rpc)}  # on host {hosts.index(own) + 1}"]


def _visible(card: Card, number: int) -> str:
    """Return the environment variable that limits a program to one card; '' for a CPU."""
    if card.chip.kind == "cpu":
        return ""
    return f"{'HIP' if card.chip.vendor == 'AMD' else 'CUDA'}_VISIBLE_DEVICES={number} "


def devices(cards: Sequence[Card], chosen: Sequence[int]) -> list[str]:
    """Return the names of the chosen cards, such as CUDA0, where the host has more cards than are used."""
    host = cards[chosen[0]].host
    own = [i for i, card in enumerate(cards) if card.host == host]
    backend = BACKENDS.get(cards[chosen[0]].chip.vendor, "")
    if len(chosen) == len(own) or not backend or cards[chosen[0]].chip.kind == "cpu":
        return []
    return [f"{backend}{own.index(i)}" for i in chosen]


def flash_of(q: ServeQuestion) -> bool:
    """Return whether flash attention is on."""
    return q.runtime.flash if q.work.flash is None else q.work.flash


def file_of(q: ServeQuestion) -> str:
    """Return the given .gguf file, or the usual name of one in this format."""
    if q.model.tensors:
        return q.model.source
    name = q.weights.format
    return f"{q.model.name.rpartition('/')[2]}-{name if FORMATS[name].gguf else name.upper()}.gguf"


# The program in both directions.


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in llama.cpp's words, as far as they do not name cards."""
    users = given.whole("copy_users")
    words: dict[str, Value] = {"copy_users": users, "all_slots": given.whole("context") * users}
    words["flash"] = bool(given.values["flash"])
    return words | {"split": given.text("split"), "key_type": given.text("kv"), "value_type": given.text("kv")}


def meaning(facts: Run) -> Run:
    """Return the facts that llama.cpp's options mean: -c counts the tokens of all slots together."""
    slots, users = facts.value("all_slots"), facts.whole("copy_users", 1)
    more = [facts.meaning("kv", str(facts.value("key_type")), "key_type")] if facts.value("key_type") is not None else []
    if isinstance(slots, int) and slots > 0 and users > 0:
        more.append(facts.derived("context", slots // users, f"-c {slots} over {users} slots", "all_slots"))
    more += [facts.derived(name, users, "its slots", "copy_users") for name in ("users", "copy_limit")]
    return facts.adding(more)


def write(given: Setup) -> Written:
    """Return the command, and a preset with which llama-server loads the model on request."""
    q, layout = given.plan.q, given.plan.layout
    settings = _settings(q, layout, devices(q.cards, layout.cards), PORT)
    section = given.text("model").rpartition("/")[2].removesuffix(".gguf")
    preset = [
        "version = 1", "", f"[{forms.one_line(section)}]",
        *(f"{LONG_OF_SHORT[key]} = {forms.one_line(str(value))}" for key, value in settings), "load-on-startup = true",
    ]  # fmt: skip
    note = f"Another way to start it, with other models beside it: llama-server --models-preset {PRESET}"
    text = forms.comment([*given.header, note], ";") + "\n".join(preset) + "\n"
    return Written({PRESET: text}, ("llama-server", *forms.flag_words(settings)), starter="once")


def refuse(given: Setup) -> Iterable[Refusal]:
    """Return what one llama-server cannot do with a plan."""
    if given.whole("nodes") > 1:
        yield Refusal(f"{TITLE} reaches other hosts through RPC servers: 'meshwise serve' prints the command of each host", {})
    if given.whole("replicas") > 1:
        yield Refusal(f"one {TITLE} server is one replica: plan with --fix replicas=1, and start it several times", {})


PROGRAM = serving(
    "llama.cpp", TITLE, VERSION, engine="llama.cpp", splits=("layer", "row", "tensor", "none"), keys=KEYS, write=write,
    commands=COMMANDS, refuse=refuse, wording=wording, meaning=meaning,
)  # fmt: skip
