"""SGLang: `python -m sglang.launch_server` (its server arguments)."""

import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs import forms
from meshwise.programs.program import Setup, Written
from meshwise.programs.serve import hosts, lengths, pools, setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "SGLang", "0.5.23"
COMMANDS = ("sglang.launch_server", "sglang", "dynamo.sglang", "sglang_router.launch_server")
NAMED = ("awq", "gptq", "fp8")
DTYPES = {"fp16": "half", "fp32": "float32"}
PORT, SERVED, BOOTSTRAP = 20000, 30000, 8998
"""Ports: of the first host, where the others join; of the first server; and of the first one that hands caches over."""

KEYS = table("sglang", length=lengths.LENGTH)


def wording(given: Setup) -> dict[str, Value]:
    """Return a layout in SGLang's words: no plain 'fp8' cache; with data-parallel attention --dp counts the ranks of a replica."""
    fmt = given.text("weights")
    words = dict(given.values) | {"model": given.model}
    if float(str(words["memory_share"])) >= 1:  # its own rule decides, which the plan follows
        del words["memory_share"]
    words |= {"dtype": DTYPES[fmt]} if fmt in DTYPES else {}
    words |= {"quantization": fmt} if fmt in NAMED and not given.values.get("published") else {}
    words |= {"lora": True} if "adapters" in words else {}
    words |= {"copies": given.whole("tp")} if given.values.get("attention_dp") else {}
    if "draft" in given.values:
        model, drafted = setup.draft_model(given), given.whole("draft")
        words |= {"algorithm": "EAGLE3" if model else "EAGLE", "draft_width": 1, "verified": drafted + 1}
        words |= {"draft_model": model} if model else {}
    return words | ({"kv_type": "fp8_e4m3"} if given.text("kv") == "fp8" else {})


def meaning(facts: Run) -> Run:
    """Return what SGLang's words mean: with data-parallel attention, --dp cuts the tensor-parallel group instead of copying it."""
    inside = facts.value("attention_dp") is True
    copies = 1 if inside else facts.whole("copies", 1)
    more = [facts.meaning("replicas", copies, "copies")] if "copies" in facts else []
    facts = facts.adding([*more, *_chunks(facts), *lengths.cache_type(facts), *lengths.weight_format(facts)])
    facts = facts.adding(lengths.totals(facts))
    return facts.adding(lengths.hosts(facts))


def _chunks(facts: Run) -> list[Stated]:
    """Return an unknown limit if chunking is off (-1 tokens)."""
    tokens = facts.value("batched_tokens")
    whole = isinstance(tokens, int) and tokens < 1
    return [facts.derived("batched_tokens", None, "prompts are not cut into chunks", "batched_tokens")] if whole else []


def command(given: Setup) -> list[str]:
    """Return the words that start SGLang with a layout."""
    return ["python", "-m", "sglang.launch_server", *forms.flag_words(PROGRAM.settings(wording(given)))]


def over_hosts(number: int, rank: str, master: str) -> list[str]:
    """Return SGLang's flags for one of several hosts."""
    return ["--nnodes", str(number), "--node-rank", rank, "--dist-init-addr", master]


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the command, once on each host of a layout that spans several."""
    if layout.prefill:
        return _pool_lines(q, layout)
    given = setup.of_layout(q, layout)

    def joins(rank: int) -> list[str]:
        return over_hosts(layout.hosts, str(rank), f"host1:{PORT}")

    return hosts.started(q, layout, command(given), joins, given.whole("copies"), SERVED)


def _pool_lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the servers of both pools, and the router in front of them."""
    found = list(pools.servers(q, layout))

    def one(server: pools.Server) -> str:
        apart = server.given.values.get("attention_dp")
        words = wording(server.given) | ({} if apart else {"copies": 1}) | {"pool": server.role, "transfer": "nixl"}
        ports = ["--port", str(SERVED + server.number), "--disaggregation-bootstrap-port", str(BOOTSTRAP + server.number)]
        return shlex.join(["python", "-m", "sglang.launch_server", *forms.flag_words(PROGRAM.settings(words)), *ports])

    prompts = [f"--prefill http://{s.name}:{SERVED + s.number} {BOOTSTRAP + s.number}" for s in found if s.role == "prefill"]
    outputs = [f"--decode http://{s.name}:{SERVED + s.number}" for s in found if s.role == "decode"]
    router = f"python -m sglang_router.launch_router --pd-disaggregation {' '.join(prompts)} {' '.join(outputs)}"
    return pools.commands(q, found, one, router)


def write(given: Setup) -> Written:
    """Return the command of one host."""
    words = command(given)
    if given.whole("nodes") > 1:
        words += over_hosts(given.whole("nodes"), "$NODE_RANK", "$MASTER_ADDR:$MASTER_PORT")
    return Written({}, tuple(words), starter="node")


PROGRAM = serving(
    "sglang", TITLE, VERSION, engine="sglang", keys=KEYS, write=write, commands=COMMANDS, wording=wording, meaning=meaning
)
