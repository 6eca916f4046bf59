"""Find settings of a launch file that stop the program, contradict each other, or have no effect."""

from collections.abc import Callable, Iterator

from meshwise.audit.finding import Finding, contradiction
from meshwise.programs.program import Program
from meshwise.runs.fields import BY_NAME
from meshwise.runs.run import ENVIRONMENT, Run, Stated, in_words

CONNECTIONS = f"{ENVIRONMENT}CUDA_DEVICE_MAX_CONNECTIONS"


def findings(program: Program, facts: Run) -> list[Finding]:
    """Return everything in the facts of a training file that contradicts, the worst first."""
    found = [finding for rule in RULES for finding in rule(program, facts)]
    return sorted(found, key=lambda finding: ("stops", "warns", "notes").index(finding.severity))


def places(facts: Run, *names: str) -> tuple[str, ...]:
    """Return where facts are said, without repeats."""
    stated = [facts.get(name) for name in names]
    return tuple(dict.fromkeys(one.where for one in stated if one and one.where))


def stops(facts: Run, text: str, *names: str) -> Finding:
    """Return what stops the program, with the places of these facts."""
    return contradiction("stops", text, places(facts, *names))


def warns(facts: Run, text: str, *names: str) -> Finding:
    """Return what is likely a mistake."""
    return contradiction("warns", text, places(facts, *names))


def _devices(program: Program, facts: Run) -> Iterator[Finding]:
    """The model-parallel ranks must fit into the devices, and divide them."""
    axes = [axis for axis in ("tp", "pp", "cp") if facts.whole(axis, 1) > 1]
    cuts, devices = 1, facts.whole("devices")
    for axis in axes:
        cuts *= facts.whole(axis, 1)
    if not devices or cuts < 1 or devices % cuts == 0:
        return
    product = " x ".join(f"{axis} {facts.whole(axis)}" for axis in axes)
    much = f"is more than the {devices:,} devices" if cuts > devices else f"does not divide the {devices:,} devices"
    can = (
        f"from {cuts:,} devices on it can"
        if cuts > devices
        else f"with {devices // cuts * cuts:,} or {-(-devices // cuts) * cuts:,} it can"
    )
    yield stops(facts, f"{product} = {cuts:,} {much}: it cannot start as written; {can}", *axes, "devices", "nodes")


def _product(program: Program, facts: Run) -> Iterator[Finding]:
    """Stated data ranks times the other axes must be the devices."""
    dp, devices = facts.get("dp"), facts.whole("devices")
    stated = dp is not None and dp.value is not None and not dp.note.startswith(f"{devices} devices")
    shards = facts.says("dp_shard") or facts.says("dp_replicate")
    ranks = facts.whole("dp") * facts.whole("tp", 1) * facts.whole("pp", 1) * facts.whole("cp", 1)
    if not all(facts.whole(axis, 1) > 0 for axis in ("tp", "pp", "cp")):
        return
    if (stated or shards) and devices and ranks and ranks != devices:
        parts = " x ".join(f"{axis} {facts.whole(axis, 1)}" for axis in ("dp", "tp", "pp", "cp") if facts.whole(axis, 1) > 1)
        text = f"{parts or 'dp 1'} = {ranks:,} ranks, but {devices:,} devices are started"
        yield stops(facts, text, "dp", "dp_shard", "tp", "pp", "devices")


def _batch(program: Program, facts: Run) -> Iterator[Finding]:
    mbs, dp, batch, steps = (facts.whole(name) for name in ("mbs", "dp", "batch", "accumulation"))
    if not (mbs and dp and batch):
        return
    each = mbs * dp
    if batch % each:
        near = batch // each * each or each
        text = f"a batch of {batch:,} is not a multiple of micro-batch {mbs} x dp {dp} = {each:,}; {near:,} is"
        yield stops(facts, text, "batch", "mbs")
    elif steps and facts.says("accumulation") and facts.says("batch") and steps * each != batch:
        text = f"a batch of {batch:,} is not micro-batch {mbs} x accumulation {steps} x dp {dp} = {steps * each:,}"
        yield stops(facts, text, "batch", "accumulation", "mbs")


