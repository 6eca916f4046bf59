"""MaxText: 'key=value' words after its base.yml, or a YAML of one's own over it."""

import math
from collections.abc import Iterable, Iterator, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import BOOL, INT, NUMBER, TEXT, Kind, word
from meshwise.programs.program import Key, Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "MaxText", "0.2.5"
AXES = {"tp": "tensor", "cp": "context", "ep": "expert", "fsdp": "fsdp", "data": "data", "pp": "pipeline"}
"""Mesh axes from the inside out: each has a part inside a slice (ici) and one between slices (dcn)."""
POLICIES = word(
    {"none": "none", "minimal": "minimal", "full": "full", "save_qkv_proj": "save_qkv_proj", "save_out_proj": "save_out_proj"},
    {"minimal_flash": "minimal", "minimal_with_context": "minimal", "minimal_with_context_and_quantization": "minimal",
     "save_dot_except_mlp": "minimal", "save_dot_except_mlpwi": "minimal", "qkv_proj_offloaded": "save_qkv_proj", "custom": None,
     "minimal_offloaded": "minimal", "save_dot_with_context_except_mlp": "minimal"},
)  # fmt: skip
QUANTIZATION = word({"fp8": "fp8"}, {
    "": None, "int8": None, "nanoo_fp8": "fp8", "fp8_full": "fp8", "aqt_fp8": "fp8", "intmp": None,
    "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8",
})  # fmt: skip
DTYPES = word({"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"})
ATTENTION = word(
    {"xla": "flash", "cudnn": "cudnn_flash_te", "unfused": "dot_product"},
    {"cudnn_flash_jax": "cudnn", "autoselected": None, "paged": None},
)
VOCABULARY_TILES = 4
"""num_vocab_tiling of a chunked loss: it need not be larger for the logits to be small beside the layers."""
CAN = {"attention": ("xla", "cudnn", "unfused"), "gradients": ("bf16",)}
SIZE = Kind(lambda value: int(value), int, "a whole number, or -1 for the rest")

