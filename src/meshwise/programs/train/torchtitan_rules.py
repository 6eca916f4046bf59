"""Translate torchtitan's keys, which have a meaning only together, for 0.3 (flags) and 0.2 (TOML): their names are the same."""

from collections.abc import Iterator
from dataclasses import replace

from meshwise.programs.kinds import Kind, word
from meshwise.programs.program import KERNELS, Key, Refusal, Setup
from meshwise.programs.table import table
from meshwise.programs.train import recipe
from meshwise.programs.train.limits import Limits, limited
from meshwise.runs.run import Run, Stated, Value

SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "InterleavedZeroBubble"}
OTHER_SCHEDULES = {
    "gpipe": None, "loopedbfs": None, "zbvzerobubble": "zero-bubble", "dualpipev": "zero-bubble",
    "pipelineschedulesingle": None,
}  # fmt: skip
POSITIVE = Kind(lambda value: int(value) if int(value) > 0 else None, int, "a whole number", open="-1: what is left")

LIMITS: Limits = {
    "schedule": ("1f1b", "interleaved", "zero-bubble"), "recompute": ("none", "selective", "full"),
    "offload": ("none", "parameters"), "optimizer": ("adamw",), "zero": (0, 2, 3),
}  # fmt: skip


COMPONENTS, SCHEDULE = (KERNELS + name for name in ("components", "schedule"))
CAN = {"gradients": ("fp32",), "overlap": ("overlaps_tp",)}  # what both versions can say of a recipe


def keys(*, dashes: bool) -> tuple[Key, ...]:
    """Return the rows that both versions share, as flags or as paths of TOML."""
    rows = table("torchtitan-shared", positive=POSITIVE, schedules=word(SCHEDULES, OTHER_SCHEDULES))
    return tuple(replace(row, key=f"--{row.key}") for row in rows) if dashes else rows


def meaning(facts: Run) -> Run:
    """Add the micro-batch, the ZeRO stage, chunks, sequence parallelism and offload."""
    facts = facts.adding([*_microbatch(facts), *_zero(facts), *_chunks(facts)])
    facts = facts.adding([facts.meaning("offload", "parameters" if facts.value("cpu_offload") else "none", "cpu_offload")])
    facts = facts.adding([*_loss(facts), *_hidden(facts)])
    if facts.value("tp") is not None and "sp" not in facts:
        facts = facts.adding([facts.derived("sp", int(facts.whole("tp", 1) > 1), "always on with tp", "tp")])
    if facts.whole("pp", 1) == 1 and "schedule" in facts:
        facts = facts.without("schedule").adding([Stated("schedule", "1f1b", "derived", None, "", "no pipeline")])
    return facts


def _loss(facts: Run) -> Iterator[Stated]:
    """Yield whether the loss is compiled, where the file lists what is; a chunked loss is stated elsewhere."""
    listed = facts.value(COMPONENTS)
    if isinstance(listed, tuple) and facts.value("loss") != "chunked":
        yield facts.meaning("loss", "compiled" if facts.value("compile") and "loss" in listed else "materialised", COMPONENTS)


def _hidden(facts: Run) -> Iterator[Stated]:
    """Yield what is hidden: by compiled async tensor parallelism, and experts by DualPipeV unless told not to."""
    if facts.value("overlap_tp") and not facts.value("compile"):
        facts = facts.without("overlap_tp")
    dual = str(facts.value(SCHEDULE) or "").lower() == "dualpipev" and facts.whole("ep", 1) > 1
    if dual and "overlap_ep" not in facts:
        facts = facts.adding([facts.meaning("overlap_ep", True, SCHEDULE)])
    known = {"overlaps_tp": "overlap_tp"} | ({"overlaps_experts": "overlap_ep"} if dual else {})
    yield from recipe.overlap(facts, known)


