"""TensorRT-LLM: `trtllm-serve` and the YAML of its LLM arguments."""

import shlex
from collections.abc import Iterable, Sequence

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs import forms
from meshwise.programs.program import Refusal, Setup, Written
from meshwise.programs.serve import hosts, lengths, pools, setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.source import Setting
from meshwise.programs.table import table
from meshwise.runs.run import Run, Value

TITLE, VERSION = "TensorRT-LLM", "1.3"
FILE, FRONT = "llm.yaml", "disaggregated.yaml"
COMMANDS = ("trtllm-serve", "trtllm-bench", "dynamo.trtllm")
FIRST_PORT = 8000  # port of the first server

CACHE_SHARE = "kv_cache_config.free_gpu_memory_fraction"
OTHER_OWN = {"moe_expert_parallel_size", "enable_attention_dp", "max_num_tokens", "cuda_graph_config.max_batch_size"}
OWN_KEYS = {CACHE_SHARE, *OTHER_OWN}

KEYS = table("tensorrt-llm", length=lengths.LENGTH)


def wording(given: Setup) -> dict[str, Value]:
    """Return a layout in TensorRT-LLM's words; the checkpoint says the weights' format, and limits are per device if attention is apart."""
    words = dict(given.values)
    if given.values.get("attention_dp"):
        words |= {name: -(-given.whole(name) // given.whole("tp")) for name in ("copy_users", "batched_tokens")}
    words |= {"kv_type": given.text("kv")} if given.text("kv") in ("fp8", "int8") else {}
    if "draft" not in given.values:
        return words
    model = setup.draft_model(given)
    if model:
        return words | {"algorithm": "Eagle3", "draft_model": model}
    del words["draft"]
    return words | {"algorithm": "MTP", "predicted": given.whole("draft")}


def meaning(facts: Run) -> Run:
    """Return the facts that TensorRT-LLM's words mean. One server is one replica."""
    more = [*lengths.cache_type(facts)]
    more += [facts.meaning("draft", facts.whole("predicted"), "predicted")] if facts.whole("predicted") else []
    if facts.value("attention_dp") is True and facts.value("tp") is not None:
        more.append(facts.derived("ranks", facts.whole("tp", 1), "attention is data parallel", "attention_dp"))
    facts = facts.adding(more)
    return facts.adding(lengths.totals(facts))


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the line that writes the YAML, and the server of each replica; over several hosts under MPI, as its documentation does."""
    if layout.prefill:
        return _pool_lines(q, layout)
    given = setup.of_layout(q, layout)
    write_file = _printed(PROGRAM.settings(wording(given)), FILE)
    words = ["trtllm-serve", given.model, "--extra_llm_api_options", FILE]
    if layout.hosts > 1:
        each = len(layout.cards) // layout.hosts
        names = ",".join(f"host{number + 1}:{each}" for number in range(layout.hosts))
        start = ["mpirun", "-n", str(len(layout.cards)), "-H", names, "trtllm-llmapi-launch", *words]
        return [f"{write_file}  # on every host", *hosts.repeated(start, layout.replicas)]
    return [write_file, *hosts.one_per_copy(q, layout, words, FIRST_PORT)]


def _printed(settings: Iterable[tuple[str, object]], file: str) -> str:
    """Return the shell line that writes settings to a YAML file."""
    return forms.printed(forms.yaml_text(settings).splitlines(), file)


def _pool_lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the YAML and the servers of both pools, and the server in front of them with its own YAML."""
    found = list(pools.servers(q, layout))
    files: list[str] = []
    for role, given in pools.setups(q, layout).items():
        words = wording(given) | {"transfer": "NIXL"} | ({"unmixed": True} if role == "prefill" else {})
        files.append(_printed(PROGRAM.settings(words), f"{role}.yaml"))
    urls = {role: [f"{s.name}:{FIRST_PORT + 1 + s.number}" for s in found if s.role == role] for role in ("prefill", "decode")}
    names = {"context_servers": urls["prefill"], "generation_servers": urls["decode"]}
    front = [("hostname", "0.0.0.0"), ("port", FIRST_PORT), ("backend", "pytorch")]
    for name, ours in names.items():
        front += [(f"{name}.num_instances", len(ours)), (f"{name}.urls", ours)]

    def one(server: pools.Server) -> str:
        words = ["trtllm-serve", server.given.model, "--extra_llm_api_options", f"{server.role}.yaml"]
        return shlex.join([*words, "--port", str(FIRST_PORT + 1 + server.number)])

    return [*files, _printed(front, FRONT), *pools.commands(q, found, one, f"trtllm-serve disaggregated -c {FRONT}")]


def write(given: Setup) -> Written:
    """Return the YAML and the command."""
    text = forms.yaml_text(PROGRAM.settings(wording(given)), given.header)
    return Written({FILE: text}, ("trtllm-serve", given.model, "--extra_llm_api_options", FILE), starter="once")


def refuse(given: Setup) -> Iterable[Refusal]:
    """Return what TensorRT-LLM cannot do with a plan."""
    if given.whole("nodes") > 1:
        yield Refusal(f"{TITLE} starts over several hosts with mpirun or srun --mpi=pmix, which no launcher here writes", {})
    if given.whole("replicas") > 1:
        yield Refusal(f"one {TITLE} server is one replica: plan with --fix replicas=1, and start it several times", {})


def in_file(settings: Sequence[Setting]) -> int:
    """Return how surely a file is TensorRT-LLM's."""
    keys = {setting.key for setting in settings}
    return 4 * len(keys & OWN_KEYS) if "tensor_parallel_size" in keys or len(keys & OWN_KEYS) > 1 else 0


PROGRAM = serving(
    "tensorrt-llm", TITLE, VERSION, engine="tensorrt-llm", form="yaml", keys=KEYS, write=write, commands=COMMANDS,
    refuse=refuse, wording=wording, meaning=meaning, in_file=in_file,
    refers=dict.fromkeys(("--extra-llm-api-options", "--extra-engine-args", "--config"), "tensorrt-llm"),
)  # fmt: skip