KEYS = (
    Key("model", "model_name", TEXT, write="never"),
    *(
        Key(f"{part}_{axis}", f"{part}_{name}_parallelism", SIZE, write="always", default=-1 if axis == rest else 1)
        for part, rest in (("ici", "fsdp"), ("dcn", "data"))
        for axis, name in AXES.items()
    ),
    Key("per_device", "per_device_batch_size", NUMBER, write="always", default=12.0),
    Key("accumulation_steps", "gradient_accumulation_steps", INT, default=1, write="always"),
    Key("pipeline_microbatches", "num_pipeline_microbatches", SIZE),
    Key("layers_per_chunk", "num_layers_per_pipeline_stage", INT),
    Key("seq", "max_target_length", INT, write="always", default=2048),
    Key("recompute", "remat_policy", POLICIES, default="full", write="always"),
    Key("optimizer_offload", "optimizer_memory_host_offload", BOOL, default=False),
    Key("parameter_offload", "parameter_memory_host_offload", BOOL, default=False),
    Key("dtype", "dtype", DTYPES, default="bf16"),
    Key("precision", "quantization", QUANTIZATION, write="never"),
    Key("quantization", "quantization", TEXT),
    Key("optimizer", "opt_type", word({"adamw": "adamw", "sgd": "sgd", "muon": "muon"}, {"adam_pax": "adamw"}), default="adamw"),
    Key("steps", "steps", INT),
    Key("hidden", "base_emb_dim", INT),
    Key("layers", "base_num_decoder_layers", INT),
    Key("ffn", "base_mlp_dim", INT),
    Key("heads", "base_num_query_heads", INT),
    Key("kv_heads", "base_num_kv_heads", INT),
    Key("head_dim", "head_dim", INT),
    Key("vocab", "vocab_size", INT),
    Key("attention", "attention", ATTENTION),
    Key("tiles", "num_vocab_tiling", INT, default=1),
    Key("gradients", "grad_dtype", word({"bf16": "bfloat16"}, {"float32": None})),
    Key("capacity", "capacity_factor", recipe.CAPACITY, write="never"),
    Key("save_every", "checkpoint_period", INT, write="never"),
    Key("seed", "data_shuffle_seed", INT, write="never"),
    Key("hardware", "hardware", TEXT, write="never"),
)
SHAPE = ("hidden", "layers", "ffn", "heads", "kv_heads", "head_dim", "vocab")
LIMITS: Limits = {
    "vpp": (1,), "schedule": ("1f1b",), "zero": (0, 3),
    "recompute": ("none", "minimal", "save_qkv_proj", "save_out_proj", "full"),
    "offload": ("none", "optimizer", "parameters"), "precision": ("bf16", "fp8"), "optimizer": ("adamw", "sgd", "muon"),
    "loss": ("", "chunked"), "compile": (False,),
}  # fmt: skip
NAMES = {
    "llama-2-7b": "llama2-7b", "llama-2-13b": "llama2-13b", "llama-2-70b": "llama2-70b", "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "llama-3-405b": "llama3.1-405b", "llama-3.1-8b": "llama3.1-8b", "llama-3.1-70b": "llama3.1-70b", "llama-3.1-405b": "llama3.1-405b",
    "llama-3.3-70b": "llama3.3-70b", "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b",
    "gemma-2b": "gemma-2b", "gemma-7b": "gemma-7b", "gemma-2-2b": "gemma2-2b", "gemma-2-9b": "gemma2-9b", "gemma-2-27b": "gemma2-27b",
    "gemma-3-4b": "gemma3-4b", "gemma-3-12b": "gemma3-12b", "gemma-3-27b": "gemma3-27b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b", "qwen3-14b": "qwen3-14b", "qwen3-32b": "qwen3-32b", "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b", "deepseek-v2-lite": "deepseek2-16b", "deepseek-v2": "deepseek2-236b",
    "deepseek-v3": "deepseek3-671b",
    "gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b", "llama-4-scout": "llama4-17b-16e", "llama-4-maverick": "llama4-17b-128e",
    "gpt3-175b": "gpt3-175b",
}  # fmt: skip
"""model_name by preset."""


def meaning(facts: Run) -> Run:
    """Add axes, which are products of a part inside a slice and one between slices, and the micro-batch."""
    sizes = {axis: _product(facts, axis) for axis in AXES}
    facts = facts.adding([_axis(facts, axis, sizes[axis]) for axis in ("tp", "cp", "ep", "pp")])
    facts = facts.adding(_data(facts, sizes))
    facts = facts.adding(_others(facts))
    if facts.whole("tiles", 1) > 1:
        facts = facts.adding([facts.meaning("loss", "chunked", "tiles")])
    if "precision" not in facts and facts.value("dtype") is not None:
        facts = facts.adding([facts.meaning("precision", str(facts.value("dtype")), "dtype")])
    model = facts.value("model")
    presets = {name: preset for preset, name in NAMES.items()}
    if isinstance(model, str) and model in presets:
        facts = facts.adding([facts.meaning("model", presets[model], "model")])
    elif model == "default":
        facts = facts.without("model")
    return facts


def _product(facts: Run, axis: str) -> int | None:
    inside, between = facts.value(f"ici_{axis}"), facts.value(f"dcn_{axis}")
    if not isinstance(inside, int) or not isinstance(between, int):
        return None
    return -1 if -1 in (inside, between) else inside * between


def _axis(facts: Run, axis: str, size: int | None) -> Stated:
    parts = sorted((f"ici_{axis}", f"dcn_{axis}"), key=lambda name: not facts.says(name))
    if size is None or size < 1:
        return facts.derived(axis, None, "one of its two sizes is -1 or not known", *parts)
    alone = not facts.says(parts[0]) or facts.whole(parts[1]) == 1
    return facts.meaning(axis, size, *parts) if alone else facts.derived(axis, size, "ici x dcn", *parts)


