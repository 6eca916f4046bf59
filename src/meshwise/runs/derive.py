"""Facts that follow from others: devices from nodes, data-parallel ranks from devices, the batch from micro-batches, tokens from steps."""

from collections.abc import Iterator

from meshwise.runs.facts import Facts, Stated

CUTS = ("tp", "pp", "cp")


def complete(facts: Facts, devices: int = 0, source: str = "--on") -> Facts:
    """Return facts with all that follows from them. `devices`: of the cluster that the user names, where the files state none."""
    facts = facts.adding(_devices(facts))
    if facts.value("devices") is None and devices and facts.value("dp") is None and not _sharded(facts):
        facts = facts.adding([Stated("devices", devices, "derived", None, "", f"of {source}")])
    for step in (_data_ranks, _replicas, _machines, _batch, _tokens):
        facts = facts.adding(step(facts))
    return facts


def _sharded(facts: Facts) -> bool:
    return facts.value("dp_shard") is not None and facts.value("dp_replicate") is not None


def _devices(facts: Facts) -> Iterator[Stated]:
    nodes, each = facts.whole("nodes"), facts.whole("devices_per_node")
    if facts.value("devices") is None and nodes and each:
        yield facts.derived("devices", nodes * each, f"{nodes} node{'s' * (nodes > 1)} x {each}", "nodes", "devices_per_node")
    elif facts.value("devices") is None and each and "nodes" not in facts:
        yield facts.derived("devices", each, "one node", "devices_per_node")


def _model_ranks(facts: Facts) -> int:
    """Return tp x pp x cp; 0 where one of them is not known."""
    if any(axis in facts and facts.value(axis) is None for axis in CUTS):
        return 0
    return facts.whole("tp", 1) * facts.whole("pp", 1) * facts.whole("cp", 1)


def _data_ranks(facts: Facts) -> Iterator[Stated]:
    """Yield dp: as its two factors say, else what is left of the devices."""
    if facts.value("dp") is not None:
        return
    cuts, devices = _model_ranks(facts), facts.whole("devices")
    if _sharded(facts):
        yield facts.derived("dp", facts.whole("dp_replicate") * facts.whole("dp_shard"), "dp_replicate x dp_shard", "dp_shard")
    elif cuts and devices and devices % cuts == 0:
        yield facts.derived("dp", devices // cuts, f"{devices} devices / (tp x pp x cp = {cuts})", "devices")
    elif facts.whole("accumulation") and facts.whole("mbs") and facts.whole("batch"):
        each = facts.whole("accumulation") * facts.whole("mbs")
        if facts.whole("batch") % each == 0:
            yield facts.derived("dp", facts.whole("batch") // each, "batch / (micro-batch x accumulation)", "batch")


def _replicas(facts: Facts) -> Iterator[Stated]:
    """Yield how data ranks are split: all replicas without ZeRO, all shards with it unless the file says otherwise."""
    dp = facts.whole("dp")
    if not dp or _sharded(facts):
        return
    if facts.value("zero") == 0:
        yield facts.derived("dp_replicate", dp, "nothing is sharded", "dp")
        yield facts.derived("dp_shard", 1, "nothing is sharded", "zero")
    elif facts.value("dp_shard") is not None and dp % max(1, facts.whole("dp_shard")) == 0:
        yield facts.derived("dp_replicate", dp // max(1, facts.whole("dp_shard")), "dp / dp_shard", "dp_shard")
    elif facts.value("zero") is not None:
        copies = facts.whole("dp_replicate", 1) or 1
        yield (
            facts.derived("dp_replicate", copies, "one group of shards", "zero")
            if "dp_replicate" not in facts
            else facts.by_name["dp_replicate"]
        )
        if dp % copies == 0:
            yield facts.derived("dp_shard", dp // copies, "dp / dp_replicate", "dp")


def _machines(facts: Facts) -> Iterator[Stated]:
    dp, cuts = facts.whole("dp"), _model_ranks(facts)
    devices = facts.whole("devices") or dp * cuts
    if facts.value("devices") is None and devices:
        yield facts.derived("devices", devices, "dp x tp x pp x cp", "dp")
    nodes, each = facts.whole("nodes"), facts.whole("devices_per_node")
    if devices and nodes and facts.value("devices_per_node") is None and devices % nodes == 0:
        yield facts.derived("devices_per_node", devices // nodes, "devices / nodes", "devices")
    if devices and each and facts.value("nodes") is None and devices % each == 0:
        yield facts.derived("nodes", devices // each, "devices / devices per node", "devices")


def _batch(facts: Facts) -> Iterator[Stated]:
    mbs, dp, batch, steps = (facts.whole(name) for name in ("mbs", "dp", "batch", "accumulation"))
    if mbs and dp and steps and facts.value("batch") is None:
        yield facts.derived("batch", mbs * dp * steps, f"micro-batch {mbs} x accumulation {steps} x dp {dp}", "mbs")
    elif mbs and dp and facts.value("batch") is None and "batch" not in facts and "accumulation" not in facts:
        yield facts.derived("batch", mbs * dp, f"micro-batch {mbs} x dp {dp}: one micro-batch per step", "mbs")
    elif mbs and dp and batch and facts.value("accumulation") is None and batch % (mbs * dp) == 0:
        yield facts.derived("accumulation", batch // (mbs * dp), "batch / (micro-batch x dp)", "batch")
    elif dp and batch and steps and facts.value("mbs") is None and batch % (dp * steps) == 0:
        yield facts.derived("mbs", batch // (dp * steps), "batch / (accumulation x dp)", "batch")


def _tokens(facts: Facts) -> Iterator[Stated]:
    seq, batch = facts.whole("seq"), facts.whole("batch")
    if facts.value("tokens") is not None or not seq:
        return
    if facts.whole("samples"):
        yield facts.derived("tokens", facts.whole("samples") * seq, "samples x sequence length", "samples")
    elif facts.whole("steps") and batch:
        yield facts.derived("tokens", facts.whole("steps") * batch * seq, "steps x batch x sequence length", "steps")
