"""Facts that follow from others, each with its arithmetic: devices from nodes, dp from devices, the batch from micro-batches."""

from collections.abc import Iterator
from dataclasses import replace

from meshwise.runs.run import Run, Stated

CUTS = ("tp", "pp", "cp")


def complete(run: Run, devices: int = 0, source: str = "--on", *, launched: bool = False) -> Run:
    """Return the run with all that follows from it; `devices`: of the named cluster; `launched`: a whole launch file, of one node."""
    values = dict(run.values)
    run = replace(run, values=values)  # its steps see what earlier ones found
    values.update((one.fact, one) for one in _devices(run, launched))
    if run.value("devices") is None and devices and run.value("dp") is None and not _sharded(run):
        values["devices"] = Stated("devices", devices, "derived", None, "", f"of {source}")
    for step in (_data_ranks, _replicas, _machines, _passes):
        values.update((one.fact, one) for one in step(run))
    values.update((one.fact, one) for one in _batch(run, launched))
    values.update((one.fact, one) for one in _tokens(run))
    return run


def _sharded(run: Run) -> bool:
    return run.value("dp_shard") is not None and run.value("dp_replicate") is not None


def _devices(run: Run, launched: bool) -> Iterator[Stated]:
    nodes, each = run.whole("nodes"), run.whole("devices_per_node")
    if run.value("devices") is None and nodes and each:
        yield run.derived("devices", nodes * each, f"{nodes} node{'s' * (nodes > 1)} x {each}", "nodes", "devices_per_node")
    elif launched and run.value("devices") is None and each and "nodes" not in run:
        yield run.derived("devices", each, "one node", "devices_per_node")


def model_ranks(run: Run) -> int:
    """Return tp x pp x cp; 0 where one of them is not known."""
    if any(axis in run and run.value(axis) is None for axis in CUTS):
        return 0
    return run.whole("tp", 1) * run.whole("pp", 1) * run.whole("cp", 1)


def _data_ranks(run: Run) -> Iterator[Stated]:
    """Yield dp: the product of its two factors, else what is left of the devices."""
    if run.value("dp") is not None:
        return
    cuts, devices = model_ranks(run), run.whole("devices")
    if _sharded(run):
        yield run.derived("dp", run.whole("dp_replicate") * run.whole("dp_shard"), "dp_replicate x dp_shard", "dp_shard")
    elif cuts and devices and devices % cuts == 0:
        yield run.derived("dp", devices // cuts, f"{devices} devices / (tp x pp x cp = {cuts})", "devices")
    elif run.whole("accumulation") and run.whole("mbs") and run.whole("batch"):
        each = run.whole("accumulation") * run.whole("mbs")
        if run.whole("batch") % each == 0:
            yield run.derived("dp", run.whole("batch") // each, "batch / (micro-batch x accumulation)", "batch")


def _replicas(run: Run) -> Iterator[Stated]:
    """Yield how data ranks are split: all replicas without ZeRO, all shards with it unless the run says otherwise."""
    dp = run.whole("dp")
    if not dp or _sharded(run):
        return
    if run.value("zero") == 0:
        yield run.derived("dp_replicate", dp, "nothing is sharded", "dp")
        yield run.derived("dp_shard", 1, "nothing is sharded", "zero")
    elif run.value("dp_shard") is not None and dp % max(1, run.whole("dp_shard")) == 0:
        yield run.derived("dp_replicate", dp // max(1, run.whole("dp_shard")), "dp / dp_shard", "dp_shard")
    elif run.value("zero") is not None and "sharding" not in run:
        copies = run.whole("dp_replicate", 1) or 1
        if "dp_replicate" not in run:
            yield run.derived("dp_replicate", copies, "one group of shards", "zero")
        if dp % copies == 0:
            yield run.derived("dp_shard", dp // copies, "dp / dp_replicate", "dp")


def _machines(run: Run) -> Iterator[Stated]:
    dp, cuts = run.whole("dp"), model_ranks(run)
    devices = run.whole("devices") or dp * cuts
    if run.value("devices") is None and devices:
        yield run.derived("devices", devices, "dp x tp x pp x cp", "dp")
    nodes, each = run.whole("nodes"), run.whole("devices_per_node")
    if devices and nodes and run.value("devices_per_node") is None and devices % nodes == 0:
        yield run.derived("devices_per_node", devices // nodes, "devices / nodes", "devices")
    if devices and each and run.value("nodes") is None and devices % each == 0:
        yield run.derived("nodes", devices // each, "devices / devices per node", "devices")


def _passes(run: Run) -> Iterator[Stated]:
    """Yield the micro-batch of a run that states what a device computes in one pass; without accumulation it takes one pass per step."""
    each = run.whole("per_device_batch")
    if each and run.value("mbs") is None:
        yield run.derived("mbs", each, "sequences of one device per pass", "per_device_batch")
    if each and run.value("batch") is None and "accumulation" not in run:
        yield run.derived("accumulation", 1, "one pass per step", "per_device_batch")


def _batch(run: Run, launched: bool) -> Iterator[Stated]:
    mbs, dp, batch, steps = (run.whole(name) for name in ("mbs", "dp", "batch", "accumulation"))
    if mbs and dp and steps and run.value("batch") is None:
        yield run.derived("batch", mbs * dp * steps, f"micro-batch {mbs} x accumulation {steps} x dp {dp}", "mbs")
    elif launched and mbs and dp and run.value("batch") is None and "batch" not in run and "accumulation" not in run:
        yield run.derived("batch", mbs * dp, f"micro-batch {mbs} x dp {dp}: one micro-batch per step", "mbs")
    elif mbs and dp and batch and run.value("accumulation") is None and batch % (mbs * dp) == 0:
        yield run.derived("accumulation", batch // (mbs * dp), "batch / (micro-batch x dp)", "batch")
    elif dp and batch and steps and run.value("mbs") is None and batch % (dp * steps) == 0:
        yield run.derived("mbs", batch // (dp * steps), "batch / (accumulation x dp)", "batch")


def _tokens(run: Run) -> Iterator[Stated]:
    seq, batch = run.whole("seq"), run.whole("batch")
    if run.value("tokens") is not None or not seq:
        return
    if run.whole("samples"):
        yield run.derived("tokens", run.whole("samples") * seq, "samples x sequence length", "samples")
    elif run.whole("steps") and batch:
        yield run.derived("tokens", run.whole("steps") * batch * seq, "steps x batch x sequence length", "steps")
