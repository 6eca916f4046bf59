"""vLLM: `vllm serve` (its docs, engine arguments; parallelism and scaling)."""

import json
import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs import forms
from meshwise.programs.program import Setup, Written
from meshwise.programs.serve import hosts, lengths, pools, setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.table import table
from meshwise.runs.run import Run, Value

TITLE, VERSION = "vLLM", "0.32"
NAMED = {"awq": "awq", "gptq": "gptq", "fp8": "fp8"}  # formats passed to --quantization; vLLM reads others from the checkpoint
DTYPES = {"fp16": "half", "fp32": "float"}
CACHE_TYPES = {"fp8": "fp8", "int8": "int8_per_token_head"}  # types of the KV cache; 16 bits are its own choice
PORT, SERVED = 29501, 8000  # ports: of the first host, where the others join, and of the first server
OTHER_HOSTS_FLAGS = ("--headless",)  # flags of all hosts but the first: they serve no requests themselves
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
"""The variable with the port at which a server tells others where its cache lies; every server of a host has its own."""
COMMANDS = ("vllm", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "dynamo.vllm")

KEYS = table("vllm", length=lengths.LENGTH)


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in vLLM's words."""
    fmt = given.text("weights")
    words = {**given.values, "tensor": given.whole("tp")}
    words |= {"dtype": DTYPES[fmt]} if fmt in DTYPES else {}
    words |= {"quantization": NAMED[fmt]} if fmt in NAMED and not given.values.get("published") else {}
    words |= {"kv_type": CACHE_TYPES[given.text("kv")]} if given.text("kv") in CACHE_TYPES else {}
    words |= {"lora": True} if "adapters" in words else {}
    words |= {"speculation": _speculation(given)} if "draft" in given.values else {}
    return words | (_apart(given) if given.values.get("attention_dp") else {})


def _apart(given: Setup) -> dict[str, Value]:
    """Return the words of data-parallel attention: the ranks share the experts, and the limits are of one rank."""
    ranks = given.whole("tp")
    limits = {name: -(-given.whole(name) // ranks) for name in ("copy_users", "batched_tokens")}
    return {"tensor": 1, "copies": ranks, "expert_parallel": True, **limits}


def _speculation(given: Setup) -> str:
    """Return the JSON of --speculative-config."""
    config: dict[str, object] = {"method": given.text("draft_method"), "num_speculative_tokens": given.whole("draft")}
    model = setup.draft_model(given)
    return json.dumps(config | ({"model": model} if model else {}))


def meaning(facts: Run) -> Run:
    """Return the facts that vLLM's words mean. With expert parallelism, data-parallel ranks share the experts and are one replica."""
    copies, tp = facts.whole("copies", 1), facts.whole("tensor", 1)
    more = [*lengths.cache_type(facts), *lengths.weight_format(facts)]
    if "speculation" in facts and "draft" not in facts:
        more.append(facts.derived("draft", None, "no JSON with num_speculative_tokens", "speculation"))
    local = facts.whole("local_copies")
    if local and copies > local and not copies % local and facts.value("tensor") is not None:
        note = f"{local} of {copies} data-parallel ranks on each node"
        more += [facts.derived("nodes", copies // local, note, "local_copies")]
        more += [facts.derived("devices_per_node", local * tp, note, "local_copies")]
    ranks = copies if facts.value("expert_parallel") is True else 1
    if facts.value("expert_parallel") is True:
        more.append(facts.derived("ep", tp * copies, "tp x data parallel", "expert_parallel"))
    if ranks > 1:
        note = f"{copies} data-parallel ranks of tp {tp} share the experts"
        more += [facts.derived("tp", tp * copies, note, "tensor"), facts.derived("replicas", 1, note, "copies")]
        more += [facts.derived("attention_dp", True, note, "expert_parallel"), facts.derived("ranks", ranks, note, "copies")]
    else:
        more += [facts.meaning("replicas", copies, "copies")] if "copies" in facts else []
        more += [facts.meaning("tp", facts.value("tensor"), "tensor")] if "tensor" in facts else []
    facts = facts.adding(more)
    facts = facts.adding(lengths.totals(facts))
    return facts.adding(lengths.hosts(facts))


def command(given: Setup) -> list[str]:
    """Return the words of `vllm serve` for a layout."""
    return ["vllm", "serve", given.model, *forms.flag_words(PROGRAM.settings(wording(given)))]


def over_hosts(hosts: int, rank: str, master: str, port: str) -> list[str]:
    """Return vLLM's flags for one of several hosts."""
    return ["--nnodes", str(hosts), "--node-rank", rank, "--master-addr", master, "--master-port", port]


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return `vllm serve`, once on each host of a layout that spans several."""
    if layout.prefill:
        return _pool_lines(q, layout)
    given = setup.of_layout(q, layout)

    def joins(rank: int) -> list[str]:
        return [*_on_host(given, str(rank), "host1", str(PORT)), *(OTHER_HOSTS_FLAGS if rank else ())]

    return hosts.started(q, layout, command(given), joins, given.whole("copies"), SERVED)


def _pool_lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the servers of both pools, which move caches with NIXL, and the router in front of them."""
    found = list(pools.servers(q, layout))

    def one(server: pools.Server) -> str:
        words = {**wording(server.given), "copies": 1} | (_apart(server.given) if server.given.values.get("attention_dp") else {})
        flags = forms.flag_words(PROGRAM.settings(words | {"transfer": json.dumps(transfer(server.role))}))
        return shlex.join(["vllm", "serve", server.given.model, *flags, "--port", str(SERVED + server.number)])

    sides = [[f"--{role} http://{s.name}:{SERVED + s.number}" for s in found if s.role == role] for role in ("prefill", "decode")]
    router = f"vllm-router --vllm-pd-disaggregation {' '.join(sides[0])} {' '.join(sides[1])}"
    return pools.commands(q, found, one, router, f"{SIDE_CHANNEL}=56" + "{number:02d} ")


def transfer(role: pools.Role) -> dict[str, str]:
    """Return the configuration of the transfer of caches for a server of one pool."""
    return {"kv_connector": "NixlConnector", "kv_role": "kv_producer" if role == "prefill" else "kv_consumer"}


def _on_host(given: Setup, rank: str, master: str, port: str) -> list[str]:
    """Return vLLM's flags for one of several hosts: of one engine, or of some of the data-parallel ranks that share the experts."""
    number = given.whole("nodes")
    if not given.values.get("attention_dp"):
        return over_hosts(number, rank, master, port)
    local = given.whole("tp") // number
    first = str(int(rank) * local) if rank.isdecimal() else f"$(({rank} * {local}))"
    words = ["--data-parallel-size-local", str(local), "--data-parallel-address", master, "--data-parallel-rpc-port", port]
    return [*words, "--data-parallel-start-rank", first]


def write(given: Setup) -> Written:
    """Return the command of one host; over several hosts it is started on each, and joins the first."""
    words = command(given)
    if given.whole("nodes") == 1:
        return Written({}, tuple(words), starter="node")
    more = _on_host(given, "$NODE_RANK", "$MASTER_ADDR", "$MASTER_PORT")
    return Written({}, (*words, *more), starter="node", others=OTHER_HOSTS_FLAGS)


PROGRAM = serving(
    "vllm", TITLE, VERSION, engine="vllm", keys=KEYS, write=write, commands=COMMANDS, wording=wording, meaning=meaning,
    refers={"--config": "vllm"},
)  # fmt: skip
