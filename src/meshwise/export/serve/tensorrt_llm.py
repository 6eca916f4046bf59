"""TensorRT-LLM: `trtllm-serve` and the YAML of its LLM arguments."""

from collections.abc import Iterable, Sequence

from meshwise.export import forms
from meshwise.export.facts import Facts, Value
from meshwise.export.kinds import BOOL, INT, NUMBER, TEXT
from meshwise.export.program import Key, Refusal, Setup, Written
from meshwise.export.read.flags import POSITIONAL
from meshwise.export.serve import lengths
from meshwise.export.serve.declared import serving
from meshwise.export.source import Setting

TITLE, VERSION = "TensorRT-LLM", "1.3"
FILE = "llm.yaml"
COMMANDS = ("trtllm-serve", "trtllm-bench", "dynamo.trtllm")

OWN = {
    "kv_cache_config.free_gpu_memory_fraction",
    "moe_expert_parallel_size",
    "enable_attention_dp",
    "max_num_tokens",
    "cuda_graph_config.max_batch_size",
}

KEYS = (
    Key("model", POSITIONAL, TEXT, also=("model", "--model", "--model-path"), write="never"),
    Key("tp", "tensor_parallel_size", INT, also=("--tp_size", "--tp", "--tensor-parallel-size"), default=1, write="always"),
    Key("pp", "pipeline_parallel_size", INT, also=("--pp_size", "--pp", "--pipeline-parallel-size"), default=1),
    Key("ep", "moe_expert_parallel_size", INT, also=("--ep_size", "--ep", "--expert-parallel-size")),
    Key("attention_dp", "enable_attention_dp", BOOL, default=False),
    Key("context", "max_seq_len", lengths.LENGTH, also=("--max_seq_len",), write="always"),
    Key("copy_users", "max_batch_size", INT, also=("--max_batch_size",), write="always"),
    Key("batched_tokens", "max_num_tokens", INT, also=("--max_num_tokens",)),
    Key("kv_type", "kv_cache_config.dtype", TEXT, default="auto"),
    Key(
        "cache_share",
        "kv_cache_config.free_gpu_memory_fraction",
        NUMBER,
        also=("--kv_cache_free_gpu_memory_fraction",),
        default=0.9,
    ),
)


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in TensorRT-LLM's words. It reads the format of the weights from the checkpoint."""
    words = {name: value for name, value in given.values.items() if name != "ep"}
    return words | ({"kv_type": "fp8"} if given.text("kv") == "fp8" else {})


def meaning(facts: Facts) -> Facts:
    """Return the facts that TensorRT-LLM's words mean. One server is one copy."""
    facts = facts.adding(lengths.cache_type(facts))
    return facts.adding(lengths.totals(facts))


def write(given: Setup) -> Written:
    """Return the YAML and the command."""
    text = forms.yaml_text(PROGRAM.settings(wording(given)), given.header)
    return Written({FILE: text}, ("trtllm-serve", given.model, "--extra_llm_api_options", FILE), starter="once")


def refuse(given: Setup) -> Iterable[Refusal]:
    """Return what TensorRT-LLM cannot do with a plan."""
    if given.whole("nodes") > 1:
        yield Refusal(f"{TITLE} starts over several hosts with mpirun or srun --mpi=pmix, which no launcher here writes", {})
    if given.whole("replicas") > 1:
        yield Refusal(f"one {TITLE} server is one copy: plan with --fix replicas=1, and start it several times", {})


def in_file(settings: Sequence[Setting]) -> int:
    """Return how surely a file is TensorRT-LLM's."""
    keys = {setting.key for setting in settings}
    return 4 * len(keys & OWN) if "tensor_parallel_size" in keys or len(keys & OWN) > 1 else 0


PROGRAM = serving(
    "tensorrt-llm",
    TITLE,
    VERSION,
    form="yaml",
    keys=KEYS,
    write=write,
    commands=COMMANDS,
    refuse=refuse,
    wording=wording,
    meaning=meaning,
    in_file=in_file,
    refers={"--extra-llm-api-options": "tensorrt-llm", "--config": "tensorrt-llm"},
)
