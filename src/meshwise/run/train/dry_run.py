"""A dry run, without torch: the command, layout, and each rank's weights, cut by tp (arXiv:1909.08053), then dimension 0 by FSDP."""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshwise.cost.axes import layout_name
from meshwise.plan.train.own_run import row_of
from meshwise.run.train import hosts, launch
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.launch import Launch
from meshwise.run.train.report import memory
from meshwise.workers.trainer.contract.models.registry import description_of, parameters_of, sizes_of
from meshwise.workers.trainer.contract.models.tensors import HEAD
from meshwise.workers.trainer.contract.settings import Layout, Settings
from meshwise.workers.trainer.contract.stages import Span, spans, stages_of_rank

OUTPUTS = (
    "q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "embed_tokens", "embed_positions",
    "lm_head",
)  # fmt: skip
"""Modules that tensor parallelism cuts along dimension 0: outputs of a linear layer, rows of an embedding."""
INPUTS = ("o_proj", "down_proj")  # modules that tensor parallelism cuts along dimension 1, their inputs
HEAD_GAINS = ("q_norm", "k_norm")  # norms that it cuts like the heads, if they are over all heads together


@dataclass(frozen=True)
class Shard:
    """One weight: its whole shape, the shape on the first rank of its stage, and how it is cut."""

    name: str
    shape: tuple[int, ...]
    local: tuple[int, ...]
    cut: str


@dataclass(frozen=True)
class Stage:
    """The weights on the first rank of a pipeline stage."""

    number: int
    layers: tuple[int, ...]
    weights: tuple[Shard, ...]

    @property
    def params(self) -> int:
        """Parameters on one rank."""
        return sum(math.prod(shard.local) for shard in self.weights)


@dataclass(frozen=True)
class DryRun:
    """A run that was not started."""

    commands: tuple[str, ...]  # the command to type on each machine, and the command that it starts
    nodes: int
    layout: str
    settings: Settings
    stages: tuple[Stage, ...]
    memory: dict[str, float]  # predicted bytes of the fullest device by kind; empty if the chip is not in the catalogue
    capacity: float


def describe(run: TrainRun, ready: Launch) -> DryRun:
    """Return the commands, shards and predicted memory of a run."""
    s, row = ready.settings, ready.predicted() if ready.on else None
    named = row_of(s.layout) | {"sp": 0}
    return DryRun(
        commands=tuple(_commands(run, ready)), nodes=ready.hosts.nodes, layout=layout_name(row.layout if row else named),
        settings=s, stages=tuple(stages(s)), memory=memory.parts(ready, row) if row else {},
        capacity=(row.capacity if s.device == "cuda" else memory.capacity(ready, row)) if row else 0.0,
    )  # fmt: skip


def _commands(run: TrainRun, ready: Launch) -> Iterator[str]:
    file = run.folder / "config.json"
    if ready.hosts.nodes == 1:
        yield shlex.join(launch.command(ready, file))
        return
    nodes = ready.hosts.nodes
    again = replace(run, dry_run=False, nodes=nodes, node_rank=None, rendezvous=ready.hosts.rendezvous)
    yield again.command("--node-rank", "NODE_RANK")
    # the addresses in it are only known when the run starts
    yield f"which starts: {shlex.join(launch.agent_command(ready, hosts.placeholder_options(ready.hosts), file))}"


# Shards.


def stages(settings: Settings) -> Iterator[Stage]:
    """Yield the weights of every pipeline stage."""
    config, a = settings.model, settings.layout
    all_spans = spans(sizes_of(config).layers, a.pp * a.chunks)
    gains = HEAD_GAINS if description_of(config).qk_norm == "all" else ()
    for number in range(a.pp):
        rank_spans = [all_spans[part] for part in stages_of_rank(a, number)]
        weights = tuple(
            _shard(name, shape, a, gains) for span in rank_spans for name, shape in _weights(config, span, len(all_spans) > 1)
        )
        yield Stage(number, tuple(layer for span in rank_spans for layer in span.layers), weights)


def _weights(config: dict[str, Any], span: Span, several: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and whole shape of each weight of a span."""
    sizes = sizes_of(config)
    for name, shape in parameters_of(config).items():
        layer = next((int(word) for word in name.split(".") if word.isdecimal()), None)
        if layer is not None:
            held = layer in span.layers
        elif name == HEAD or name.startswith("model.norm."):
            held = span.ends
        else:
            held = span.starts
        if held:
            yield name, shape
    if sizes.tied and several and span.ends:  # a copy of the embedding, whose gradients the two stages add
        yield HEAD, (sizes.vocab, sizes.hidden)


def _shard(name: str, shape: tuple[int, ...], a: Layout, gains: tuple[str, ...]) -> Shard:
    """Return the part of a weight on the first rank. Tensor parallelism also cuts the `gains`."""
    module, kind = name.split(".")[-2:]
    local, cuts = list(shape), list[str]()
    if module == "experts":
        return _shard_experts(name, shape, a)
    dimension = 0 if module in (*OUTPUTS, *gains) else 1 if module in INPUTS and kind == "weight" else None
    if a.tp > 1 and dimension is not None:
        local[dimension] //= a.tp
        cuts.append(f"dim {dimension} over tp {a.tp}")
    shards = a.dp_shard * a.cp
    if shards > 1:
        local[0] = -(-local[0] // shards)
        cuts.append(f"dim 0 over {shards} shards")
    return Shard(name, shape, tuple(local), ", ".join(cuts))


def _shard_experts(name: str, shape: tuple[int, ...], a: Layout) -> Shard:
    """Return the experts on the first rank: spread over ep ranks, and sharded over those that would hold the same ones."""
    each, shards = shape[0] // a.ep, a.dp_shard * a.cp * a.tp // a.ep
    cuts = [f"dim 0 over ep {a.ep}"] * (a.ep > 1) + [f"dim 0 over {shards} shards"] * (shards > 1)
    return Shard(name, shape, (-(-each // shards), *shape[1:]), ", ".join(cuts))
