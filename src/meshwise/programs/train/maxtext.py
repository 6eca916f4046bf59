"""MaxText: 'key=value' words after its base.yml, or a YAML of one's own over it."""

import math
from collections.abc import Iterable, Iterator, Sequence

from meshwise.programs import forms
from meshwise.programs.kinds import Kind
from meshwise.programs.program import Program, Refusal, Setup, Written
from meshwise.programs.source import Setting, Source
from meshwise.programs.table import names, table
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import Limits, limited
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "MaxText", "0.2.5"
AXES = {"tp": "tensor", "cp": "context", "ep": "expert", "fsdp": "fsdp", "data": "data", "pp": "pipeline"}
"""Mesh axes from the inside out: each has a part inside a slice (ici) and one between slices (dcn)."""
VOCABULARY_TILES = 4  # num_vocab_tiling of a chunked loss: it need not be larger for the logits to be small beside the layers
CAN = {"attention": ("xla", "cudnn", "unfused"), "gradients": ("bf16",)}
SIZE = Kind(lambda value: int(value), int, "a whole number, or -1 for the rest")

KEYS = table("maxtext", size=SIZE, capacity=recipe.CAPACITY)
SHAPE = ("hidden", "layers", "ffn", "heads", "kv_heads", "head_dim", "vocab")
LIMITS: Limits = {
    "vpp": (1,), "schedule": ("1f1b",), "zero": (0, 3),
    "recompute": ("none", "minimal", "save_qkv_proj", "save_out_proj", "full"),
    "offload": ("none", "optimizer", "parameters"), "precision": ("bf16", "fp8"), "optimizer": ("adamw", "sgd", "muon"),
    "loss": ("", "chunked"), "compile": (False,),
}  # fmt: skip
NAMES = names("maxtext")  # model_name by preset


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
        pairs += [("max_segments_per_seq", 32)] if dict(pairs)["attention"] == "cudnn_flash_te" else []  # it stops without one
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
    if setup.text("precision") == "fp8" and setup.whole("accumulation") > 1:
        yield Refusal(f"{TITLE} has no gradient accumulation with fp8", {})
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
