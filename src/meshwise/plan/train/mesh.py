"""Where a layout puts its ranks: the mesh axes from the inside out, the groups that communicate, and the layers of each stage.

Ranks are numbered as the cost model assumes: tensor-parallel ranks are neighbours, context and data ranks stride over them, stages are
furthest apart. On a torus each mesh axis lies along one or more of its axes.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_WORDS
from meshwise.cost.train.comm import Fabric
from meshwise.cost.train.question import Question
from meshwise.cost.train.stages import layers_before
from meshwise.cost.train.torus import Mesh as TorusMesh
from meshwise.plan.train.choice import Choice

AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")  # axes of the mesh, the innermost first


@dataclass(frozen=True)
class Communicator:
    """The groups of one axis: ranks that are `stride` apart."""

    name: str
    words: str
    size: int
    stride: int
    nodes: int  # nodes (or pods) that one group spans
    seconds: float  # seconds of a step that its communication is exposed


@dataclass(frozen=True)
class Mesh:
    """A layout on its devices."""

    sizes: dict[str, int]  # ranks along each axis, the innermost first
    devices: int
    per_node: int
    unit: str  # word for a node: node or pod
    stages: tuple[tuple[int, int], ...]  # the first layer of each stage, and the first after it
    chunks: int
    communicators: tuple[Communicator, ...]
    torus: tuple[int, ...] = ()
    closed: tuple[bool, ...] = ()  # which axes of the torus wrap around
    laid: tuple[tuple[int, ...], ...] = ()  # extent of every mesh axis along each axis of the torus

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per group."""
        return [vars(each) for each in self.communicators]

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"communicators": self.rows()}


def mesh(q: Question, choice: Choice) -> Mesh:
    """Return where a layout puts its ranks."""
    layout, layouts = choice.layout, Layouts.from_row(choice.layout)
    sizes = {axis: int(layout[axis]) for axis in AXES}
    cluster, pp = q.cluster, sizes["pp"]
    before = layers_before(q, layouts.as_floats(), np.arange(pp + 1.0)).tolist()
    stages = tuple((int(a), int(b)) for a, b in pairwise(before))
    torus = Fabric.of(cluster, q.calibration).torus
    laid: tuple[tuple[int, ...], ...] = ()
    if torus:
        taken = TorusMesh.of(torus, tuple(np.array([sizes[axis]]) for axis in AXES)).taken
        laid = tuple(tuple(int(extent) for extent in axis[:, 0]) for axis in taken)
    return Mesh(
        sizes=sizes, devices=choice.devices, per_node=cluster.node.devices, unit="pod" if cluster.torus else "node",
        stages=stages, chunks=int(layout["vpp"]), communicators=tuple(_communicators(choice, sizes, cluster.node.devices)),
        torus=torus.shape if torus else (), closed=torus.closed if torus else (), laid=laid,
    )  # fmt: skip


def _communicators(choice: Choice, sizes: dict[str, int], per_node: int) -> list[Communicator]:
    """Return the groups of more than one rank, with the communication that is exposed in each."""
    tp, cp, shard, replicate, pp = (sizes[axis] for axis in AXES)
    ep, etp = int(choice.layout["ep"]), int(choice.layout["etp"])
    groups = (
        ("tp", tp, 1, "tp"), ("cp", cp, tp, "cp"), ("ep", ep, etp, "ep"), ("dp", shard * replicate, tp * cp, "dp"),
        ("pp", pp, tp * cp * shard * replicate, "p2p"),
    )  # fmt: skip
    return [
        Communicator(name, TRAIN_WORDS[part], size, stride, _nodes(size, stride, per_node, choice.devices), choice.time[part])
        for name, size, stride, part in groups
        if size > 1
    ]


def _nodes(size: int, stride: int, per_node: int, devices: int) -> int:
    """Return how many nodes the first group of an axis lies on."""
    return len({rank // per_node for rank in range(0, min(devices, size * stride), stride)})
