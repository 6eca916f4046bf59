"""SGLang: `python -m sglang.launch_server` (its server arguments)."""

from meshwise.export import forms
from meshwise.export.facts import Facts, Value
from meshwise.export.kinds import INT, NUMBER, TEXT, flag
from meshwise.export.program import Key, Setup, Written
from meshwise.export.serve import lengths
from meshwise.export.serve.declared import serving

TITLE, VERSION = "SGLang", "0.5.23"
COMMANDS = ("sglang.launch_server", "sglang", "dynamo.sglang")
NAMED = ("awq", "gptq", "fp8")
DTYPES = {"fp16": "half", "fp32": "float32"}

KEYS = (
    Key("model", "--model-path", TEXT, also=("--model",), write="always"),
    Key("tp", "--tensor-parallel-size", INT, also=("--tp-size", "--tp"), default=1, write="always"),
    Key("pp", "--pipeline-parallel-size", INT, also=("--pp-size", "--pp"), default=1),
    Key("copies", "--data-parallel-size", INT, also=("--dp-size", "--dp"), default=1),
    Key("ep", "--expert-parallel-size", INT, also=("--ep-size", "--ep"), default=1),
    Key("attention_dp", "--enable-dp-attention", flag(), default=False),
    Key("context", "--context-length", lengths.LENGTH, write="always"),
    Key("copy_users", "--max-running-requests", INT, write="always"),
    Key("batched_tokens", "--chunked-prefill-size", INT),
    Key("dtype", "--dtype", TEXT),
    Key("quantization", "--quantization", TEXT),
    Key("kv_type", "--kv-cache-dtype", TEXT, default="auto"),
    Key("memory_share", "--mem-fraction-static", NUMBER),
    Key("offload_bytes", "--cpu-offload-gb", NUMBER, write="never"),
    Key("engine_nodes", "--nnodes", INT, default=1, write="never"),
)


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in SGLang's words. Its cache type has no plain 'fp8'."""
    fmt = given.text("weights")
    words = {name: value for name, value in given.values.items() if name != "ep"} | {"model": given.model}
    words |= {"dtype": DTYPES[fmt]} if fmt in DTYPES else {}
    words |= {"quantization": fmt} if fmt in NAMED else {}
    return words | ({"kv_type": "fp8_e4m3"} if given.text("kv") == "fp8" else {})


def meaning(facts: Facts) -> Facts:
    """Return the facts that SGLang's words mean: with data-parallel attention, --dp cuts the tensor-parallel group instead of copying
    it."""
    inside = facts.value("attention_dp") is True
    copies = 1 if inside else facts.whole("copies", 1)
    more = [facts.meaning("replicas", copies, "copies")] if "copies" in facts else []
    facts = facts.adding([*more, *lengths.cache_type(facts), *lengths.weight_format(facts)])
    facts = facts.adding(lengths.totals(facts))
    nodes = facts.get("engine_nodes")
    return facts.adding(
        [facts.meaning("nodes", nodes.value, "engine_nodes")] if nodes is not None and nodes.value is not None else []
    )


def write(given: Setup) -> Written:
    """Return the command of one host."""
    words = ["python", "-m", "sglang.launch_server", *forms.flag_words(PROGRAM.settings(wording(given)))]
    hosts = given.whole("nodes")
    if hosts > 1:
        words += ["--nnodes", str(hosts), "--node-rank", "$NODE_RANK", "--dist-init-addr", "$MASTER_ADDR:$MASTER_PORT"]
    return Written({}, tuple(words), starter="node")


PROGRAM = serving("sglang", TITLE, VERSION, keys=KEYS, write=write, commands=COMMANDS, wording=wording, meaning=meaning)
