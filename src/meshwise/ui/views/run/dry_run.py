"""A run that was not started, as text: its command, layout, weights per rank and predicted memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise import units
from meshwise.run.train.dry_run import DryRun, Shard, Stage
from meshwise.ui.views.run.sections import Section, as_text
from meshwise.ui.views.tables import Column, Table, grid


def dry_run_view(dry_run: DryRun, width: int = 0, *, verbose: bool = False) -> str:
    """Return the dry run as text, whatever the width: commands must not be wrapped. `verbose` lists every weight."""
    return as_text([*_summary(dry_run), *(_all(dry_run) if verbose else [_one_layer(dry_run)])])


def _summary(dry_run: DryRun) -> Iterator[Section]:
    nodes = dry_run.nodes
    each = f", on each of {nodes} nodes: NODE_RANK is 0 to {nodes - 1}, NODE_0 the address of the first" if nodes > 1 else ""
    yield Section(f"command{each}", lines=dry_run.commands)
    s, a = dry_run.settings, dry_run.settings.layout
    factors = [(a.dp_replicate, "replicas"), (a.dp_shard, "shards"), (a.cp, "context"), (a.tp, "tensor"), (a.pp, "pipeline")]
    cut = " x ".join(f"{size} {name}" for size, name in factors if size > 1) or "one process"
    several = f"gradient accumulation over {s.microbatches} micro-batches of {a.mbs}"
    steps = several if s.microbatches > 1 else f"micro-batch {a.mbs}"
    ranks = f" on each of {a.dp} data-parallel ranks" if a.dp > 1 else ""
    batch = f"{s.batch} sequences x {s.seq} tokens per step, {steps}{ranks}, {s.precision}"
    yield Section(f"layout: {dry_run.layout}", lines=(f"{a.devices} x {s.device}: {cut}", batch))
    yield Section("weights per rank", Table(STAGES, dry_run.stages))
    if dry_run.memory:
        kinds = [(kind, _size(size)) for kind, size in dry_run.memory.items() if size > 0]
        kinds.append(("total", f"{_size(sum(dry_run.memory.values()))} of {_size(dry_run.capacity)}"))
        yield Section("memory of the fullest device", grid(("", "predicted"), kinds))


def _one_layer(dry_run: DryRun) -> Section:
    stage = dry_run.stages[0]
    first = stage.layers[0]
    weights = [shard for shard in stage.weights if f".{first}." in shard.name]
    number = sum(len(stage.weights) for stage in dry_run.stages)
    return replace(_weights(f"layer {first}", weights), lines=(f"--verbose lists all {number} weights",))


def _all(dry_run: DryRun) -> list[Section]:
    return [_weights(f"stage {stage.number + 1} of {len(dry_run.stages)}", stage.weights) for stage in dry_run.stages]


def _weights(title: str, weights: Sequence[Shard]) -> Section:
    return Section(title, Table(WEIGHTS, weights).without_empty_columns())


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _size(value: float) -> str:
    return units.show(value, "bytes", binary=True, digits=3)


def _ranges(layers: Sequence[int]) -> str:
    """Write [0, 1, 2, 6, 7] as '0-2, 6-7'."""
    starts = [i for i, layer in enumerate(layers) if i == 0 or layers[i - 1] != layer - 1]
    parts = [layers[i:j] for i, j in zip(starts, [*starts[1:], len(layers)], strict=True)]
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


STAGES: tuple[Column[Stage], ...] = (
    Column("", lambda stage: f"stage {stage.number + 1}", text=True),
    Column("layers", lambda stage: f"{len(stage.layers)}: {_ranges(stage.layers)}"),
    Column("weights", lambda stage: f"{len(stage.weights):,}"),
    Column("parameters", lambda stage: f"{stage.params:,}"),
    Column("as float32", lambda stage: _size(4 * stage.params)),
)
WEIGHTS: tuple[Column[Shard], ...] = (
    Column("", lambda shard: shard.name, text=True),
    Column("whole", lambda shard: _shape(shard.shape)),
    Column("first rank", lambda shard: _shape(shard.local)),
    Column("cut", lambda shard: shard.cut),
)