def _data(facts: Run, sizes: dict[str, int | None]) -> Iterator[Stated]:
    """Yield the data axes where both parts are numbers; -1 means the rest, which the devices tell."""
    fsdp, data, ep, cp = sizes["fsdp"], sizes["data"], sizes["ep"], sizes["cp"]
    if fsdp is not None and fsdp > 0 and ep is not None and ep > 0:
        yield facts.derived("dp_shard", fsdp * ep, "fsdp x expert axes", "ici_fsdp", "dcn_fsdp")
    if data is not None and data > 0:
        yield facts.derived("dp_replicate", data, "data axis", "dcn_data", "ici_data")
    if fsdp is not None:
        why = "weights are sharded over the fsdp, expert and context axes"
        yield facts.derived("zero", 0 if fsdp == ep == cp == 1 else 3, why, "ici_fsdp", "dcn_fsdp")


def _others(facts: Run) -> Iterator[Stated]:
    offload = "parameters" if facts.value("parameter_offload") else "optimizer" if facts.value("optimizer_offload") else "none"
    yield facts.meaning("offload", offload, "parameter_offload" if offload == "parameters" else "optimizer_offload")
    if facts.value("tp") is not None:
        yield facts.derived("sp", int(facts.whole("tp", 1) > 1), "always on with tp", "tp")
        yield facts.derived("etp", facts.whole("tp", 1), "experts are cut as other layers are", "tp")
    yield facts.derived("vpp", 1, "one chunk per stage", "pp")
    yield facts.derived("schedule", "1f1b", "its circular pipeline, predicted as 1f1b", "pp")
    each, pp = facts.value("per_device"), facts.whole("pp", 1)
    if isinstance(each, float) and facts.value("tp") is not None and facts.value("cp") is not None:
        sequences = each * facts.whole("tp", 1) * facts.whole("cp", 1) * pp
        count = facts.whole("pipeline_microbatches") if facts.whole("pipeline_microbatches") > 0 else pp
        micro = sequences / count if pp > 1 else sequences
        total = count * facts.whole("accumulation_steps", 1) if pp > 1 else facts.whole("accumulation_steps", 1)
        note = "per_device_batch_size x tp x cp x pp / micro-batches"
        yield facts.derived("mbs", round(micro) if micro >= 1 else None, note, "per_device")
        yield facts.derived("accumulation", total, "gradient accumulation x pipeline micro-batches", "accumulation_steps")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts in MaxText's words."""
    values: dict[str, Value] = dict(setup.values) | _mesh(setup)
    devices, acc, pp = setup.whole("devices"), setup.whole("accumulation"), setup.whole("pp")
    values["accumulation_steps"] = 1 if pp > 1 else acc
    values["per_device"] = setup.whole("batch") / devices / (1 if pp > 1 else acc)
    if pp > 1:
        values["pipeline_microbatches"] = acc
        values["layers_per_chunk"] = setup.whole("layers") // pp
    offload = setup.text("offload")
    values |= {"optimizer_offload": offload == "optimizer", "parameter_offload": offload == "parameters"}
    values |= {"quantization": "fp8"} if setup.text("precision") == "fp8" else {}
    values |= {"tiles": VOCABULARY_TILES} if setup.text("loss") == "chunked" else {}
    return {name: value for name, value in values.items() if name not in SHAPE}


