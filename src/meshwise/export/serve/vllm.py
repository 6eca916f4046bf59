"""vLLM: `vllm serve` (its docs, engine arguments; parallelism and scaling)."""

import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.export import forms
from meshwise.export.facts import Facts, Value
from meshwise.export.kinds import INT, NUMBER, TEXT, flag
from meshwise.export.program import Key, Setup, Written
from meshwise.export.read.flags import POSITIONAL
from meshwise.export.serve import lengths, setup
from meshwise.export.serve.declared import serving

TITLE, VERSION = "vLLM", "0.32"
NAMED = {"awq": "awq", "gptq": "gptq", "fp8": "fp8"}
"""Formats passed to --quantization; vLLM reads others from the checkpoint."""
DTYPES = {"fp16": "half", "fp32": "float"}
PORT = 29501
"""Port of the first host, where the others join."""
OTHERS = ("--headless",)
"""What all hosts but the first add: they serve no requests themselves."""
COMMANDS = ("vllm", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main", "dynamo.vllm")

KEYS = (
    Key("model", POSITIONAL, TEXT, also=("--model",), write="never"),
    Key("tp", "--tensor-parallel-size", INT, also=("-tp",), default=1, write="always"),
    Key("pp", "--pipeline-parallel-size", INT, also=("-pp",), default=1),
    Key("copies", "--data-parallel-size", INT, also=("-dp",), default=1),
    Key("local_copies", "--data-parallel-size-local", INT, also=("-dpl",), write="never"),
    Key("context", "--max-model-len", lengths.LENGTH, write="always"),
    Key("copy_users", "--max-num-seqs", INT, write="always"),
    Key("batched_tokens", "--max-num-batched-tokens", lengths.LENGTH),
    Key("dtype", "--dtype", TEXT),
    Key("quantization", "--quantization", TEXT, also=("-q",)),
    Key("kv_type", "--kv-cache-dtype", TEXT, default="auto"),
    Key("memory_share", "--gpu-memory-utilization", NUMBER, also=("--device-memory-utilization",), default=0.92, write="always"),
    Key("expert_parallel", "--enable-expert-parallel", flag(), also=("-ep",), default=False),
    Key("cp", "--decode-context-parallel-size", INT, also=("-dcp",), default=1),
    Key("offload_bytes", "--cpu-offload-gb", NUMBER, write="never"),
    Key("engine_nodes", "--nnodes", INT, write="never"),
)


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in vLLM's words."""
    fmt = given.text("weights")
    words = dict(given.values)
    words |= {"dtype": DTYPES[fmt]} if fmt in DTYPES else {}
    words |= {"quantization": NAMED[fmt]} if fmt in NAMED else {}
    return words | ({"kv_type": "fp8"} if given.text("kv") == "fp8" else {})


def meaning(facts: Facts) -> Facts:
    """Return the facts that vLLM's words mean."""
    copies = facts.whole("copies", 1)
    more = [facts.meaning("replicas", copies, "copies")] if "copies" in facts else []
    facts = facts.adding([*more, *lengths.cache_type(facts), *lengths.weight_format(facts)])
    facts = facts.adding(lengths.totals(facts))
    if facts.value("expert_parallel") is True:
        facts = facts.adding([facts.derived("ep", facts.whole("tp", 1) * copies, "tp x data parallel", "expert_parallel")])
    nodes = facts.get("engine_nodes")
    return facts.adding(
        [facts.meaning("nodes", nodes.value, "engine_nodes")] if nodes is not None and nodes.value is not None else []
    )


def command(given: Setup) -> list[str]:
    """Return the words of `vllm serve` for a layout."""
    return ["vllm", "serve", given.model, *forms.flag_words(PROGRAM.settings(wording(given)))]


def over_hosts(hosts: int, rank: str, master: str, port: str) -> list[str]:
    """Return vLLM's flags for one of several hosts."""
    return ["--nnodes", str(hosts), "--node-rank", rank, "--master-addr", master, "--master-port", port]


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return `vllm serve`, once on each host of a layout that spans several."""
    given = setup.of_layout(q, layout)
    words = command(given)
    if layout.hosts > 1:
        each = [
            [*words, *over_hosts(layout.hosts, str(rank), "host1", str(PORT)), *(OTHERS if rank else ())]
            for rank in range(layout.hosts)
        ]
        text = [f"{shlex.join(host)}  # on host {number}" for number, host in enumerate(each, start=1)]
        return [f"# run on each of {layout.replicas} groups of hosts", *text] if layout.replicas > 1 else text
    hosts = -(-layout.replicas // given.whole("copies"))
    return [*([f"# run on each of {hosts} hosts, behind a load balancer"] if hosts > 1 else []), shlex.join(words)]


def write(given: Setup) -> Written:
    """Return the command of one host; over several hosts it is started on each, and joins the first."""
    words = command(given)
    if given.whole("nodes") == 1:
        return Written({}, tuple(words), starter="node")
    return Written(
        {},
        (*words, *over_hosts(given.whole("nodes"), "$NODE_RANK", "$MASTER_ADDR", "$MASTER_PORT")),
        starter="node",
        others=OTHERS,
    )


PROGRAM = serving("vllm", TITLE, VERSION, keys=KEYS, write=write, commands=COMMANDS, wording=wording, meaning=meaning)
