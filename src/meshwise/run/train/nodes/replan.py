"""The layout of a run on fewer nodes than it was planned for: the planner's fastest that the trainer can run, with the same batch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwise.catalogue import here
from meshwise.errors import UserError
from meshwise.run.train.launch import Launch
from meshwise.run.train.report.failure import LAYOUTS_SEARCHED
from meshwise.run.train.report.memory import layout_of
from meshwise.runs.compare import layouts
from meshwise.workers.trainer.contract.settings import Layout, broken_rules

NODES = re.compile(r"\d+(?=x\d+x)|(?<=:)\d+$", re.ASCII)  # the number of nodes in '3x8xh200@400Gbps' and 'jean-zay:48'


@dataclass(frozen=True)
class Replanned:
    """A run for other nodes, and what changed."""

    ready: Launch
    words: str


def for_nodes(ready: Launch, nodes: int) -> Replanned:
    """Return the run for this many of its nodes; its own layout if it has them all."""
    before = ready.settings.layout
    if nodes == ready.hosts.nodes:
        return Replanned(ready, f"layout {_name(before)}")
    on = on_nodes(ready, nodes)
    devices = ready.processes_here * nodes
    smaller = replace(ready, on=on, settings=replace(ready.settings, layout=before))
    for layout in (*_planned(smaller, devices), *_shrunk(before, devices)):
        settings = replace(ready.settings, layout=layout)
        if layout.devices == devices and not broken_rules(settings):
            return Replanned(replace(smaller, settings=settings), f"layout {_name(layout)} instead of {_name(before)}")
    raise UserError(
        f"no layout of {devices} devices on {nodes} nodes trains {ready.settings.batch} sequences per step of {ready.settings.name}: "
        "use a batch that more numbers divide, or a larger MIN in --nodes MIN:MAX"
    )


def check_all(ready: Launch) -> None:
    """Refuse a run that could not go on with some number of nodes between its least and its most."""
    for nodes in range(ready.hosts.least, ready.hosts.nodes):
        for_nodes(ready, nodes)


def on_nodes(ready: Launch, nodes: int) -> str:
    """Return the cluster of the run with another number of nodes, in words; '' if its chip is not known."""
    if not ready.on:
        return ""
    if nodes == 1:
        return here.cluster_text(ready.settings.device, ready.processes_here, 1)
    return NODES.sub(str(nodes), ready.on, count=1)


def _planned(smaller: Launch, devices: int) -> Iterator[Layout]:
    """Yield the planner's layouts for these devices, fastest first."""
    if not smaller.on:
        return
    question = smaller.question()
    if question.cluster.devices != devices:  # a cluster file that states its own number of nodes
        return
    runnable = layouts(question, lambda one: one.layout["offload"] == "none" and one.layout["ep"] == 1, tried=LAYOUTS_SEARCHED)
    yield from (layout_of(one.layout) for one in runnable)


def _shrunk(layout: Layout, devices: int) -> Iterator[Layout]:
    """Yield the same layout with fewer data ranks, where no prediction is known."""
    inner = layout.devices // layout.dp
    if devices % inner:
        return
    dp = devices // inner
    if dp % layout.dp_replicate == 0:
        yield replace(layout, dp_shard=dp // layout.dp_replicate)
    yield replace(layout, dp_replicate=1, dp_shard=dp)
    yield replace(layout, dp_replicate=1, dp_shard=dp, mbs=1)


def _name(layout: Layout) -> str:
    """Return 'dp2 tp8 pp1 mbs4 zero3': the axes that a run may change, without defaults."""
    more = [f"cp{layout.cp}"] * (layout.cp > 1) + [f"vpp{layout.vpp}"] * (layout.vpp > 1)
    sharded = [f"zero{layout.zero}"] * (layout.dp_shard > 1)
    return " ".join([f"dp{layout.dp} tp{layout.tp} pp{layout.pp}", *more, f"mbs{layout.mbs}", *sharded])