def _model(program: Program, facts: Run) -> Iterator[Finding]:
    """Axes must cut the model's layers, heads and experts."""
    tp, pp, heads, layers = (facts.whole(name) for name in ("tp", "pp", "heads", "layers"))
    if tp and heads and heads % tp:
        yield stops(facts, f"tp {tp} does not divide {heads} heads", "tp", "heads")
    if pp and layers and pp > layers:
        yield stops(facts, f"pp {pp} is more than {layers} layers", "pp", "layers")
    elif pp and layers and layers % pp and program.name in ("megatron", "megatron-bridge") and not _uneven(facts):
        yield stops(facts, f"pp {pp} does not divide {layers} layers, and no uneven split is given", "pp", "layers")
    chunks = pp * facts.whole("vpp", 1)
    cuts_evenly = program.framework != "torchtitan"  # which counts the embedding and the head as layers, and rounds up
    if cuts_evenly and layers and facts.whole("vpp", 1) > 1 and pp > 1 and layers % chunks and not _uneven(facts):
        text = f"pp {pp} x vpp {facts.whole('vpp')} = {chunks} does not divide {layers} layers"
        yield stops(facts, text, "vpp", "layers_per_chunk")
    ep, experts = facts.whole("ep", 1), facts.whole("experts")
    if ep > 1 and experts and experts % ep:
        more = f"; {ep} looks like a count of experts per rank" if ep > experts else ""
        yield stops(facts, f"ep {ep} does not divide {experts} experts{more}", "ep", "experts")
    elif ep > 1 and not experts and program.framework in ("megatron", "megatron-deepspeed") and facts.whole("layers"):
        yield warns(facts, f"ep {ep} does nothing: the model has no experts", "ep")
    ranks = facts.whole("dp") * facts.whole("cp", 1) * facts.whole("tp", 1) // max(1, facts.whole("etp", 1))
    if ep > 1 and ranks and ranks % ep:
        yield stops(facts, f"ep {ep} does not divide the {ranks} ranks that share experts (dp x cp x tp / etp)", "ep")


COUNTS = ("tp", "pp", "cp", "ep", "etp", "mbs", "vpp", "batch", "seq", "accumulation", "layers", "hidden", "heads", "kv_heads", "ffn",
          "vocab", "nodes", "devices_per_node", "devices", "dp", "dp_shard", "dp_replicate", "experts", "top_k")  # fmt: skip
"""Facts that are 1 or more wherever they are set at all."""


def _zeros(program: Program, facts: Run) -> Iterator[Finding]:
    """No degree, size or count of a run is zero or less."""
    for name in COUNTS:
        one = facts.get(name)
        if one is None or one.how != "said" or isinstance(one.value, bool) or not isinstance(one.value, int):
            continue
        if one.value < (0 if name in ("experts", "top_k") else 1):  # a model may have no experts
            yield stops(facts, f"{one.key or name} is {one.value}: expected 1 or more", name)


def _exclusive(program: Program, facts: Run) -> Iterator[Finding]:
    """Flags that a parser takes only one of."""
    if facts.says("vpp") and facts.says("layers_per_chunk") and program.name.startswith("megatron"):
        text = f"{facts.word('vpp')} and {facts.word('layers_per_chunk')} exclude each other"
        yield stops(facts, text, "vpp", "layers_per_chunk")
    each, pp, layers = facts.whole("layers_per_chunk"), facts.whole("pp", 1), facts.whole("layers")
    if each and pp > 1 and layers and layers % pp == 0 and layers // pp % each and program.name.startswith("megatron"):
        text = f"{layers // pp} layers of a stage are no multiple of the {each} of {facts.word('layers_per_chunk')}"
        yield stops(facts, text, "layers_per_chunk", "pp")
    if facts.value("no_pipeline") and facts.whole("pp", 1) > 1:
        text = f"--no-pipeline-parallel and pp {facts.whole('pp')} exclude each other"
        yield stops(facts, text, "no_pipeline", "pp")
    if facts.says("batch_schedule") and facts.says("batch") and program.name == "megatron":
        text = "--step-batch-size-schedule and --global-batch-size exclude each other"
        yield stops(facts, text, "batch_schedule", "batch")


def _uneven(facts: Run) -> bool:
    names = ("first_stage_layers", "last_stage_layers", "embedding_in_split", "loss_in_split", "stage_layout")
    return any(facts.value(name) for name in names)


def _length(program: Program, facts: Run) -> Iterator[Finding]:
    seq, positions, cp = facts.whole("seq"), facts.whole("positions"), facts.whole("cp", 1)
    if seq and positions and seq > positions and facts.value("position_kind") in ("learned", None):
        yield stops(facts, f"sequences of {seq:,} are longer than the {positions:,} learned positions", "seq", "positions")
    if seq and cp > 1 and seq % (2 * cp):
        yield stops(facts, f"cp {cp} needs a sequence in multiples of {2 * cp}, not {seq:,}", "cp", "seq")