def write(setup: Setup) -> Written:
    """Return the command."""
    pairs: list[tuple[str, object]] = [("model_name", NAMES[_preset(setup)]), *PROGRAM.settings(wording(setup))]
    on_gpus = setup.plan.question().chip.kind == "gpu"
    if on_gpus:  # its default is a TPU
        pairs += [("hardware", "gpu")] + ([("attention", "cudnn_flash_te")] if "attention" not in dict(pairs) else [])
    pairs += [("checkpoint_period", setup.whole("save_every", 1000)), ("enable_checkpointing", True)]
    todo = {"run_name": "RUN_NAME: a name", "base_output_directory": "OUTPUT: the folder of checkpoints"}
    todo |= {"dataset_path": "DATASET_PATH: the folder of the data"}
    todo |= {} if setup.values.get("steps") else {"steps": "STEPS: the number of steps"}
    pairs += [(key, f"${{{text.partition(':')[0]}:?set {text}}}") for key, text in todo.items()]
    base = "${BASE_YML:?set BASE_YML: the path of configs/base.yml of MaxText}"
    command = ("python", "-m", "maxtext.trainers.pre_train.train", base, *forms.pair_words(pairs))
    several = on_gpus and setup.whole("nodes") > 1  # nodes with TPUs find one another by themselves
    found = {"JAX_COORDINATOR_IP": "$MASTER_ADDR", "JAX_COORDINATOR_PORT": "$MASTER_PORT"} if several else {}
    return Written({}, command, starter="node", environment=found)


def _mesh(setup: Setup) -> dict[str, Value]:
    """Return both parts of each mesh axis: inside a slice from the innermost axis on, the rest between slices."""
    shard, ep = setup.whole("dp_shard"), setup.whole("ep")
    sizes = {axis: setup.whole(axis) for axis in ("tp", "cp", "pp")}
    sizes |= {"ep": ep, "fsdp": shard // ep, "data": setup.whole("dp_replicate")}
    cluster = setup.plan.question().cluster if setup.plan is not None else None
    slices = cluster.node_count if cluster is not None and cluster.torus else setup.whole("nodes")
    left = max(1, setup.whole("devices") // max(1, slices))
    values: dict[str, Value] = {}
    for axis in AXES:
        inside = math.gcd(sizes[axis], left)
        left //= inside
        values |= {f"ici_{axis}": inside, f"dcn_{axis}": sizes[axis] // inside}
    return values


def _preset(setup: Setup) -> str:
    name = str(setup.plan.ask.model).rpartition("/")[2].lower()
    return name if name in NAMES else ""


def refuse(setup: Setup) -> Iterable[Refusal]:
    yield from limited(setup, TITLE, LIMITS)
    yield from recipe.refuse(setup, TITLE, CAN)
    if setup.whole("dp_shard") % setup.whole("ep"):
        yield Refusal(f"{TITLE}'s expert axis is a part of the sharded data ranks: ep must divide dp_shard", {"ep": 1})
    if setup.values.get("experts") and setup.whole("etp") != setup.whole("tp"):
        yield Refusal(f"{TITLE} cuts experts by tensor parallelism as it cuts other layers", {"etp": setup.whole("tp")})
    if setup.whole("cp") > 1 and setup.whole("zero", 0) == 0:
        yield Refusal(f"{TITLE} shards weights over context-parallel ranks", {"zero": 3})
    if setup.whole("pp") > 1 and setup.whole("layers") % setup.whole("pp"):
        yield Refusal(f"{TITLE} needs equal pipeline stages", {"pp": 1})
    if setup.whole("tp") > 1 and not setup.whole("sp", 0):
        yield Refusal(f"{TITLE} always uses sequence parallelism with tp", {"sp": 1})
    if setup.plan is not None and not _preset(setup):
        yield Refusal(f"{TITLE} has no model_name for {setup.plan.ask.model}", {})


def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
    """Return how many of MaxText's keys a command or YAML has."""
    names = {setting.key for setting in settings}
    common = {"dtype", "steps", "quantization", "head_dim", "vocab_size", "gradient_accumulation_steps"}
    own = names & {row.key for row in KEYS} - common
    return len(own) + 3 * ("maxtext" in script.lower()) if own else 0


TOPOLOGY = "compile_topology=v5p-128 compile_topology_num_slices=1"
PROGRAM = Program(
    name="maxtext", title=TITLE, version=VERSION, framework="maxtext", form="flags", keys=KEYS, write=write,
    refuse=refuse, wording=wording, meaning=meaning, recognises=recognises,
    check=f"python -m maxtext.trainers.pre_train.train_compile base.yml ... {TOPOLOGY}",
)  # fmt: skip