def _microbatch(facts: Run) -> Iterator[Stated]:
    """Yield the micro-batch: the local batch without a pipeline; with one, a key of its own, whose default is 1."""
    if facts.value("pp") is None:
        return
    if facts.whole("pp", 1) > 1:
        yield facts.meaning("mbs", facts.whole("microbatch", 1), "microbatch")
    elif facts.value("local_batch") is not None:
        yield facts.meaning("mbs", facts.whole("local_batch"), "local_batch")
    if facts.whole("pp", 1) > 1 and "local_batch" in facts and "batch" not in facts and facts.whole("microbatch", 1):
        count = facts.whole("local_batch") // facts.whole("microbatch", 1)
        yield facts.derived("accumulation", count, "local batch / micro-batch: one local batch per step", "local_batch")
    elif "local_batch" in facts and "batch" not in facts:
        yield facts.derived("accumulation", 1, "no global_batch_size: one local batch per step", "local_batch")


def _zero(facts: Run) -> Iterator[Stated]:
    said = facts.value("reshard")
    if said in ("always", "never"):
        yield facts.meaning("zero", 3 if said == "always" else 2, "reshard")
    elif said == "default" and facts.value("pp") is not None:
        piped = facts.whole("pp", 1) > 1
        how = "keeps gathered weights with a pipeline" if piped else "frees gathered weights after the forward pass"
        yield facts.derived("zero", 2 if piped else 3, f"reshard_after_forward default: {how}", "reshard")


def _chunks(facts: Run) -> Iterator[Stated]:
    """Yield vpp: from the layers of a stage; the schedule's own two where none are given."""
    each, layers, pp = facts.whole("layers_per_chunk"), facts.whole("layers"), facts.whole("pp", 1)
    single = facts.value("schedule") == "1f1b" or pp == 1
    if single:
        yield facts.derived("vpp", 1, "one chunk per stage", "schedule")
    elif each and layers:
        total = layers + facts.whole("first_less", 1) + facts.whole("last_less", 1)
        chunks = max(1, -(-total // (each * pp)))
        why = f"{total} layers, the embedding and the head counted / ({pp} x {each})"
        yield facts.derived("vpp", chunks, why, "layers_per_chunk")
    elif each:
        yield facts.derived("vpp", None, "the model's layers are not known", "layers_per_chunk")
    else:
        yield facts.derived("vpp", 2, "two chunks per stage, the default of this schedule", "schedule")


def wording(setup: Setup) -> dict[str, Value]:
    """Return a plan's facts with those that torchtitan words differently."""
    values = dict(setup.values)
    pp, mbs, zero = setup.whole("pp"), setup.whole("mbs"), setup.whole("zero", 0)
    values["local_batch"] = mbs if pp == 1 else mbs * setup.whole("accumulation")
    if zero:
        values["reshard"] = "always" if zero == 3 else "never"
    if pp > 1:
        values["microbatch"] = mbs
        values |= _stages(setup)
    else:
        values.pop("schedule", None)
    values["cpu_offload"] = setup.text("offload") == "parameters"
    hidden = recipe.hidden(setup, assumed=False).get("overlaps_tp")
    if hidden and setup.whole("tp") > 1:
        values["overlap_tp"] = True
    return values


def _stages(setup: Setup) -> dict[str, Value]:
    """Return how layers are cut into stages: the embedding and the head count as a layer each where pp does not divide the layers."""
    layers, chunks = setup.whole("layers"), setup.whole("pp") * setup.whole("vpp")
    less = 0 if layers % chunks == 0 else 1
    values: dict[str, Value] = {"first_less": less, "last_less": less}
    if setup.whole("vpp") > 1:
        values["layers_per_chunk"] = -(-(layers + 2 * less) // chunks)
    return values


def refuse(setup: Setup, title: str) -> Iterator[Refusal]:
    """Yield what neither version can say."""
    yield from limited(setup, title, LIMITS)
    if setup.text("schedule") == "zero-bubble" and setup.whole("vpp") < 2:
        yield Refusal(f"{title}'s zero-bubble schedule interleaves two chunks", {"schedule": "1f1b", "vpp": 1})
    if setup.whole("tp") > 1 and not setup.whole("sp", 0):
        yield Refusal(f"{title} always uses sequence parallelism with tp", {"sp": 1})
    if setup.whole("cp") > 1 and setup.whole("zero", 0) == 0:
        yield Refusal(f"{title} shards weights over context-parallel ranks", {"zero": 3})
    if recipe.hidden(setup, assumed=False).get("overlaps_tp") and not setup.values.get("compile"):
        yield Refusal(f"{title} hides tensor-parallel communication only in compiled layers (--compile)", {"overlap": ""})