def _schedule(program: Program, facts: Run) -> Iterator[Finding]:
    vpp, pp, steps = facts.whole("vpp", 1), facts.whole("pp", 1), facts.whole("accumulation")
    if vpp > 1 and pp == 1:
        yield stops(facts, f"vpp {vpp} interleaves pipeline stages, but pp is 1", "vpp", "layers_per_chunk")
    elif vpp > 1 and steps and steps % (max(1, steps // pp) if program.framework == "torchtitan" else pp):  # PyTorch's are rounds
        text = f"interleaving needs micro-batches in multiples of pp {pp}, not {steps}"
        yield stops(facts, text, "vpp", "layers_per_chunk", "batch")
    if pp > 1 and steps and steps < pp:
        yield warns(facts, f"{steps} micro-batches do not fill {pp} pipeline stages", "batch", "pp")


def _sharding(program: Program, facts: Run) -> Iterator[Finding]:
    zero = facts.whole("zero")
    if zero > 1 and facts.whole("pp", 1) > 1 and program.framework == "megatron-deepspeed":
        yield stops(facts, f"DeepSpeed's pipeline does not run with ZeRO {zero}; 1 is the most", "zero", "pp")
    said = facts.get("zero")
    if said is not None and "pipeline shards" in said.note:
        text = "ZeRO stage 0 with bf16: DeepSpeed's pipeline shards the optimizer all the same, as stage 1 does"
        yield contradiction("notes", text, (said.where,))
    if facts.value("fsdp") and facts.value("distributed_optimizer"):
        text = "Megatron-FSDP's strategy counts, not --use-distributed-optimizer"
        yield contradiction("notes", text, places(facts, "fsdp", "distributed_optimizer"))
    flag, file = facts.get("stage_flag"), facts.get("stage")
    if flag and file and flag.value is not None and file.value is not None and file.how == "said" and flag.value != file.value:
        text = f"--zero-stage {flag.value} and stage {file.value} of DeepSpeed's JSON differ"
        yield contradiction("warns", text, tuple(place for place in (flag.where, file.where) if place))


def _idle(program: Program, facts: Run) -> Iterator[Finding]:
    """Settings that have no effect."""
    if facts.value("sequence_parallel") and facts.says("sequence_parallel") and facts.value("tp") == 1:
        yield warns(facts, "sequence parallelism does nothing: tp is 1", "sequence_parallel", "tp")
    recipe = facts.get("float8_recipe") or facts.get("mx_recipe")
    if recipe is not None and facts.value("precision") == "bf16":
        text = f"{recipe.key} does nothing: model.converters does not name the converter, so products stay in bf16"
        yield contradiction("warns", text, (recipe.where,))
    asked = facts.get("granularity")
    new = asked is not None and asked.key.replace("_", "-") == "--recompute-granularity"
    if new and facts.value("granularity") == "full" and program.name == "megatron" and not facts.says("recompute_method"):
        yield stops(facts, "full recompute needs --recompute-method (uniform or block)", "granularity")
    if facts.value("ramp") and program.name.startswith("megatron") and facts.whole("steps") and not facts.whole("samples"):
        yield stops(facts, "--rampup-batch-size needs --train-samples, not --train-iters", "ramp", "steps")


def _old(program: Program, facts: Run) -> Iterator[Finding]:
    """Flags of older versions, which the current one does not take."""
    names = ("--checkpoint-activations", "--activations-checkpoint-method", "--batch-size")
    old = [one for one in facts if program.name == "megatron" and one.key.replace("_", "-") in names and one.fact in BY_NAME]
    for key in dict.fromkeys(one.key for one in old):
        where = tuple(one.where for one in old if one.key == key)[:1]
        yield contradiction("notes", f"{key} is of an older {program.title}: {program.version} does not take it", where)


def _environment(program: Program, facts: Run) -> Iterator[Finding]:
    """Megatron's rules on CUDA_DEVICE_MAX_CONNECTIONS."""
    value = facts.value(CONNECTIONS)
    if program.name not in ("megatron",) or value is None:
        return
    if facts.whole("zero") > 1 and str(value) == "1":
        yield stops(facts, "FSDP forbids CUDA_DEVICE_MAX_CONNECTIONS=1", CONNECTIONS)
    cuts = facts.whole("tp", 1) > 1 or facts.whole("cp", 1) > 1
    if facts.whole("zero") < 2 and cuts and str(value) != "1":
        yield stops(facts, f"tp or cp below Blackwell needs CUDA_DEVICE_MAX_CONNECTIONS=1, not {value}", CONNECTIONS)


def _twice(program: Program, facts: Run) -> Iterator[Finding]:
    """One fact with two values: the last one wins in one command, the command over its files."""
    for before in facts.replaced:
        now = facts.get(before.fact)
        if now is None or now.value == before.value or before.value is None or now.value is None:
            continue
        name = before.key or before.fact
        both = f"{name} {shown(before)} at {before.where} and {now.key or now.fact} {shown(now)} at {now.where}"
        yield contradiction("warns", f"{both}: the last one, {shown(now)}, wins")


def shown(stated: Stated) -> str:
    """Return the value of a fact for people; of an unknown one, the values that it may have."""
    if stated.value is None and " or " in stated.note and ", by " in stated.note:
        return stated.note.partition(", by ")[0]
    return in_words(stated.value)


def _unreadable(program: Program, facts: Run) -> Iterator[Finding]:
    """Values that no parser would take. A word that is not listed here may still be one of a newer version: it is only unknown."""
    for one in facts:
        plain = one.note.startswith("'") and one.note.endswith(
            (" is not a whole number", " is not a number", " is not true or false")
        )
        if one.how == "unknown" and plain and (one.fact in BY_NAME or one.key):
            yield contradiction("stops", f"{one.key}: {one.note}", (one.where,))


Rule = Callable[[Program, Run], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    _zeros, _exclusive, _devices, _product, _batch, _model, _length, _schedule, _sharding, _idle, _old, _environment, _twice, _unreadable,
)  # fmt: skip
